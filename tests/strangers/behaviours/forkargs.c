// clone and clone3 as a fork, with what they read and write in far memory. usage: forkargs parent|raw|pidfd|three|straddle|settid
#include "behaviour.h"
#include <linux/sched.h>

static char *data;
static size_t bytes = 16 * MIB;

static int in_child(void *given) { _exit(wrong(data, bytes, 1) ? 9 : 6); }

static pid_t three(struct clone_args *args) {
    pid_t pid = must(syscall(SYS_clone3, args, sizeof *args));
    if (pid == 0) in_child(0);
    return pid;
}

// A process id that nobody has.
static pid_t unused_pid(void) {
    pid_t pid = 20000;
    while (kill(pid, 0) == 0 || errno != ESRCH) pid++;
    return pid;
}

int main(int count, char **given) {
    const char *what = given[1];
    size_t room = 32 * MIB;
    char *far = pages(room), *stack = pages(MIB) + MIB;
    data = pages(bytes);
    fill(data, bytes, 1);
    fill(far, room, 2);
    int *tid = (int *)(far + 8 * MIB + 128), *pidfd = (int *)(far + 16 * MIB + 128);
    pid_t *wanted = (pid_t *)(far + 24 * MIB);
    // Its last three words are in another page, and in another huge page.
    struct clone_args *straddling = (void *)(far + 20 * MIB - 64);
    memset(straddling, 0, sizeof *straddling);
    *tid = *pidfd = 0;
    *wanted = unused_pid();
    evict(far, room);

    pid_t pid;
    if (!strcmp(what, "parent")) {
        pid = must(clone(in_child, stack, SIGCHLD | CLONE_PARENT_SETTID, 0, tid, 0, 0));
        printf("thread id %s\n", *tid == pid ? "right" : "wrong");
    } else if (!strcmp(what, "raw")) {
        pid = must(syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID, 0, tid, 0, 0));
        if (pid == 0) in_child(0);
        printf("thread id %s\n", *tid == pid ? "right" : "wrong");
    } else if (!strcmp(what, "pidfd")) {
        pid = must(clone(in_child, stack, SIGCHLD | CLONE_PIDFD, 0, pidfd, 0, 0));
        printf("pidfd %s\n", *pidfd > 0 ? "right" : "wrong");
    } else if (!strcmp(what, "three")) {
        pid = three(&(struct clone_args){.flags = CLONE_PIDFD | CLONE_PARENT_SETTID, .exit_signal = SIGCHLD, .pidfd = (u64)pidfd,
                                         .parent_tid = (u64)tid});
        printf("pidfd %s, thread id %s\n", *pidfd > 0 ? "right" : "wrong", *tid == pid ? "right" : "wrong");
    } else if (!strcmp(what, "straddle")) {
        // Its first page is local now, the second is not.
        straddling->exit_signal = SIGCHLD;
        evict((char *)straddling + 64, 24);
        pid = three(straddling);
    } else {
        struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (u64)wanted, .set_tid_size = 1};
        pid = syscall(SYS_clone3, &args, sizeof args);
        if (pid == 0) in_child(0);
        if (pid < 0 && errno == EPERM) skip("a child's process id may not be chosen here");
        must(pid);
        printf("process id %s\n", *wanted == pid ? "right" : "wrong");
    }
    printf("child %d\n", ended(pid));
    check("memory", wrong(data, bytes, 1));
    check("before what was read and written", wrong(far, 8 * MIB, 2));
    return verdict();
}
