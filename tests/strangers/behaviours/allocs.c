// All that an allocator offers: aligned, grown, zeroed, trimmed, huge; and that errors are errors.
#include "behaviour.h"
#include <malloc.h>
int main(void) {
    size_t bad = 0, size = 1000;
    char *grown = malloc(size);
    fill(grown, size, 1);
    while (size < 100 * MIB) {
        grown = realloc(grown, size * 3 / 2 / 8 * 8);
        bad += wrong(grown, size, 1);
        size = size * 3 / 2 / 8 * 8;
        fill(grown, size, 1);
    }
    check("grown", bad);
    grown = realloc(grown, 40 * MIB);
    thrash();
    check("shrunk", wrong(grown, 40 * MIB, 1));
    void *aligned;
    bad = 0;
    for (size_t to = 16; to <= 64 * MIB; to *= 2) {
        bad += posix_memalign(&aligned, to, 100000) != 0 || (u64)aligned % to;
        fill(aligned, 100000, to);
        bad += wrong(aligned, 100000, to);
        free(aligned);
    }
    check("aligned", bad);
    char *zero = calloc(30 * MIB, 1);
    check("zero", nonzero(zero, 30 * MIB));
    fill(zero, 30 * MIB, 2);
    free(zero);
    malloc_trim(0);
    zero = calloc(1, 30 * MIB);
    thrash();
    check("zero again", nonzero(zero, 30 * MIB));
    char *many[4000];
    for (int i = 0; i < 4000; i++) fill(many[i] = malloc(4096 + i % 50 * 512), 4096, i);
    for (int i = 0; i < 4000; i += 2) free(many[i]);
    malloc_trim(0);
    thrash();
    bad = 0;
    for (int i = 1; i < 4000; i += 2) bad += wrong(many[i], 4096, i), free(many[i]);
    check("many", bad);
    printf("too much: %s\n", malloc(1ul << 62) ? "works" : errno == ENOMEM ? "ENOMEM" : "another error");
    printf("usable: %d\n", malloc_usable_size(grown) >= 40 * MIB);
    return verdict();
}
