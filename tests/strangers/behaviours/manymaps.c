// Thousands of small mappings with different rights, made, changed and unmapped in any order.
#include "behaviour.h"
enum { COUNT = 6000 };
static char *at[COUNT];
static size_t bytes[COUNT];
int main(void) {
    u64 x = 88172645463325252ul;
    size_t bad = 0;
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            if (at[i]) {
                bad += wrong(at[i], bytes[i], i + (round - 1) * COUNT);
                must(munmap(at[i], bytes[i]));
            }
            bytes[i] = (1 + x % 6) * PAGE;
            at[i] = pages(bytes[i]);
            fill(at[i], bytes[i], i + round * COUNT);
            if (x >> 40 & 1) must(mprotect(at[i], bytes[i], PROT_READ));
        }
        thrash();
    }
    for (int i = 0; i < COUNT; i++) bad += wrong(at[i], bytes[i], i + 2 * COUNT);
    check("mappings", bad);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
