// clone with a stack of the program's: sharing memory (vm), or as a fork (copy), or clone3 (three).
#include "behaviour.h"
#include <linux/sched.h>
static char *data;
static int task(void *given) {
    volatile char deep[MIB];
    fill((void *)deep, sizeof deep, 5);
    size_t bad = wrong(data, 64 * MIB, 1);
    data[0] ^= 1;
    data[0] ^= 1;
    bad += wrong((void *)deep, sizeof deep, 5);
    return bad ? 9 : 6;
}
int main(int count, char **given) {
    data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    char *stack = pages(4 * MIB);
    for (int i = 0; i < 4; i++) {
        thrash();
        pid_t pid;
        if (!strcmp(given[1], "three")) {
            struct clone_args how = {.exit_signal = SIGCHLD};
            pid = must(syscall(SYS_clone3, &how, sizeof how));
            if (pid == 0) _exit(task(0));
        } else {
            pid = must(clone(task, stack + 4 * MIB, (strcmp(given[1], "vm") ? 0 : CLONE_VM | CLONE_FS | CLONE_FILES) | SIGCHLD, 0));
        }
        printf("child %d\n", ended(pid));
    }
    check("parent", wrong(data, 64 * MIB, 1));
    return verdict();
}
