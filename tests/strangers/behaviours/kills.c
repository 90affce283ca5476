// Children are killed in the middle of their work, 30 times; the parent's memory and later children are not disturbed.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    for (int i = 0; i < 30; i++) {
        pid_t pid = must(fork());
        if (pid == 0)
            for (u64 k = 0;; k++) fill(data, bytes, k);
        usleep(1000 * (i * 7 % 60));
        must(kill(pid, SIGKILL));
        if (ended(pid) != -SIGKILL) printf("not killed\n");
    }
    pid_t pid = must(fork());
    if (pid == 0) _exit(wrong(data, bytes, 1) ? 1 : 4);
    printf("child %d\n", ended(pid));
    thrash();
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
