// As many mappings as the kernel allows, almost: small ones with gaps or with different rights, and then work. usage: manyareas mapped|protected
#include "behaviour.h"

int main(int count, char **given) {
    size_t most = 65530, made = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    if (!file || fscanf(file, "%zu", &most) != 1) skip("no max_map_count");
    fclose(file);
    if (most > 300000) skip("too many mappings are allowed");
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    size_t wanted = most * 9 / 10;
    if (!strcmp(given[1], "mapped")) {
        // 128 KiB each, every second one for reading only.
        char **all = malloc(wanted * sizeof *all);
        for (; made < wanted; made++) {
            all[made] = mmap(0, 32 * PAGE, made % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (all[made] == MAP_FAILED) break;
            if (made % 2 == 0) all[made][PAGE] = made;
        }
        printf("%s\n", made == wanted ? "all are there" : strerror(errno));
        if (made < wanted) fprintf(stderr, "%zu of %zu\n", made, wanted);
        size_t bad = 0;
        for (size_t i = 0; i < made; i += 2) bad += all[i][PAGE] != (char)i;
        check("content", bad);
        for (size_t i = 0; i < made; i++) bad += munmap(all[i], 32 * PAGE) != 0;
        check("unmapped", bad);
    } else {
        char *space = pages(wanted * PAGE);
        for (size_t at = 0; at < wanted * PAGE; at += 64 * PAGE) space[at] = at / PAGE;
        size_t bad = 0;
        for (; made < wanted; made += 2)
            if (mprotect(space + made * PAGE, PAGE, PROT_READ)) break;
        printf("%s\n", made >= wanted ? "all are protected" : strerror(errno));
        if (made < wanted) fprintf(stderr, "%zu of %zu\n", made, wanted);
        for (size_t at = 0; at < wanted * PAGE; at += 64 * PAGE) bad += space[at] != (char)(at / PAGE);
        check("content", bad);
        must(munmap(space, wanted * PAGE));
    }
    thrash();
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
