// 20 generations: each process changes a part, forks, and ends after its child (or before it: orphans). usage: generations wait|orphans
#include "behaviour.h"
int main(int count, char **given) {
    int orphans = !strcmp(given[1], "orphans"), done[2];
    size_t bytes = 48 * MIB, bad = 0;
    char *data = pages(bytes);
    for (int i = 0; i < 48; i++) fill(data + i * MIB, MIB, i);
    must(pipe(done));
    for (int generation = 0; generation < 20; generation++) {
        fill(data + generation * MIB, MIB, 1000 + generation);
        pid_t pid = must(fork());
        if (pid) {
            if (orphans && generation) _exit(0);
            if (orphans) {
                close(done[1]);
                char result = 9;
                must(read(done[0], &result, 1));
                check("orphans", result);
                bad = ended(pid);
            } else {
                bad = ended(pid);
                for (int i = 0; i < 48; i++) bad += wrong(data + i * MIB, MIB, i <= generation ? 1000 + i : i) != 0;
            }
            if (generation) _exit(bad ? 1 : 0);
            check("all generations", bad);
            return verdict();
        }
        for (int i = 0; i < 48; i++) bad += wrong(data + i * MIB, MIB, i <= generation ? 1000 + i : i) != 0;
        if (bad) {
            char result = bad;
            write(done[1], &result, 1);
            _exit(1);
        }
    }
    thrash();
    for (int i = 0; i < 48; i++) bad += wrong(data + i * MIB, MIB, i < 20 ? 1000 + i : i) != 0;
    char result = bad;
    write(done[1], &result, 1);
    _exit(bad ? 1 : 0);
}
