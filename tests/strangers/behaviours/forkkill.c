// A program that forks all the time is killed from outside, 8 times; no process is left of it.
#include "behaviour.h"

int main(void) {
    size_t bytes = 180 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    printf("%d\n", getpid());
    fflush(stdout);
    for (;;) {
        pid_t pid = must(fork());
        if (pid == 0) _exit(0);
        waitpid(pid, 0, 0);
    }
}
