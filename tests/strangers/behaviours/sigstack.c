// A stack overflows into its guard; the handler runs on an alternate stack, which is ordinary memory that was far.
#include "behaviour.h"
static sigjmp_buf back;
static volatile int count;
static void handler(int number, siginfo_t *info, void *context) {
    count++;
    siglongjmp(back, 1);
}
__attribute__((noinline)) static int deeper(volatile char *above) {
    volatile char here[65536];
    here[0] = above ? above[0] : 1;
    return deeper(here) + here[0];
}
int main(void) {
    stack_t stack = {.ss_sp = pages(MIB), .ss_size = MIB};
    must(sigaltstack(&stack, 0));
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    must(sigaction(SIGSEGV, &action, 0));
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    for (int i = 0; i < 3; i++) {
        thrash();
        if (!sigsetjmp(back, 1)) deeper(0);
    }
    printf("%d overflows\n", count);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
