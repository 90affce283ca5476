// A process that is still small has so many mappings that the kernel refuses more: what is mapped then is zeros.
#include "behaviour.h"

int main(void) {
    size_t bytes = 300 * MIB, end = bytes / PAGE, holes = 0, bad = 0;
    char *data = pages(bytes);
    for (size_t page = 0; page < end; page++)
        if (page % 64 == 0 || page > end - 4000) fill(data + page * PAGE, PAGE, page + 1);
    for (size_t page = 1; page < end; page += 2) {
        must(munmap(data + page * PAGE, PAGE));
        holes++;
    }
    printf("holes: %zu\n", holes);
    for (size_t page = 0; page < end; page += 2)
        if (page % 64 == 0 || page > end - 4000) bad += wrong(data + page * PAGE, PAGE, page + 1);
    check("content", bad);
    for (int i = 0; i < 200; i++) {
        char *more = mmap(0, 40 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) break;
        bad += nonzero(more, 40 * PAGE);
        fill(more, 40 * PAGE, i);
    }
    check("zeros", bad);
    return verdict();
}
