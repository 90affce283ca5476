// A SIGSEGV handler on an alternate stack in far memory maps, allows or fills what is missing, or jumps out, in several threads.
#include "behaviour.h"

enum { THREADS = 3 };
static char *reserved;
static size_t bytes = 64 * MIB, step = 64 * 1024;
static __thread sigjmp_buf away;
static __thread int jump;
static int handled;

static void on_fault(int number, siginfo_t *info, void *context) {
    char *at = (char *)((u64)info->si_addr / step * step);
    if (jump) siglongjmp(away, 1);
    if (at < reserved || at >= reserved + bytes) _exit(98);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    size_t piece = (at - reserved) / step;
    // Whoever comes second finds it done: the access is simply tried again.
    if (piece % 2) must(mprotect(at, step, PROT_READ | PROT_WRITE));
    else if (mmap(at, step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) _exit(97);
}

static void *work(void *of) {
    size_t own = (size_t)of, room = 64 * 1024;
    stack_t stack = {.ss_sp = pages(room), .ss_size = room};
    must(sigaltstack(&stack, 0));
    for (size_t at = own * step; at < bytes; at += THREADS * step) fill(reserved + at, step, at);
    return 0;
}

static void *jumper(void *of) {
    size_t room = 64 * 1024;
    stack_t stack = {.ss_sp = pages(room), .ss_size = room};
    must(sigaltstack(&stack, 0));
    char *closed = mmap(0, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long jumps = 0;
    for (volatile int i = 0; i < 3000; i++) {
        jump = 1;
        if (sigsetjmp(away, 1)) jumps++;
        else closed[i * 331 % MIB] = 1;
        jump = 0;
    }
    return (void *)jumps;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    must(sigaction(SIGSEGV, &action, 0));
    reserved = mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_t threads[THREADS + 1];
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)i);
    pthread_create(&threads[THREADS], 0, jumper, 0);
    thrash_by(64 * MIB);
    void *jumps;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    pthread_join(threads[THREADS], &jumps);
    printf("handled %d, jumps %ld\n", handled, (long)jumps);
    thrash_by(64 * MIB);
    size_t bad = 0;
    for (size_t at = 0; at < bytes; at += step) bad += wrong(reserved + at, step, at);
    check("memory", bad);
    return verdict();
}
