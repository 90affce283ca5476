// mremap of a range with two protections fails, and nothing changes; of one with advice in parts it works.
#include "behaviour.h"
int main(void) {
    char *other = pages(64 * MIB);
    fill(other, 64 * MIB, 1);
    char *data = pages(4 * MIB), *next = pages(4 * MIB);
    fill(data, 4 * MIB, 1);
    fill(next, 4 * MIB, 2);
    must(mprotect(data + 4 * MIB - PAGE, PAGE, PROT_NONE));
    void *moved = mremap(data, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    printf("none: %d %d\n", moved == MAP_FAILED, moved == MAP_FAILED && errno == EFAULT);
    must(mprotect(data + 4 * MIB - PAGE, PAGE, PROT_READ));
    moved = mremap(data, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    printf("read: %d %d\n", moved == MAP_FAILED, moved == MAP_FAILED && errno == EFAULT);
    check("unchanged", wrong(data, 4 * MIB, 1) != 0);
    moved = (void *)must(mremap(next, 4 * MIB, 32 * MIB, MREMAP_MAYMOVE));
    check("moved", wrong(moved, 4 * MIB, 2) != 0);
    return verdict();
}
