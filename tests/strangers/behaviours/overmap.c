// New mappings over parts of old ones (MAP_FIXED): memory, files, nothing; and holes.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB, bad = 0;
    char *data = pages(bytes);
    int file = must(open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0600));
    must(ftruncate(file, MIB));
    char *text = (char *)must(mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    fill(text, MIB, 7);
    for (int round = 0; round < 2; round++) {
        fill(data, bytes, 1);
        thrash();
        for (size_t at = 0; at < bytes; at += 8 * MIB) {
            must(mmap(data + at + 3 * PAGE, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
            must(mmap(data + at + 2 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0));
            must(mmap(data + at + 4 * MIB, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0));
            must(munmap(data + at + 6 * MIB, MIB));
        }
        thrash();
        for (size_t at = 0; at < bytes; at += 8 * MIB) {
            bad += nonzero(data + at + 3 * PAGE, MIB);
            bad += wrong(data + at + 2 * MIB, MIB, 7);
            must(mprotect(data + at + 4 * MIB, MIB, PROT_READ | PROT_WRITE));
            bad += nonzero(data + at + 4 * MIB, MIB);
            for (size_t i = (at + 5 * MIB) / 8; i < (at + 6 * MIB) / 8; i++) bad += ((u64 *)data)[i] != word(i, 1);
            // Everything is plain memory again.
            must(mmap(data + at, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        }
    }
    check("zero", nonzero(data, bytes));
    check("parts", bad);
    return verdict();
}
