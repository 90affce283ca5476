// Hundreds of threads touch far memory at the same moment, in the same pages and in others, again and again.
#include "behaviour.h"

enum { THREADS = 300 };
static char *data;
static size_t bytes = 64 * MIB;
static pthread_barrier_t barrier;

static void *work(void *of) {
    size_t bad = 0, number = (size_t)of;
    for (int turn = 0; turn < 4; turn++) {
        pthread_barrier_wait(&barrier);
        for (size_t i = 0; i < 40; i++) {
            size_t page = (turn * 40 + i) * 97 % (bytes / PAGE), own = (page + number * 31) % (bytes / PAGE);
            bad += *(u64 *)(data + page * PAGE) != word(page * 512, 1) || *(u64 *)(data + own * PAGE + 8) != word(own * 512 + 1, 1);
        }
    }
    return (void *)bad;
}

int main(void) {
    data = pages(bytes);
    fill(data, bytes, 1);
    pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (long i = 0; i < THREADS; i++) must(pthread_create(&threads[i], &small, work, (void *)i) ? -1 : 0);
    for (int turn = 0; turn < 4; turn++) {
        thrash_by(64 * MIB);
        pthread_barrier_wait(&barrier);
    }
    size_t bad = 0;
    for (int i = 0; i < THREADS; i++) {
        void *of;
        pthread_join(threads[i], &of);
        bad += (size_t)of;
    }
    check("threads", bad);
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
