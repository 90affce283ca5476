// clone with a stack of the program's: sharing memory (vm), or as a fork (copy), or clone3 (three). usage: clone vm|copy|three|vfork
#include "behaviour.h"
#include <linux/sched.h>
static char *data;
// A caller that waits for its child (CLONE_VFORK), which has memory of its own.
static int ends[2], number;
static int late(void *given) {
    usleep(100000);
    char byte = wrong(data, 64 * MIB, 1) ? 'w' : 'r';
    must(write(ends[1], &byte, 1));
    if (number % 2) execl("/bin/sleep", "sleep", "0.5", (char *)0);
    _exit(6);
}
static void waits(char *stack) {
    struct {
        struct clone_args args;
        char more[64];
    } how = {{.flags = CLONE_VFORK, .exit_signal = SIGCHLD}};
    must(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    pid_t pid;
    if (number == 0) pid = must(clone(late, stack, CLONE_VFORK | SIGCHLD, 0));
    else if (number == 1) pid = must(syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0));
    else pid = must(syscall(SYS_clone3, &how, number == 2 ? sizeof how.args : sizeof how));
    if (pid == 0) late(0);
    char byte = '-';
    ssize_t count = read(ends[0], &byte, 1);
    // What the child has executed still runs.
    siginfo_t info = {};
    must(waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT));
    if (number % 2) printf("%s, ", info.si_pid ? "ended" : "running");
    printf("%zd byte, %c, %d\n", count, byte, ended(pid));
    close(ends[0]);
    close(ends[1]);
}

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
        if (!strcmp(given[1], "vfork")) {
            number = i;
            waits(stack + 4 * MIB);
            continue;
        }
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
