// Threads whose stacks the program has mapped itself hold data there while memory is short.
#include "behaviour.h"
enum { THREADS = 8 };
static pthread_barrier_t barrier;
static void *run(void *given) {
    volatile char deep[4 * MIB];
    u64 salt = (u64)given;
    fill((void *)deep, sizeof deep, salt);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return (void *)wrong((void *)deep, sizeof deep, salt);
}
int main(void) {
    pthread_t threads[THREADS];
    size_t bad = 0;
    must(pthread_barrier_init(&barrier, 0, THREADS + 1));
    for (u64 i = 0; i < THREADS; i++) {
        pthread_attr_t how;
        pthread_attr_init(&how);
        if (pthread_attr_setstack(&how, pages(8 * MIB), 8 * MIB)) return 1;
        if (pthread_create(&threads[i], &how, run, (void *)i)) return 1;
    }
    pthread_barrier_wait(&barrier);
    thrash();
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (size_t)result;
    }
    check("stacks", bad);
    return verdict();
}
