// vfork: the child runs in the parent's memory and executes, or just ends.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    volatile int seen = 0;
    for (int i = 0; i < 20; i++) {
        thrash();
        pid_t pid = vfork();
        if (pid == 0) {
            ((volatile char *)data)[i * MIB + 3] ^= 0;
            seen = i + 1;
            if (i % 2) execl("/bin/true", "true", (char *)0);
            _exit(i);
        }
        int code = ended(pid);
        if (code != (i % 2 ? 0 : i) || seen != i + 1) printf("child %d: %d, %d\n", i, code, seen);
        if (i == 4) i = 16;
    }
    check("parent", wrong(data, bytes, 1));
    return verdict();
}
