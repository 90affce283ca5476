// New namespaces, then children and memory. usage: namespaces user|pid|mount|net|all
#include "behaviour.h"
int main(int count, char **given) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    int what = !strcmp(given[1], "user") ? CLONE_NEWUSER : !strcmp(given[1], "pid") ? CLONE_NEWPID : !strcmp(given[1], "mount") ? CLONE_NEWNS : !strcmp(given[1], "net") ? CLONE_NEWNET
        : CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    thrash();
    if (unshare(what)) skip("unshare: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        // The first process of a namespace of processes ends it when it ends.
        pid_t pid = must(fork());
        if (pid == 0) {
            size_t bad = wrong(data, bytes, 1);
            thrash();
            pid_t inner = must(fork());
            if (inner == 0) {
                thrash();
                _exit(wrong(data, bytes, 1) ? 1 : 4);
            }
            if (ended(inner) != 4) bad++;
            _exit(wrong(data, bytes, 1) + bad ? 1 : 5);
        }
        printf("child %d\n", ended(pid));
        if (what & CLONE_NEWPID) break;
    }
    char *more = pages(bytes);
    fill(more, bytes, 2);
    thrash();
    check("memory", wrong(data, bytes, 1) + wrong(more, bytes, 2));
    return verdict();
}
