// A storm of signals while memory is mapped, allocated and freed. The handler touches managed memory and maps some.
#include "check.h"

static volatile int stop;
static volatile long handled;
static unsigned char *touched;

static void handler(int signal) {
    (void)signal;
    int saved = errno;
    long n = handled;
    touched[(mix(n) % (8 * MIB))] += 1;
    unsigned char *p = mmap(NULL, 256 * KIB, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED);
    p[n % (256 * KIB)] = 1;
    CHECK(munmap(p, 256 * KIB) == 0);
    handled = n + 1;
    errno = saved;
}

static pthread_t target;

static void *storm(void *argument) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!stop) {
        pthread_kill(target, SIGUSR1);
        sched_yield();
    }
    return argument;
}

int main(void) {
    touched = map_rw(8 * MIB);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    target = pthread_self();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, storm, NULL) == 0);
    uint64_t seed = 0;
    // Enough rounds, and enough interruptions for the storm to have been one.
    for (long round = 0; round < 3000 || handled < 3000; round++) {
        size_t size = mix(seed++) % (1 * MIB) + 128 * KIB;
        char *p = map_rw(size), *q = malloc(size);
        fill(p, 4096, round);
        fill(q, 4096, round);
        if (round % 3 == 0) CHECK(madvise(p, size, MADV_DONTNEED) == 0 && is_zero(p, 4096));
        if (round % 5 == 0) {
            p = mremap(p, size, 2 * size, MREMAP_MAYMOVE);
            CHECK(p != MAP_FAILED);
            size *= 2;
        }
        if (round % 3) CHECK(is_filled(p, 4096, round));
        CHECK(is_filled(q, 4096, round) && munmap(p, size) == 0);
        free(q);
        if (round % 500 == 0) {
            pid_t child = fork();
            if (child == 0) {
                fill(touched, 4096, 1);
                _exit(is_filled(touched, 4096, 1) ? 0 : 1);
            }
            int status;
            while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    puts("ok");
}
