// Most of the address space: 100 reservations of 1 TiB with a little memory in each, and 100 mappings of 64 GiB.
#include "behaviour.h"

enum { COUNT = 100 };

int main(void) {
    static char *reserved[COUNT];
    size_t tera = 1ul << 40, giga = 1ul << 30;
    int count = 0, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (; count < COUNT; count++) {
        char *at = mmap(0, tera, PROT_NONE, flags, -1, 0);
        if (at == MAP_FAILED) break;
        reserved[count] = at + count * MIB;
        must(mprotect(reserved[count], MIB, PROT_READ | PROT_WRITE));
        fill(reserved[count], MIB, count);
    }
    printf("%d reservations\n", count);
    int mappings = 0;
    for (; mappings < COUNT; mappings++) {
        char *at = mmap(0, 64 * giga, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at == MAP_FAILED) break;
        at[0] = at[63 * giga] = 1;
    }
    printf("%d mappings\n", mappings);
    char *heap = malloc(64 * MIB);
    printf("malloc %s\n", heap ? "right" : "fails");
    size_t bad = 0;
    for (int i = 0; i < count; i++) bad += wrong(reserved[i], MIB, i);
    check("memory", bad);
    return verdict();
}
