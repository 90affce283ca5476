// What the test programs share: a check that says where it failed, and a way to tell managed memory from other memory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

// Only managed memory is watched for pages that are missing: the kernel says so in the flags of the mapping.
static inline int is_managed(const void *address) {
    static _Thread_local char text[1 << 16];
    int maps = open("/proc/self/smaps", O_RDONLY);
    CHECK(maps >= 0);
    size_t kept = 0;
    int inside = 0, managed = -1;
    for (ssize_t got; managed < 0 && (got = read(maps, text + kept, sizeof text - 1 - kept)) > 0;) {
        text[kept += got] = 0;
        char *line = text, *end;
        for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            unsigned long from, to;
            *end = 0;
            if (sscanf(line, "%lx-%lx ", &from, &to) == 2 && strncmp(line, "VmFlags", 7) != 0)
                inside = from <= (uintptr_t)address && (uintptr_t)address < to;
            else if (inside && managed < 0 && strncmp(line, "VmFlags", 7) == 0)
                managed = strstr(line, " um") != NULL;
        }
        memmove(text, line, kept -= line - text);
    }
    close(maps);
    return managed == 1;
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
