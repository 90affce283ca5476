// Signals as some programs set them: all blocked, SIGCHLD ignored, SIGPIPE ignored, SIGSEGV and SIGBUS handled; then memory and children.
#include "behaviour.h"
static void unexpected(int number) { _exit(90); }
int main(void) {
    size_t bytes = 64 * MIB;
    sigset_t all, before;
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGSEGV, unexpected);
    signal(SIGBUS, unexpected);
    for (int i = SIGRTMIN; i <= SIGRTMAX; i++) signal(i, unexpected);
    sigfillset(&all);
    must(sigprocmask(SIG_SETMASK, &all, &before));
    char *data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    int ends[2];
    must(pipe(ends));
    for (int i = 0; i < 3; i++) {
        pid_t pid = must(fork());
        if (pid == 0) {
            char code = wrong(data, bytes, 1) ? 'b' : 'g';
            must(write(ends[1], &code, 1));
            _exit(0);
        }
        char code;
        must(read(ends[0], &code, 1));
        printf("child %c\n", code);
    }
    while (wait(0) > 0) {}
    printf("%s\n", errno == ECHILD ? "no children" : strerror(errno));
    sigset_t pending;
    sigpending(&pending);
    printf("pending: %s\n", sigisemptyset(&pending) ? "none" : "some");
    thrash();
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
