// A daemon: forks twice, closes everything, works on after its parent has ended, and writes a file.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    if (must(fork())) return 0;
    must(setsid());
    if (must(fork())) _exit(0);
    close_range(0, ~0u, 0);
    must(open("/dev/null", O_RDWR));
    must(dup(0));
    must(dup(0));
    usleep(300000);
    thrash();
    size_t bad = wrong(data, bytes, 1);
    int file = must(open("result.new", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    dprintf(file, "daemon: %zu wrong\n", bad);
    close(file);
    must(rename("result.new", "result"));
    return 0;
}
