// Reads and writes of PROT_NONE pages end in a SIGSEGV handler with the right address, which jumps away.
#include "behaviour.h"
static sigjmp_buf back;
static void *volatile where;
static volatile int code;
static void handler(int number, siginfo_t *info, void *context) {
    where = info->si_addr;
    code = info->si_code;
    siglongjmp(back, 1);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    must(sigaction(SIGSEGV, &action, 0));
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    int good = 0, maperr = 0;
    for (size_t at = 0; at < bytes; at += 4 * MIB) must(mprotect(data + at, PAGE, PROT_NONE));
    thrash();
    for (size_t at = 0; at < bytes; at += 4 * MIB) {
        if (!sigsetjmp(back, 1)) {
            if (at & (4 * MIB)) ((volatile char *)data)[at + 5] = 1;
            else (void)((volatile char *)data)[at + 5];
            printf("no fault\n");
        } else {
            good += where == data + at + 5 && code == SEGV_ACCERR;
        }
        must(mprotect(data + at, PAGE, PROT_READ | PROT_WRITE));
    }
    must(munmap(data + 8 * MIB, PAGE));
    if (!sigsetjmp(back, 1)) (void)((volatile char *)data)[8 * MIB];
    else maperr = code == SEGV_MAPERR ? 1 : code == SEGV_ACCERR ? 2 : 3;
    printf("%d guards, unmapped: %s\n", good, maperr == 1 ? "SEGV_MAPERR" : maperr == 2 ? "SEGV_ACCERR" : maperr ? "another code" : "no fault");
    check("before", wrong(data, 8 * MIB, 1));
    return verdict();
}
