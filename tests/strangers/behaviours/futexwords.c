// Futex operations, as system calls, on words that are far.
#include "behaviour.h"
#include <linux/futex.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
enum { WORDS = 64 };
static char *data;
static size_t bytes = 16 * MIB, apart = 256 * 1024;
static int bad, error;

static uint32_t *at(int i) { return (uint32_t *)(data + i * apart + 64); }

// All words are far when an operation begins.
static void begin(void) {
    bad = error = 0;
    evict(data, bytes);
}

static void done(long result, int right) {
    if (result < 0) error = errno;
    bad += result < 0 || !right;
}

static void end(const char *what) {
    if (error) printf("%s: %s\n", what, strerror(error));
    check(what, bad);
}

static long operation(int i, int what, void *value2, void *other, int value3) {
    return syscall(SYS_futex, at(i), what | FUTEX_PRIVATE_FLAG, 1, value2, other, value3);
}

int main(void) {
    data = pages(bytes);
    fill(data, bytes, 1);
    for (int i = 0; i < WORDS; i++) *at(i) = 0;

    begin();
    for (int i = 0; i < WORDS; i += 2) {
        long result = operation(i, FUTEX_WAKE_OP, (void *)1, at(i + 1), FUTEX_OP(FUTEX_OP_SET, 5, FUTEX_OP_CMP_EQ, 0));
        done(result, *at(i + 1) == 5);
    }
    end("wake and change");

    for (int i = 0; i < WORDS; i++) *at(i) = 0;
    begin();
    for (int i = 0; i < WORDS; i++) {
        long result = operation(i, FUTEX_LOCK_PI, 0, 0, 0);
        done(result, (*at(i) & FUTEX_TID_MASK) == gettid());
    }
    end("lock");

    begin();
    for (int i = 0; i < WORDS; i++) {
        long result = operation(i, FUTEX_UNLOCK_PI, 0, 0, 0);
        done(result, *at(i) == 0);
    }
    end("unlock");

    begin();
    for (int i = 0; i < WORDS; i++) {
        long result = operation(i, FUTEX_TRYLOCK_PI, 0, 0, 0);
        done(result, (*at(i) & FUTEX_TID_MASK) == gettid());
        operation(i, FUTEX_UNLOCK_PI, 0, 0, 0);
    }
    end("try to lock");

    begin();
    for (int i = 0; i < WORDS; i++) {
        long result = syscall(SYS_futex, at(i), FUTEX_WAIT, 0, &(struct timespec){0, 1000}, 0, 0);
        bad += result != -1 || errno != ETIMEDOUT;
    }
    end("wait, between processes");

    begin();
    for (int i = 0; i < WORDS; i += 2) done(operation(i, FUTEX_CMP_REQUEUE, (void *)1, at(i + 1), 0), 1);
    end("requeue");

    begin();
    struct { u64 value, word; uint32_t flags, reserved; } all[WORDS];
    for (int i = 0; i < WORDS; i++) all[i] = (typeof(all[i])){0, (u64)at(i), 2 | FUTEX_PRIVATE_FLAG, 0};
    // It is past when all words have been looked at.
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long result = syscall(SYS_futex_waitv, all, WORDS, 0, &until, CLOCK_MONOTONIC);
    printf("wait for all: %ld %s\n", result, strerror(errno));
    for (int i = 0; i < WORDS; i++) bad += *at(i) != 0;
    end("words");
    return verdict();
}
