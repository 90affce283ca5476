// A directory with nothing in it becomes the root; then children and memory.
#include "behaviour.h"
int main(void) {
    if (geteuid()) skip("needs root");
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    mkdir("empty", 0755);
    must(chroot("empty"));
    must(chdir("/"));
    thrash();
    for (int i = 0; i < 3; i++) {
        pid_t pid = must(fork());
        if (pid == 0) {
            thrash();
            _exit(wrong(data, bytes, 1) ? 1 : 4);
        }
        printf("child %d\n", ended(pid));
    }
    char *more = pages(bytes);
    fill(more, bytes, 2);
    thrash();
    check("memory", wrong(data, bytes, 1) + wrong(more, bytes, 2));
    return verdict();
}
