// Several children live at the same time under a limit of few descriptors; each reads everything.
#include "behaviour.h"

int main(void) {
    size_t bytes = 96 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    pid_t children[7];
    for (int i = 0; i < 7; i++) {
        children[i] = must(fork());
        if (children[i] == 0) {
            size_t bad = wrong(data, bytes, 1);
            usleep(300000);
            _exit(bad ? 1 : 4);
        }
    }
    for (int i = 0; i < 7; i++) printf("child %d\n", ended(children[i]));
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
