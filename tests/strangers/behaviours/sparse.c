// A reservation of 1 TiB of which little is touched; mappings of all kinds of flags.
#include "behaviour.h"
int main(void) {
    char *huge = (char *)must(mmap(0, 1ul << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    size_t bad = 0;
    for (u64 i = 0; i < 4096; i++) fill(huge + i * (1ul << 28), 3 * PAGE, i);
    thrash();
    for (u64 i = 0; i < 4096; i++) bad += wrong(huge + i * (1ul << 28), 3 * PAGE, i) + nonzero(huge + i * (1ul << 28) + 3 * PAGE, PAGE);
    check("sparse", bad);
    int flags[] = {MAP_POPULATE, MAP_32BIT, MAP_NORESERVE, MAP_STACK, MAP_GROWSDOWN, MAP_POPULATE | MAP_NONBLOCK};
    char *at[6];
    for (int i = 0; i < 6; i++) {
        at[i] = (char *)must(mmap(0, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags[i], -1, 0));
        fill(at[i], 8 * MIB, i);
    }
    printf("32 bit: %d\n", (u64)at[1] >> 32 == 0);
    thrash();
    for (int i = 0; i < 6; i++) check("flags", wrong(at[i], 8 * MIB, i));
    char *fixed = mmap(at[0], MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("noreplace: %s\n", fixed == MAP_FAILED && errno == EEXIST ? "EEXIST" : "works");
    must(munmap(huge, 1ul << 40));
    return verdict();
}
