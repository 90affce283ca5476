// Mappings of a process that is still small grow, shrink, move and get holes, in threads and children; then it grows.
#include "behaviour.h"
#include <malloc.h>

enum { THREADS = 3, TURNS = 400, KEPT = 6, LONGEST = 160 };

static size_t bad;
static __thread u64 state;

static size_t chance(size_t limit) {
    u64 x = state += 0x9e3779b97f4a7c15ul;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ul;
    return (x ^ x >> 27) % limit;
}

struct piece {
    char *at;
    size_t count, salt, hole;
};

static void verify(struct piece *p) {
    size_t count = p->hole ? p->hole : p->count;
    if (p->at) __atomic_fetch_add(&bad, wrong(p->at, count * PAGE, p->salt), __ATOMIC_RELAXED);
}

static void drop(struct piece *p) {
    if (!p->at) return;
    verify(p);
    must(munmap(p->at, p->count * PAGE));
    p->at = 0;
}

static void make(struct piece *p, size_t most) {
    *p = (struct piece){.count = 32 + chance(most), .salt = 1 + chance(1000)};
    p->at = pages(p->count * PAGE);
    fill(p->at, p->count * PAGE, p->salt);
}

static void resize(struct piece *p, size_t count, int flags) {
    char *new = mremap(p->at, p->count * PAGE, count * PAGE, flags);
    if (new == MAP_FAILED) return;
    size_t kept = count < p->count ? count : p->count;
    __atomic_fetch_add(&bad, wrong(new, kept * PAGE, p->salt) + nonzero(new + kept * PAGE, (count - kept) * PAGE), __ATOMIC_RELAXED);
    p->at = new, p->count = count;
    fill(p->at, p->count * PAGE, p->salt);
}

static void turn(struct piece *p, size_t longest) {
    if (!p->at) return make(p, longest);
    size_t of = chance(8);
    if (of == 0) drop(p);
    if (of < 3 && p->at && !p->hole && p->count < 2 * longest) resize(p, p->count + 1 + chance(p->count), of == 1 ? MREMAP_MAYMOVE : 0);
    if (of == 3 && !p->hole && p->count > 40) resize(p, p->count - 1 - chance(p->count / 2), 0);
    if (of == 4 && p->count > 40 && !p->hole) {
        // A hole, which stays; what is behind it goes with the rest.
        p->hole = 16 + chance(p->count / 3);
        must(munmap(p->at + p->hole * PAGE, PAGE));
    }
    if (of == 5) verify(p);
    if (of == 6 && p->hole == 0 && p->count > 40) {
        // Trimmed in front, as who wants aligned memory does.
        size_t less = 1 + chance(8);
        must(munmap(p->at, less * PAGE));
        p->at += less * PAGE, p->count -= less;
        fill(p->at, p->count * PAGE, p->salt);
    }
}

static void *work(void *number) {
    struct piece kept[KEPT] = {0};
    state = (size_t)number;
    for (int i = 0; i < TURNS; i++) turn(&kept[chance(KEPT)], LONGEST);
    for (int i = 0; i < KEPT; i++) drop(&kept[i]);
    return 0;
}

static void in_threads(void) {
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
}

// Large blocks of malloc, which are mappings too.
static void blocks(void) {
    size_t bytes = 17 * MIB;
    char *block = malloc(bytes);
    fill(block, bytes, 3);
    block = realloc(block, bytes + 5 * MIB);
    bad += wrong(block, bytes, 3);
    block = realloc(block, bytes);
    char *other = aligned_alloc(2 * MIB, 2 * MIB);
    if ((size_t)other % (2 * MIB)) bad++;
    fill(other, 2 * MIB, 4);
    bad += wrong(block, bytes, 3) + wrong(other, 2 * MIB, 4);
    free(other);
    free(block);
    block = calloc(1, bytes);
    bad += nonzero(block, bytes);
    free(block);
}

int main(void) {
    struct piece kept[KEPT] = {0};
    state = 77;
    for (int i = 0; i < TURNS; i++) turn(&kept[chance(KEPT)], LONGEST);
    int child = must(fork());
    if (child == 0) {
        for (int i = 0; i < TURNS; i++) turn(&kept[chance(KEPT)], LONGEST);
        in_threads();
        for (int i = 0; i < KEPT; i++) drop(&kept[i]);
        _exit(bad != 0);
    }
    for (int i = 0; i < TURNS; i++) turn(&kept[chance(KEPT)], LONGEST);
    int status = 0;
    must(waitpid(child, &status, 0));
    check("child", status);
    in_threads();
    blocks();
    // Larger and larger, until it is no longer small.
    for (size_t longest = LONGEST; longest < 20000; longest *= 2)
        for (int i = 0; i < 20; i++) turn(&kept[chance(KEPT)], longest);
    thrash();
    for (int i = 0; i < KEPT; i++) drop(&kept[i]);
    check("content", bad);
    return verdict();
}
