// Robust and priority-inheriting mutexes that have been far: their owners die, as threads and as processes, and the next one is told.
// They are not far in the moment of the death: the kernel does not let a thread that ends wait for a userfaultfd.
#include "behaviour.h"

enum { LOCKS = 256 };
static pthread_mutex_t *locks[LOCKS];

static pthread_mutex_t *made(char *at, int shared, int inherits) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&how, shared);
    pthread_mutexattr_setprotocol(&how, inherits ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
    pthread_mutex_init((void *)at, &how);
    return (void *)at;
}

static void *dies(void *of) {
    for (int i = 0; i < LOCKS; i++) pthread_mutex_lock(locks[i]);
    return 0;
}

static void *waits(void *of) {
    long told = 0;
    for (int i = 0; i < LOCKS; i++) {
        int error = pthread_mutex_lock(locks[i]);
        if (error == EOWNERDEAD) told++, pthread_mutex_consistent(locks[i]);
        pthread_mutex_unlock(locks[i]);
    }
    return (void *)told;
}

static void round_of(const char *name, int inherits) {
    char *at = pages(LOCKS * PAGE);
    for (int i = 0; i < LOCKS; i++) locks[i] = made(at + i * PAGE + i * 8 % 1024, PTHREAD_PROCESS_PRIVATE, inherits);
    thrash_by(64 * MIB);
    pthread_t one, two, three;
    void *told, *more;
    pthread_create(&one, 0, dies, 0);
    usleep(20000);
    pthread_create(&two, 0, waits, 0);
    pthread_create(&three, 0, waits, 0);
    pthread_join(one, 0);
    pthread_join(two, &told);
    pthread_join(three, &more);
    printf("%s: told %ld\n", name, (long)told + (long)more);
}

int main(void) {
    round_of("threads", 0);
    round_of("inheriting", 1);
    char *shared = (char *)must(mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < LOCKS; i++) locks[i] = made(shared + i * PAGE, PTHREAD_PROCESS_SHARED, i % 2);
    pid_t pid = must(fork());
    if (pid == 0) {
        for (int i = 0; i < LOCKS; i++) pthread_mutex_lock(locks[i]);
        thrash_by(64 * MIB);
        kill(getpid(), SIGKILL);
    }
    printf("child %d\n", ended(pid));
    printf("processes: told %ld\n", (long)waits(0));
    return verdict();
}
