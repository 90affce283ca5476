// A garbage collector's write barrier: pages are made read-only, a SIGSEGV handler notes the write and allows it.
#include "behaviour.h"
enum { PAGES = 16384 };
static char *data;
static unsigned char dirty[PAGES];
static volatile long faults;
static void barrier(int number, siginfo_t *info, void *context) {
    size_t page = ((char *)info->si_addr - data) / PAGE;
    if (page >= PAGES || dirty[page]) _exit(98);
    dirty[page] = 1;
    faults++;
    if (mprotect(data + page * PAGE, PAGE, PROT_READ | PROT_WRITE)) _exit(97);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = barrier, .sa_flags = SA_SIGINFO};
    must(sigaction(SIGSEGV, &action, 0));
    data = pages(PAGES * PAGE);
    fill(data, PAGES * PAGE, 1);
    u64 x = 88172645463325252ul;
    for (int round = 0; round < 3; round++) {
        must(mprotect(data, PAGES * PAGE, PROT_READ));
        memset(dirty, 0, sizeof dirty);
        for (int i = 0; i < 2000; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            u64 *at = (u64 *)(data + x % PAGES * PAGE);
            *at = *at;
        }
        thrash();
        check("round", wrong(data, PAGES * PAGE, 1));
    }
    must(mprotect(data, PAGES * PAGE, PROT_READ | PROT_WRITE));
    printf("%ld writes noticed\n", faults);
    return verdict();
}
