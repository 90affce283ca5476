// Threads come and go by thousands, with memory of their own, are cancelled, and fork. usage: threads churn|cancel|fork|malloc
#include "behaviour.h"
static char *data;
static __thread char own[20000];
static volatile int over;
static void *one(void *given) {
    u64 salt = (u64)given;
    fill(own, sizeof own, salt);
    char *some = malloc(300000);
    fill(some, 300000, salt);
    size_t bad = wrong(own, sizeof own, salt) + wrong(some, 300000, salt);
    free(some);
    bad += wrong(data + salt % 60 * MIB, 0, 1);
    return (void *)bad;
}
static void *endless(void *given) {
    for (;;) {
        wrong(data, 64 * MIB, 1);
        pthread_testcancel();
    }
}
static void *worker(void *given) {
    size_t bad = 0;
    char *mine = pages(16 * MIB);
    while (!over) {
        fill(mine, 16 * MIB, (u64)given);
        bad += wrong(mine, 16 * MIB, (u64)given);
    }
    return (void *)bad;
}
static void *allocating(void *given) {
    u64 x = (u64)given * 7919 + 88172645463325252ul;
    size_t bad = 0;
    struct { char *at; size_t bytes; u64 salt; } held[200] = {};
    for (int i = 0; i < 4000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        int k = x % 200;
        if (held[k].at) bad += wrong(held[k].at, held[k].bytes, held[k].salt);
        size_t bytes = (x >> 20) % 10 ? (x >> 24) % 4000 * 8 : (x >> 24) % 400000 * 8;
        held[k].at = x & 1 << 10 ? realloc(held[k].at, bytes + 8) : (free(held[k].at), malloc(bytes + 8));
        held[k].bytes = bytes, held[k].salt = i;
        fill(held[k].at, bytes, i);
    }
    for (int k = 0; k < 200; k++)
        if (held[k].at) bad += wrong(held[k].at, held[k].bytes, held[k].salt), free(held[k].at);
    return (void *)bad;
}
int main(int count, char **given) {
    size_t bad = 0;
    data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    if (!strcmp(given[1], "churn")) {
        for (u64 i = 0; i < 2000; i += 4) {
            pthread_t threads[4];
            for (int k = 0; k < 4; k++) must(pthread_create(&threads[k], 0, one, (void *)(i + k)) ? -1 : 0);
            for (int k = 0; k < 4; k++) {
                void *result;
                pthread_join(threads[k], &result);
                bad += (size_t)result;
            }
        }
    } else if (!strcmp(given[1], "cancel")) {
        for (int i = 0; i < 20; i++) {
            pthread_t thread;
            pthread_create(&thread, 0, endless, 0);
            usleep(20000);
            pthread_cancel(thread);
            void *result;
            pthread_join(thread, &result);
            bad += result != PTHREAD_CANCELED;
        }
    } else if (!strcmp(given[1], "fork")) {
        pthread_t threads[3];
        for (u64 k = 0; k < 3; k++) pthread_create(&threads[k], 0, worker, (void *)k);
        for (int i = 0; i < 10; i++) {
            pid_t pid = must(fork());
            if (pid == 0) {
                char *some = malloc(MIB);
                fill(some, MIB, 3);
                _exit(wrong(data, 64 * MIB, 1) + wrong(some, MIB, 3) ? 1 : 4);
            }
            bad += ended(pid) != 4;
        }
        over = 1;
        for (int k = 0; k < 3; k++) {
            void *result;
            pthread_join(threads[k], &result);
            bad += (size_t)result;
        }
    } else {
        pthread_t threads[4];
        for (u64 k = 0; k < 4; k++) pthread_create(&threads[k], 0, allocating, (void *)k);
        for (int k = 0; k < 4; k++) {
            void *result;
            pthread_join(threads[k], &result);
            bad += (size_t)result;
        }
    }
    check("threads", bad);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
