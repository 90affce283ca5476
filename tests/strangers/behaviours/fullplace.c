// /tmp is full when children begin, which read and write memory that is far.
#include "behaviour.h"
int main(void) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    int file = must(open("/tmp/filler", O_RDWR | O_CREAT, 0600));
    static char zeros[PAGE];
    while (write(file, zeros, sizeof zeros) > 0);
    for (int i = 0; i < 3; i++) {
        pid_t child = must(fork());
        if (child == 0) {
            char *more = pages(64 * MIB);
            fill(more, 64 * MIB, 2);
            _exit(wrong(data, 64 * MIB, 1) || wrong(more, 64 * MIB, 2) ? 9 : 6);
        }
        printf("child %d\n", ended(child));
    }
    check("parent", wrong(data, 64 * MIB, 1));
    return verdict();
}
