// What a program may say about itself: not dumpable, no new rights, a name, ended with its parent, sandboxed by personality; then children.
#include "behaviour.h"
#include <sys/personality.h>
int main(int count, char **given) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    printf("%d", prctl(PR_SET_DUMPABLE, 0));
    printf("%d", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    printf("%d", prctl(PR_SET_NAME, "another (name) x"));
    printf("%d", prctl(PR_SET_TIMERSLACK, 1000));
    printf("%d", prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    printf("%d\n", prctl(PR_SET_CHILD_SUBREAPER, 1));
    memset(given[0], 'x', strlen(given[0]));
    thrash();
    for (int i = 0; i < 3; i++) {
        pid_t pid = must(fork());
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            thrash();
            _exit(wrong(data, bytes, 1) ? 1 : 4);
        }
        printf("child %d\n", ended(pid));
    }
    check("memory", wrong(data, bytes, 1));
    printf("%d %d\n", prctl(PR_GET_DUMPABLE), (int)(personality(0xffffffff) != -1));
    return verdict();
}
