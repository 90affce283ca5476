// Code caches: a large reservation becomes executable as a whole, is written to in pieces, and flips between writing and executing.
#include "behaviour.h"

static size_t rss_mib(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    size_t all = 0, resident = 0;
    if (fscanf(file, "%zu %zu", &all, &resident) != 2) resident = 0;
    fclose(file);
    return resident * PAGE / MIB;
}

// mov eax, value; ret
static void emit(unsigned char *at, unsigned value) {
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

static int call(unsigned char *at) { return ((int (*)(void))at)(); }

static void flips(const char *what, unsigned char *code, size_t bytes, size_t step) {
    int bad = 0;
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < bytes; at += step) {
            must(mprotect(code + at, PAGE, PROT_READ | PROT_WRITE));
            emit(code + at + 64, at + round);
            must(mprotect(code + at, PAGE, PROT_READ | PROT_EXEC));
            bad += call(code + at + 64) != (int)(at + round);
        }
    check(what, bad);
}

int main(void) {
    size_t space = 1ul << 30, before = rss_mib();
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // Small: the process has nothing else yet.
    unsigned char *early = (unsigned char *)must(mmap(0, 256 * MIB, PROT_NONE, flags, -1, 0));
    must(mprotect(early, 64 * MIB, PROT_READ | PROT_EXEC));
    flips("early", early, 64 * MIB, MIB);
    printf("early takes %s\n", rss_mib() < before + 8 ? "little" : "much");
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    before = rss_mib();
    unsigned char *code = (unsigned char *)must(mmap(0, space, PROT_NONE, flags, -1, 0));
    must(mprotect(code, space / 2, PROT_READ | PROT_EXEC));
    unsigned char *both = code + space / 2;
    if (mprotect(both, space / 4, PROT_READ | PROT_WRITE | PROT_EXEC) == 0)
        for (size_t at = 0; at < space / 4; at += 8 * MIB) emit(both + at, at);
    flips("sparse", code, space / 2, 8 * MIB);
    printf("sparse takes %s\n", rss_mib() < before + 24 ? "little" : "much");
    // All of it for writing and back, as when a compiler moves its code.
    must(mprotect(code, space / 2, PROT_READ | PROT_WRITE));
    must(mprotect(code, space / 2, PROT_READ | PROT_EXEC));
    printf("flipped takes %s\n", rss_mib() < before + 24 ? "little" : "much");
    thrash();
    int bad = 0;
    for (size_t at = 0; at < space / 2; at += 8 * MIB) bad += call(code + at + 64) != (int)(at + 2);
    for (size_t at = 0; at < space / 4; at += 8 * MIB) bad += call(both + at) != (int)at;
    check("after pressure", bad);
    must(madvise(code, space / 2, MADV_DONTNEED));
    check("dropped", nonzero(code + 8 * MIB, PAGE));
    check("early", call(early + 64) != 2);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
