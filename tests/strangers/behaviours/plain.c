// 64 MiB, pressure, a file written, a fork: a plain program, for the surroundings that it is started in.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    pid_t pid = must(fork());
    if (pid == 0) _exit(wrong(data, bytes, 1) ? 1 : 4);
    int code = ended(pid);
    thrash();
    size_t bad = wrong(data, bytes, 1);
    int file = open("result", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dprintf(file, "child %d, %zu wrong\n", code, bad);
    printf("child %d\n", code);
    check("memory", bad);
    return code != 4 || bad;
}
