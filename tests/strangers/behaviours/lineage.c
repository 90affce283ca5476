// The first process goes on and changes everything, while a late descendant reads what it inherited; those between have ended. usage: lineage GENERATIONS
#include "behaviour.h"
enum { PARTS = 64 };
int main(int count, char **given) {
    int generations = count > 1 ? atoi(given[1]) : 2, ready[2], go[2], done[2];
    size_t bad = 0;
    char *data = pages(PARTS * MIB), result = 9;
    for (int i = 0; i < PARTS; i++) fill(data + i * MIB, MIB, i);
    must(pipe(ready));
    must(pipe(go));
    must(pipe(done));
    pid_t first = must(fork());
    if (first == 0) {
        // Only the last of them goes on.
        for (int i = 1; i < generations; i++)
            if (must(fork())) _exit(0);
        must(write(ready[1], "", 1));
        must(read(go[0], &result, 1));
        for (int i = 0; i < PARTS; i++) bad += wrong(data + i * MIB, MIB, i) != 0;
        result = bad;
        must(write(done[1], &result, 1));
        _exit(0);
    }
    close(done[1]);
    printf("first %d\n", ended(first));
    must(read(ready[0], &result, 1));
    // Longer than the pagers of those that have ended stay.
    usleep(300000);
    for (int round = 1; round < 4; round++)
        for (int i = 0; i < PARTS; i++) fill(data + i * MIB, MIB, 1000 * round + i);
    must(write(go[1], "", 1));
    result = 9;
    printf("told %zd\n", read(done[0], &result, 1));
    check("the last descendant", result);
    for (int i = 0; i < PARTS; i++) bad += wrong(data + i * MIB, MIB, 3000 + i) != 0;
    check("the first process", bad);
    return verdict();
}
