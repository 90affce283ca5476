// A session of its own with a terminal: output through it, job control signals, and the size.
#include "behaviour.h"
#include <pty.h>
#include <sys/ioctl.h>
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes), text[256];
    fill(data, bytes, 1);
    thrash();
    int master;
    struct winsize size = {33, 77, 0, 0};
    pid_t pid = must(forkpty(&master, 0, 0, &size));
    if (pid == 0) {
        struct winsize seen;
        thrash();
        ioctl(0, TIOCGWINSZ, &seen);
        printf("terminal %d, %d x %d, %zu wrong\n", isatty(1), seen.ws_row, seen.ws_col, wrong(data, bytes, 1));
        fflush(stdout);
        _exit(4);
    }
    size_t got = 0;
    for (long n; got < 255 && (n = read(master, text + got, 255 - got)) > 0;) got += n;
    text[got] = 0;
    printf("%schild %d\n", text, ended(pid));
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
