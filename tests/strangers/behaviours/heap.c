// The heap grows and shrinks by sbrk.
#include "behaviour.h"
int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    char *start = sbrk(0), *first = start;
    for (int i = 0; i < 64; i++) {
        if (sbrk(MIB) == (void *)-1) return 1;
        fill(first + i * MIB, MIB, i);
    }
    thrash();
    size_t bad = 0;
    for (int i = 0; i < 64; i++) bad += wrong(first + i * MIB, MIB, i);
    check("grown", bad);
    must(sbrk(-(32l * (long)MIB)));
    must(sbrk(32 * MIB));
    check("again: zero", nonzero(first + 32 * MIB, 32 * MIB));
    bad = 0;
    for (int i = 0; i < 32; i++) bad += wrong(first + i * MIB, MIB, i);
    check("kept", bad);
    must(brk(start));
    must(sbrk(48 * MIB));
    check("zero", nonzero(start, 48 * MIB));
    thrash();
    check("still zero", nonzero(start, 48 * MIB));
    return verdict();
}
