// A large program starts another one and waits for it: its arguments are what to start, - for without an environment. usage: parent [-] PROGRAM...
#include "behaviour.h"
int main(int count, char **given) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes), *none[] = {0};
    extern char **environ;
    int bare = !strcmp(given[1], "-");
    fill(data, bytes, 1);
    thrash();
    for (int i = 0; i < 2; i++) {
        pid_t pid = must(fork());
        if (pid == 0) {
            execve(given[1 + bare], given + 1 + bare, bare ? none : environ);
            _exit(95);
        }
        printf("child %d\n", ended(pid));
        fflush(stdout);
        thrash();
    }
    check("parent", wrong(data, bytes, 1));
    return verdict();
}
