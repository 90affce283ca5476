// A timer's handler allocates, touches memory that is far, and calls mmap, while the program waits for far memory itself.
#include "behaviour.h"
static char *data;
static volatile long ticks;
static volatile int stopped;
static volatile size_t bad;
static u64 x = 88172645463325252ul;
static void tick(int number) {
    int before = errno;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    size_t at = x % (64 * MIB / PAGE) * PAGE / 8;
    bad += ((u64 *)data)[at] != word(at, 1);
    char *some = malloc(100000);
    memset(some, 1, 100000);
    free(some);
    char *more = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more != MAP_FAILED) {
        more[PAGE] = 1;
        munmap(more, MIB);
    }
    ticks++;
    // The next tick comes a while after this one has ended, however slow the machine is.
    struct itimerval soon = {{0, 0}, {0, stopped ? 0 : 1000}};
    setitimer(ITIMER_REAL, &soon, 0);
    errno = before;
}
int main(void) {
    data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    must(sigaction(SIGALRM, &action, 0));
    struct itimerval soon = {{0, 0}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    must(setitimer(ITIMER_REAL, &soon, 0));
    for (int i = 0; i < 3; i++) thrash();
    size_t mine = wrong(data, 64 * MIB, 1);
    stopped = 1;
    must(setitimer(ITIMER_REAL, &never, 0));
    check("handler", bad);
    check("memory", mine);
    if (ticks < 10) printf("few ticks\n");
    return verdict();
}
