// Mutexes with priority inheritance, and robust ones, in memory that is far between their uses; many threads contend.
#include "behaviour.h"

enum { MUTEXES = 32, THREADS = 4, ROUNDS = 400 };
struct cell {
    pthread_mutex_t mutex;
    long count;
    char rest[PAGE - sizeof(pthread_mutex_t) - 8];
};
static struct cell *cells;
static volatile int over;

static void *work(void *number) {
    unsigned seed = (long)number + 1;
    long bad = 0;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 1103515245 + 12345;
        struct cell *cell = cells + (seed >> 16) % MUTEXES;
        int error = pthread_mutex_lock(&cell->mutex);
        if (error == EOWNERDEAD) pthread_mutex_consistent(&cell->mutex);
        else bad += error != 0;
        long before = cell->count;
        if (i % 16 == 0) sched_yield();
        cell->count = before + 1;
        bad += pthread_mutex_unlock(&cell->mutex) != 0;
    }
    return (void *)bad;
}

static void *cold(void *unused) {
    while (!over) madvise(cells, MUTEXES * PAGE, MADV_PAGEOUT), usleep(300);
    return 0;
}

int main(void) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    for (int kind = 0; kind < 3; kind++) {
        cells = pages(MUTEXES * PAGE);
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        if (kind != 1) pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
        if (kind != 0) pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        for (int i = 0; i < MUTEXES; i++) pthread_mutex_init(&cells[i].mutex, &attributes);
        pthread_t threads[THREADS], advisor;
        over = 0;
        pthread_create(&advisor, 0, cold, 0);
        for (long i = 0; i < THREADS; i++) pthread_create(threads + i, 0, work, (void *)i);
        long bad = 0, sum = 0;
        for (int i = 0; i < THREADS; i++) {
            void *one;
            pthread_join(threads[i], &one);
            bad += (long)one;
        }
        over = 1;
        pthread_join(advisor, 0);
        for (int i = 0; i < MUTEXES; i++) sum += cells[i].count;
        check(kind == 0 ? "inheritance" : kind == 1 ? "robust" : "both", bad + labs(sum - THREADS * ROUNDS));
    }
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
