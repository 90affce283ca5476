// Processes that share the program's memory, and are no threads of it, are killed in the middle of its calls, 400 times.
#include "behaviour.h"

static int maps(void *unused) {
    for (;;) {
        char *some = mmap(0, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (some == MAP_FAILED) _exit(3);
        some[0] = 1;
        if (mprotect(some, PAGE, PROT_READ) || munmap(some, 256 << 10)) _exit(4);
    }
}

int main(void) {
    size_t bytes = 96 * MIB, stack_bytes = 256 << 10;
    char *data = pages(bytes), *stack = pages(stack_bytes);
    fill(data, bytes, 1);
    size_t odd = 0;
    for (int i = 0; i < 400; i++) {
        pid_t pid = must(clone(maps, stack + stack_bytes, CLONE_VM | SIGCHLD, 0));
        usleep(500 + i * 7 % 1000);
        must(kill(pid, SIGKILL));
        odd += ended(pid) != -SIGKILL;
    }
    check("ends", odd);
    check("data", wrong(data, bytes, 1));
    thrash();
    check("data", wrong(data, bytes, 1));
    return verdict();
}
