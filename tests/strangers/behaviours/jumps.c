// A signal handler leaves mmap and munmap by siglongjmp, 200 times: to a program they are system calls, which this may be done in.
#include "behaviour.h"

enum { JUMPS = 200 };
static sigjmp_buf back;
static volatile int armed, jumps;

static void on_alarm(int number) {
    if (!armed) return;
    armed = 0;
    jumps++;
    siglongjmp(back, 1);
}

int main(void) {
    size_t bytes = 32 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm}, 0);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 700}, {0, 700}}, 0);
    while (jumps < JUMPS)
        if (sigsetjmp(back, 1) == 0) {
            armed = 1;
            for (;;) {
                char *some = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (some != MAP_FAILED) munmap(some, MIB);
            }
        }
    setitimer(ITIMER_REAL, &(struct itimerval){}, 0);
    printf("%d jumps\n", jumps);
    // Everything works as before.
    thrash_by(32 * MIB);
    pid_t pid = must(fork());
    if (pid == 0) _exit(wrong(data, bytes, 1) ? 9 : 6);
    printf("child %d\n", ended(pid));
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
