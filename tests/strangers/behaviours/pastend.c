// A file is mapped into reserved address space and becomes shorter: SIGBUS, with the right address; then memory lies there again.
#include "behaviour.h"

static sigjmp_buf back;
static void *volatile at;
static volatile int code;
static void handler(int number, siginfo_t *info, void *context) {
    at = info->si_addr, code = info->si_code;
    siglongjmp(back, number);
}

static void touch(const char *what, volatile char *where, int write) {
    int number = sigsetjmp(back, 1);
    if (!number) {
        if (write) *where = 1;
        printf("%s: %d\n", what, *where);
    } else printf("%s: %s, %s, code %d\n", what, number == SIGBUS ? "SIGBUS" : "SIGSEGV", at == where ? "there" : "elsewhere", code);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    for (int large = 0; large < 2; large++) {
        char *data = 0, name[] = "past-XXXXXX";
        if (large) data = pages(64 * MIB), fill(data, 64 * MIB, 1), thrash();
        int file = must(mkstemp(name));
        unlink(name);
        must(ftruncate(file, MIB));
        char *base = (char *)must(mmap(0, 8 * MIB, large ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        must(mmap(base + MIB, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
        must(mmap(base + 2 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0));
        touch("shared", base + MIB + 9 * PAGE, 1);
        touch("private", base + 2 * MIB + 9 * PAGE, 1);
        must(ftruncate(file, 5 * PAGE));
        touch("shared past the end", base + MIB + 9 * PAGE, 0);
        touch("private past the end", base + 2 * MIB + 10 * PAGE, 1);
        touch("private, its own before", base + 2 * MIB + 9 * PAGE, 0);
        must(mmap(base + MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        fill(base + MIB, 2 * MIB, 4);
        must(mprotect(base + MIB, PAGE, PROT_READ));
        if (large) thrash();
        touch("read only", base + MIB + 8, 1);
        check("memory there", wrong(base + MIB, 2 * MIB, 4));
        if (large) check("memory", wrong(data, 64 * MIB, 1));
    }
    return verdict();
}
