// 50 children at the same time; each reads everything and changes a part.
#include "behaviour.h"
int main(void) {
    size_t bytes = 48 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    pid_t children[50];
    for (int i = 0; i < 50; i++) {
        children[i] = must(fork());
        if (children[i] == 0) {
            size_t bad = wrong(data, bytes, 1);
            fill(data + i % 48 * MIB, MIB, 100 + i);
            bad += wrong(data + i % 48 * MIB, MIB, 100 + i);
            _exit(bad ? 1 : 0);
        }
    }
    size_t bad = 0;
    for (int i = 0; i < 50; i++) bad += ended(children[i]) != 0;
    check("children", bad);
    check("parent", wrong(data, bytes, 1));
    return verdict();
}
