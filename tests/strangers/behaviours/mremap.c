// mremap: grows, shrinks, moves to a fixed place, leaves the old place mapped, duplicates nothing. usage: mremap grow|shrink|fixed|dontunmap|part|many
#include "behaviour.h"
int main(int count, char **given) {
    size_t bytes = 48 * MIB;
    char *data = pages(bytes), *moved;
    fill(data, bytes, 1);
    thrash();
    if (!strcmp(given[1], "grow")) {
        moved = (char *)must(mremap(data, bytes, 2 * bytes, MREMAP_MAYMOVE));
        check("old part", wrong(moved, bytes, 1));
        check("new part", nonzero(moved + bytes, bytes));
        fill(moved, 2 * bytes, 2);
        thrash();
        check("all", wrong(moved, 2 * bytes, 2));
    } else if (!strcmp(given[1], "shrink")) {
        moved = (char *)must(mremap(data, bytes, bytes / 4, 0));
        char *rest = (char *)must(mmap(moved + bytes / 4, bytes / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        thrash();
        check("kept", wrong(moved, bytes / 4, 1));
        check("fresh", nonzero(rest, bytes / 4));
    } else if (!strcmp(given[1], "fixed")) {
        char *target = pages(2 * bytes);
        fill(target, 2 * bytes, 3);
        thrash();
        moved = (char *)must(mremap(data, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target + bytes / 2));
        printf("moved %s\n", moved == target + bytes / 2 ? "there" : "elsewhere");
        check("moved", wrong(moved, bytes, 1));
        thrash();
        check("moved", wrong(moved, bytes, 1));
        check("before", wrong(target, bytes / 2, 3));
    } else if (!strcmp(given[1], "dontunmap")) {
        moved = mremap(data, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
        if (moved == MAP_FAILED) skip("MREMAP_DONTUNMAP: %s", strerror(errno));
        check("moved", wrong(moved, bytes, 1));
        check("old: zero", nonzero(data, bytes));
        fill(data, bytes, 4);
        thrash();
        check("moved", wrong(moved, bytes, 1));
        check("old: new", wrong(data, bytes, 4));
    } else if (!strcmp(given[1], "part")) {
        char *target = pages(bytes);
        for (size_t at = 0; at < bytes; at += 4 * MIB) must(mremap(data + at + 12 * PAGE, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target + at + 5 * PAGE));
        thrash();
        size_t bad = 0;
        for (size_t at = 0; at < bytes; at += 4 * MIB)
            for (size_t i = 0; i < MIB / 8; i++) bad += ((u64 *)(target + at + 5 * PAGE))[i] != word((at + 12 * PAGE) / 8 + i, 1);
        check("parts", bad);
    } else {
        size_t size = PAGE;
        char *list = pages(size);
        for (int i = 0; i < 4000; i++) {
            fill(list + size - PAGE, PAGE, i);
            list = (char *)must(mremap(list, size, size + PAGE, MREMAP_MAYMOVE));
            size += PAGE;
        }
        size_t bad = 0;
        for (int i = 0; i < 4000; i++) bad += wrong(list + i * PAGE, PAGE, i);
        check("steps", bad);
        check("memory", wrong(data, bytes, 1));
    }
    return verdict();
}
