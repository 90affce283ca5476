// What the behaviours share: memory with a known content, pressure that makes it leave, and the count of what was wrong.
// A behaviour prints only what is the same in every run; exit code 77 says that this machine does not let it be tried.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
typedef uint64_t u64;

static int failures;

__attribute__((unused, format(printf, 1, 2))) static void skip(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
    _exit(77);
}

// Ends the program if something that every kernel does fails.
#define must(call)                                                                                         \
    ({                                                                                                     \
        long result_ = (long)(call);                                                                       \
        if (result_ == -1) {                                                                               \
            printf("%s: %s\n", #call, strerror(errno));                                                    \
            fflush(stdout);                                                                                \
            _exit(99);                                                                                     \
        }                                                                                                  \
        result_;                                                                                           \
    })

__attribute__((unused)) static void *pages(size_t bytes) {
    return (void *)must(mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static inline u64 word(size_t index, u64 salt) {
    u64 x = (index + 1) * 0x9ff51afd7ed558ccul + salt * 0x2545f4914f6cdd1dul;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9ul;
}

__attribute__((unused)) static void fill(void *at, size_t bytes, u64 salt) {
    u64 *words = at;
    for (size_t i = 0; i < bytes / 8; i++) words[i] = word(i, salt);
}

// How many words are not what fill() has written.
__attribute__((unused)) static size_t wrong(const void *at, size_t bytes, u64 salt) {
    const u64 *words = at;
    size_t count = 0;
    for (size_t i = 0; i < bytes / 8; i++) count += words[i] != word(i, salt);
    return count;
}

__attribute__((unused)) static size_t nonzero(const void *at, size_t bytes) {
    const u64 *words = at;
    size_t count = 0;
    for (size_t i = 0; i < bytes / 8; i++) count += words[i] != 0;
    return count;
}

// Other memory, several times the limit: whatever can leave leaves.
__attribute__((unused)) static void thrash_by(size_t bytes) {
    char *other = pages(bytes);
    fill(other, bytes, 99);
    if (wrong(other, bytes, 99)) {
        printf("thrash: wrong\n");
        failures++;
    }
    must(munmap(other, bytes));
}

__attribute__((unused)) static void thrash(void) { thrash_by(160 * MIB); }

// How many pages of a range are in the page table; of what is far none are.
__attribute__((unused)) static size_t present(const void *at, size_t bytes) {
    int file = must(open("/proc/self/pagemap", O_RDONLY));
    size_t count = 0;
    u64 entries[512];
    for (size_t first = (size_t)at / PAGE, end = ((size_t)at + bytes + PAGE - 1) / PAGE; first < end;) {
        size_t some = end - first < 512 ? end - first : 512;
        must(pread(file, entries, some * 8, first * 8));
        for (size_t i = 0; i < some; i++) count += entries[i] >> 63;
        first += some;
    }
    close(file);
    return count;
}

// Makes the pages of a range far, and says on standard error if some are not (natively none is).
__attribute__((unused)) static void evict(void *at, size_t bytes) {
    char *from = (char *)((size_t)at & -PAGE), *end = (char *)(((size_t)at + bytes + PAGE - 1) & -PAGE);
    size_t other = 32 * MIB, left = 1;
    for (int i = 0; i < 8 && left; i++) {
        // Advice is enough for what has not been used lately; other memory that is needed makes the rest leave.
        if (i) {
            char *pressure = pages(other);
            for (size_t k = 0; k < other; k += PAGE) *(size_t *)(pressure + k) = k + i;
            must(munmap(pressure, other));
        }
        madvise(from, end - from, MADV_PAGEOUT);
        left = present(from, end - from);
    }
    if (left) fprintf(stderr, "evict: %zu of %zu pages are not far\n", left, (end - from) / PAGE);
}

// Says that something is right or how many words are not.
__attribute__((unused)) static void check(const char *what, size_t bad) {
    if (bad) {
        printf("%s: %zu wrong\n", what, bad);
        failures++;
    } else {
        printf("%s: right\n", what);
    }
    fflush(stdout);
}

// Waits for a child and says how it ended.
__attribute__((unused)) static int ended(pid_t pid) {
    int status;
    must(waitpid(pid, &status, 0));
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

__attribute__((unused)) static int verdict(void) {
    fflush(stdout);
    return failures ? 1 : 0;
}
