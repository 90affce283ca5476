// A virtual machine's signal handlers change registers: null checks that skip code, safepoints by a page that is protected, reads from far memory.
#include "behaviour.h"
#include <ucontext.h>

static volatile long skipped, polled;
static char *page;

static void handler(int number, siginfo_t *info, void *context) {
    ucontext_t *state = context;
    if ((u64)info->si_addr < PAGE) {
        // mov (%rax),%rbx is three bytes long.
        state->uc_mcontext.gregs[REG_RIP] += 3;
        state->uc_mcontext.gregs[REG_RBX] = 77;
        skipped++;
    } else if (info->si_addr == page) {
        polled++;
        mprotect(page, PAGE, PROT_READ);
    } else {
        _exit(90);
    }
}

static long load(void *from) {
    long value;
    __asm__ volatile("mov (%%rax),%%rbx" : "=b"(value) : "a"(from) : "memory");
    return value;
}

int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    page = pages(PAGE * 64);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    size_t bad = 0;
    for (int round = 0; round < 4; round++) {
        for (size_t at = 0; at < bytes; at += 16 * PAGE) {
            bad += load(data + at) != (long)word(at / 8, 1);
            if (at % (256 * PAGE) == 0) {
                bad += load(0) != 77;
                must(mprotect(page, PAGE, PROT_NONE));
                bad += load(page) != 0;
            }
        }
        thrash_by(48 * MIB);
    }
    printf("%ld skipped, %ld polled\n", skipped, polled);
    check("values", bad);
    return verdict();
}
