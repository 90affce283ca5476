// A child whose pager cannot begin, because its user may start no more threads: its parent works on.
#include "behaviour.h"
int main(void) {
    size_t bytes = 48 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    // A user of no other process.
    uid_t user = 61234;
    must(setrlimit(RLIMIT_NPROC, &(struct rlimit){2, 2}));
    must(setresuid(user, user, user));
    for (int i = 0; i < 3; i++) {
        // By `clone` and by `fork`; where the kernel makes no process either, there is none.
        pid_t pid = i ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) _exit(wrong(data, bytes, 1) != 0);
        int code = pid < 0 ? 75 : ended(pid);
        printf("child %s\n", code == 0 || code == 75 ? "right, or not begun" : "wrong");
        check("parent", wrong(data, bytes, 1));
    }
    return verdict();
}
