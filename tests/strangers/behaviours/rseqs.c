// Threads on stacks of far memory, where the C library's thread area lies that the kernel writes to (rseq, the thread's id, robust lists).
#include "behaviour.h"
#include <sys/rseq.h>

enum { THREADS = 24 };
static pthread_barrier_t barrier;
static volatile int over;

static void *work(void *of) {
    long number = (long)of;
    size_t bad = 0;
    cpu_set_t one;
    for (int turn = 0; turn < 6; turn++) {
        CPU_ZERO(&one);
        CPU_SET((number + turn) % 2, &one);
        int pinned = sched_setaffinity(0, sizeof one, &one) == 0;
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        unsigned cpu = ~0u;
        syscall(SYS_getcpu, &cpu, 0, 0);
        struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
        if (__rseq_size && pinned) bad += area->cpu_id != cpu || area->cpu_id_start != cpu;
        bad += (unsigned)sched_getcpu() != cpu && pinned;
        bad += gettid() != syscall(SYS_gettid);
    }
    return (void *)bad;
}

int main(void) {
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) skip("one processor");
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (long i = 0; i < THREADS; i++) {
        pthread_attr_t how;
        pthread_attr_init(&how);
        must(pthread_attr_setstack(&how, pages(MIB), MIB) ? -1 : 0);
        must(pthread_create(&threads[i], &how, work, (void *)i) ? -1 : 0);
    }
    for (int turn = 0; turn < 6; turn++) {
        pthread_barrier_wait(&barrier);
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
    return verdict();
}
