// mincore: works, fails where nothing is mapped, and what was just touched is there.
#include "behaviour.h"
int main(void) {
    // While the process is small.
    char *early = pages(MIB);
    unsigned char few[MIB / PAGE];
    early[5 * PAGE] = 1;
    // Each call before what it left is printed: C does not order the arguments of one call.
    must(mincore(early, MIB, few));
    printf("early %d\n", few[5] & 1);
    must(munmap(early + 7 * PAGE, PAGE));
    int done = mincore(early, MIB, few);
    printf("early hole %d %d ", done, errno == ENOMEM);
    done = msync(early + 7 * PAGE, PAGE, MS_ASYNC);
    printf("%d %d\n", done, errno == ENOMEM);
    size_t bytes = 64 * MIB, there = 0;
    char *data = pages(bytes);
    unsigned char *map = malloc(bytes / PAGE);
    fill(data, bytes, 1);
    thrash();
    printf("mincore %d\n", mincore(data, bytes, map));
    for (int i = 0; i < 100; i++) {
        volatile char *at = data + i * 131 * PAGE;
        (void)*at;
        must(mincore((void *)at, PAGE, map));
        there += map[0] & 1;
    }
    printf("touched: %s\n", there > 90 ? "there" : "not there");
    must(munmap(data + 32 * MIB, PAGE));
    printf("hole %d ", mincore(data + 31 * MIB, 2 * MIB, map));
    printf("%s\n", errno == ENOMEM ? "ENOMEM" : strerror(errno));
    check("memory", wrong(data, 32 * MIB, 1));
    return verdict();
}
