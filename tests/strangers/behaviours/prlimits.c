// Another process changes the limits of a running program (prlimit); what was there stays, and what is too much fails.
#include "behaviour.h"

static void limit(pid_t of, int which, u64 most) {
    struct rlimit both = {most, RLIM_INFINITY};
    must(prlimit(of, which, &both, 0));
}

int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    pid_t parent = getpid(), pid = must(fork());
    if (pid == 0) {
        limit(parent, RLIMIT_NOFILE, 24);
        limit(parent, RLIMIT_STACK, 1 << 20);
        limit(parent, RLIMIT_MEMLOCK, 0);
        limit(parent, RLIMIT_FSIZE, 4096);
        limit(parent, RLIMIT_SIGPENDING, 0);
        _exit(4);
    }
    printf("child %d\n", ended(pid));
    thrash_by(64 * MIB);
    check("memory", wrong(data, bytes, 1));
    pid = must(fork());
    if (pid == 0) _exit(wrong(data, bytes, 1) ? 1 : 4);
    printf("child %d\n", ended(pid));
    fill(data, bytes, 2);
    thrash_by(64 * MIB);
    check("memory", wrong(data, bytes, 2));
    return verdict();
}
