// What the parts of `mixture` share: chance by a seed, regions whose content is known, and what is said about a wrong byte.
#include "behaviour.h"
#include <malloc.h>

enum { WORKERS = 4, BLOCKS = 24, KINDS_MAX = 40, WORDS = PAGE / 8 };

// Memory whose content is known page by page.
struct region {
    const char *name;
    char *at;
    size_t pages;
    // What each page was filled with; 0: it is zeros. These are in static memory, which is not far.
    u64 *salts;
};

struct range {
    size_t first, count;
};

struct block {
    u64 *at, salt;
    size_t words;
};

struct worker {
    int number;
    u64 state, operation, fills, counts[KINDS_MAX];
    const char *kind;
    // Another process than the first: a child, or a child's child.
    int depth;
    struct region own, other, moving, fresh;
    struct block blocks[BLOCKS];
};

static u64 seed;
static struct worker workers[WORKERS + 1];
static __thread struct worker *me;
static struct region readonly, ticked;
static volatile int over;
// Who plays with the numbers of descriptors holds it for writing, whoever has a file open for reading.
static pthread_rwlock_t descriptors;
static u64 salts_room[1 << 16];
static size_t salts_used;

static u64 next_random(void) {
    u64 x = me->state += 0x9e3779b97f4a7c15ul;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ul;
    x = (x ^ x >> 27) * 0x94d049bb133111ebul;
    return x ^ x >> 31;
}

static size_t chance(size_t limit) { return next_random() % limit; }

// Without stdio, whose locks another thread may hold in the moment of a fork.
__attribute__((format(printf, 1, 2))) static void finish(const char *format, ...) {
    char text[1200];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (write(1, text, length) < 0) _exit(98);
    _exit(1);
}

static u64 inverse(u64 odd) {
    u64 x = odd;
    for (int i = 0; i < 6; i++) x *= 2 - odd * x;
    return x;
}

// With what salt word() makes this: it tells who has written it and when.
static u64 salt_of(u64 found, size_t index) {
    u64 x = found * inverse(0xbf58476d1ce4e5b9ul);
    x ^= x >> 29 ^ x >> 58;
    return (x - (index + 1) * 0x9ff51afd7ed558ccul) * inverse(0x2545f4914f6cdd1dul);
}

static u64 expected(size_t index, u64 salt) { return salt ? word(index, salt) : 0; }

static const char *written_by(char *text, size_t room, u64 found, size_t index) {
    u64 salt = salt_of(found, index), who = salt >> 48;
    if (found == 0) snprintf(text, room, "zeros");
    else if (who < 1 || who % 16 > WORKERS + 1 || who > 200) snprintf(text, room, "nobody");
    else snprintf(text, room, "worker %lu, depth %lu, operation %lu, fill %lu", who % 16 - 1, who / 16, salt >> 16 & 0xffffffff, salt & 0xffff);
    return text;
}

static void wrong_word(const char *name, const u64 *start, const u64 *words, size_t count, size_t index, u64 salt) {
    char meant[80], there[80];
    u64 found = words[index];
    size_t bad = 0, zero = 0;
    for (size_t i = 0; i < count; i++) {
        bad += words[i] != expected(i, salt);
        zero += words[i] == 0;
    }
    usleep(100000);
    finish("mixture: wrong: kind %s, seed %lu, worker %d, operation %lu, depth %d, region %s at %p, offset %#lx: expected %016lx (%s), found %016lx (%s), "
           "%016lx a moment later; %zu of %zu words of this piece are wrong, %zu are zero\n", me->kind, seed, me->number, me->operation, me->depth, name,
           (void *)start, (u64)((char *)&words[index] - (char *)start), expected(index, salt), written_by(meant, 80, expected(index, salt), index), found,
           written_by(there, 80, found, index), *(volatile u64 *)&words[index], bad, count, zero);
}

static void verify_words(const char *name, const u64 *start, const u64 *words, size_t count, u64 salt) {
    for (size_t i = 0; i < count; i++)
        if (words[i] != expected(i, salt)) wrong_word(name, start, words, count, i, salt);
}

static char *place(struct region *r, size_t page) { return r->at + page * PAGE; }

static void verify(struct region *r, struct range x) {
    for (size_t i = x.first; i < x.first + x.count; i++) verify_words(r->name, (u64 *)r->at, (u64 *)place(r, i), WORDS, r->salts[i]);
}

static u64 next_salt(void) {
    return (u64)(me->number + 1 + 16 * me->depth) << 48 | (me->operation & 0xffffffff) << 16 | (++me->fills & 0xffff);
}

static void rewrite(struct region *r, struct range x) {
    for (size_t i = x.first; i < x.first + x.count; i++) fill(place(r, i), PAGE, r->salts[i] = next_salt());
}

static void are_zero(struct region *r, struct range x) { memset(&r->salts[x.first], 0, x.count * sizeof(u64)); }

static struct range all(struct region *r) { return (struct range){0, r->pages}; }

static struct range some(struct region *r, size_t most) {
    size_t count = 1 + chance(most < r->pages ? most : r->pages);
    return (struct range){chance(r->pages - count + 1), count};
}

// Room for the salts of a region; the memory comes from mmap.
static void make(struct region *r, const char *name, size_t count) {
    r->name = name;
    r->pages = count;
    r->salts = &salts_room[salts_used];
    salts_used += count;
    r->at = pages(count * PAGE);
}

static void failed(const char *call, long got, long wanted, int line) {
    int error = errno;
    finish("mixture: failed: kind %s, seed %lu, worker %d, operation %lu, depth %d, line %d: %s gives %ld (%s), wanted %ld\n", me->kind, seed, me->number,
           me->operation, me->depth, line, call, got, strerror(error), wanted);
}

#define want(call, wanted)                                                                                 \
    ({                                                                                                     \
        long got_ = (long)(call), wanted_ = (long)(wanted);                                                \
        if (got_ != wanted_) failed(#call, got_, wanted_, __LINE__);                                       \
    })

// What must not be -1.
#define need(call)                                                                                         \
    ({                                                                                                     \
        long need_ = (long)(call);                                                                         \
        if (need_ == -1) failed(#call, need_, 0, __LINE__);                                                \
        need_;                                                                                             \
    })

// Past the C library, as the runtimes of other languages do it.
static long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long fourth asm("r10") = d, fifth asm("r8") = e, sixth asm("r9") = f;
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth) : "rcx", "r11", "memory");
    if (result >= 0 || result < -4095) return result;
    errno = -result;
    return -1;
}

// A system call in one of two ways: by the instruction, or by syscall() of the C library.
static long called(long number, long a, long b, long c, long d, long e, long f) {
    return chance(2) ? raw(number, a, b, c, d, e, f) : syscall(number, a, b, c, d, e, f);
}
#define call(number, a, b, c, d, e, f) called(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

// Other work, in which memory that is lent to the kernel may leave.
static void idle(void) {
    verify(&me->own, some(&me->own, 256));
    usleep(chance(4) * 300);
    rewrite(&me->moving, some(&me->moving, 64));
}
