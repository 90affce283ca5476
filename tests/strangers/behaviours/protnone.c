// PROT_NONE and back: whole, in pieces, by page; what was there is there again. Reservations that are committed in pieces, as runtimes do.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    must(mprotect(data, bytes, PROT_NONE));
    thrash();
    must(mprotect(data, bytes, PROT_READ | PROT_WRITE));
    check("whole", wrong(data, bytes, 1));
    for (size_t at = 0; at < bytes; at += 2 * MIB) must(mprotect(data + at, MIB, PROT_NONE));
    thrash();
    for (size_t at = 0; at < bytes; at += 2 * MIB) must(mprotect(data + at, MIB, PROT_READ));
    check("pieces", wrong(data, bytes, 1));
    must(mprotect(data, bytes, PROT_READ | PROT_WRITE));
    for (size_t at = 0; at < bytes; at += 64 * PAGE) must(mprotect(data + at, PAGE, PROT_NONE));
    thrash();
    for (size_t at = 0; at < bytes; at += 64 * PAGE) must(mprotect(data + at, PAGE, PROT_READ | PROT_WRITE));
    check("by page", wrong(data, bytes, 1));
    char *reserve = (char *)must(mmap(0, 64ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (int i = 0; i < 32; i++) {
        must(mprotect(reserve + i * (1ul << 30), 2 * MIB, PROT_READ | PROT_WRITE));
        fill(reserve + i * (1ul << 30), 2 * MIB, i);
    }
    thrash();
    size_t bad = 0;
    for (int i = 0; i < 32; i++) bad += wrong(reserve + i * (1ul << 30), 2 * MIB, i);
    check("reserve", bad);
    return verdict();
}
