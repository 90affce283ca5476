// A child stops and continues its parent in bursts, while that works with far memory.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    pid_t parent = getpid(), pid = must(fork());
    if (pid == 0) {
        for (int i = 0; i < 100; i++) {
            kill(parent, SIGSTOP);
            usleep(2000);
            kill(parent, SIGCONT);
            usleep(5000);
        }
        _exit(4);
    }
    for (int i = 0; i < 3; i++) {
        thrash();
        check("memory", wrong(data, bytes, 1));
    }
    printf("child %d\n", ended(pid));
    return verdict();
}
