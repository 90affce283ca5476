// Threads: stacks stay local, blocks are freed by other threads than allocated them, threads come and go.
#include "check.h"

enum { THREADS = 8, SLOTS = 512, ROUNDS = 20000 };

static _Atomic(uint64_t *) slots[SLOTS];

static void *exchange(void *argument) {
    char on_stack = 0;
    CHECK(!is_managed(&on_stack));
    uint64_t seed = (uintptr_t)argument << 32;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t r = mix(seed++);
        size_t words = 2 + r % (r % 64 == 0 ? 20000 : 60);
        uint64_t *mine = r & 1 ? malloc(words * 8) : calloc(words, 8);
        CHECK(mine);
        if (r % 7 == 0) CHECK((mine = realloc(mine, (words *= 2) * 8)));
        mine[0] = words;
        fill(mine + 1, (words - 1) * 8, words);
        uint64_t *other = atomic_exchange(&slots[r % SLOTS], mine);
        if (other) {
            CHECK(is_filled(other + 1, (other[0] - 1) * 8, other[0]));
            free(other);
        }
    }
    return malloc(100);
}

static void *big_stack(void *argument) {
    volatile char room[3 << 20];
    for (size_t i = 0; i < sizeof room; i += 4096) room[i] = 1;
    CHECK(!is_managed((char *)room) && !is_managed((char *)room + sizeof room - 1));
    return argument;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int generation = 0; generation < 4; generation++) {
        for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, exchange, (void *)(generation * THREADS + i)) == 0);
        for (int i = 0; i < THREADS; i++) {
            void *result;
            CHECK(pthread_join(threads[i], &result) == 0 && is_managed(result));
            free(result);
        }
    }
    for (int i = 0; i < 200; i++) {
        CHECK(pthread_create(&threads[0], NULL, big_stack, &threads) == 0);
        CHECK(pthread_join(threads[0], NULL) == 0);
    }
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 64 * MIB) == 0);
    CHECK(pthread_create(&threads[0], &attributes, big_stack, NULL) == 0 && pthread_join(threads[0], NULL) == 0);
    char on_main_stack = 0;
    CHECK(!is_managed(&on_main_stack));
    puts("ok");
}
