// What the test programs share: a check that says where it failed, and a way to tell managed memory from other memory.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            _exit(1); \
        } \
    } while (0)

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

// Only managed memory refuses to be wiped in a child.
static inline int is_managed(const void *address) {
    void *page = (void *)((uintptr_t)address & ~(uintptr_t)4095);
    if (madvise(page, 4096, 18 /* MADV_WIPEONFORK */) == 0) {
        madvise(page, 4096, 19 /* MADV_KEEPONFORK */);
        return 0;
    }
    CHECK(errno == EINVAL);
    return 1;
}

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

// Fills with numbers that follow from `seed` and the place; `len` in bytes.
static inline void fill(void *start, size_t len, uint64_t seed) {
    uint64_t *words = start;
    for (size_t i = 0; i < len / 8; i++) words[i] = mix(seed + i);
}

static inline int is_filled(const void *start, size_t len, uint64_t seed) {
    const uint64_t *words = start;
    for (size_t i = 0; i < len / 8; i++)
        if (words[i] != mix(seed + i)) return 0;
    return 1;
}

static inline int is_zero(const void *start, size_t len) {
    const unsigned char *bytes = start;
    for (size_t i = 0; i < len; i++)
        if (bytes[i]) return 0;
    return 1;
}

static inline void *map_rw(size_t len) {
    void *start = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(start != MAP_FAILED);
    return start;
}

// Whether a read (or a write) of the byte at `address` ends a process; tried in a child.
static inline int is_fatal(volatile char *address, int writes) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        if (writes) *address = 1; else (void)*address;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) || (WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS)));
    return WIFSIGNALED(status);
}

// Whether nothing of the byte's old content can be had: the access ends a process, or reads zero (an unmapped part of an extent that is
// otherwise in use stays readable).
static inline int is_gone(const char *address) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile const char *)address != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) || WEXITSTATUS(status) == 0;
}
