// The first process of a namespace kills all others at once, as what ends a container does, and goes on.
#include "behaviour.h"

int main(void) {
    // Anywhere else these would be the processes of this machine.
    if (getpid() != 1) skip("not the first process of a namespace");
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = must(fork());
        if (children[i] == 0) {
            pause();
            _exit(1);
        }
    }
    printf("all: %d\n", kill(-1, SIGKILL));
    for (int i = 0; i < 3; i++) printf("child: %d\n", ended(children[i]));
    thrash();
    check("data", wrong(data, bytes, 1));
    pid_t last = must(fork());
    if (last == 0) _exit(wrong(data, bytes, 1) ? 1 : 6);
    printf("last: %d\n", ended(last));
    return verdict();
}
