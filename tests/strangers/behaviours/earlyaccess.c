// A process that is still small reserves, commits, protects and replaces memory, in threads and children; then it grows.
#include "behaviour.h"

enum { THREADS = 3, TURNS = 1500, PAGES = 700, RUN = 60 };

// What is at a page.
enum state { RESERVED, WRITABLE, READABLE, HIDDEN, FOREIGN, UNMAPPED };

struct area {
    char *at;
    unsigned char state[PAGES], unforked[PAGES], is_child;
    u64 salt[PAGES]; // 0: zeros
};

static size_t bad;
static int file;
static __thread u64 state;
static __thread sigjmp_buf back;

static size_t chance(size_t limit) {
    u64 x = state += 0x9e3779b97f4a7c15ul;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ul;
    return (x ^ x >> 27) % limit;
}

static void on_signal(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static void count(size_t wrong_words) {
    if (wrong_words) __atomic_fetch_add(&bad, wrong_words, __ATOMIC_RELAXED);
}

static int can_read(volatile char *at) {
    if (sigsetjmp(back, 1)) return 0;
    (void)*at;
    return 1;
}

static int can_write(volatile char *at) {
    if (sigsetjmp(back, 1)) return 0;
    *at = *at;
    return 1;
}

static void verify(struct area *a, size_t page) {
    char *at = a->at + page * PAGE;
    int of = a->state[page];
    // In its place may be another thread's mapping.
    if (of == UNMAPPED) return;
    int readable = of == WRITABLE || of == READABLE || of == FOREIGN;
    if (can_read(at) != readable) return count(1000000);
    if (of != FOREIGN && can_write(at) != (of == WRITABLE)) return count(1000);
    if (readable) count(a->salt[page] ? wrong(at, PAGE, a->salt[page]) : nonzero(at, PAGE));
}

static void set(struct area *a, size_t page, size_t end, int of, int empties) {
    for (; page < end; page++) {
        a->state[page] = of;
        if (empties) a->salt[page] = a->unforked[page] = 0;
    }
}

// Whether all pages are mapped, and whether something else is among them.
static int is_ours(struct area *a, size_t page, size_t end) {
    for (; page < end; page++)
        if (a->state[page] == UNMAPPED || a->state[page] == FOREIGN) return 0;
    return 1;
}

static void protect(struct area *a, size_t page, size_t end, int prot, int of) {
    if (!is_ours(a, page, end)) return;
    must(mprotect(a->at + page * PAGE, (end - page) * PAGE, prot));
    for (; page < end; page++) a->state[page] = of;
}

static void map_over(struct area *a, size_t page, size_t end, int prot, int of) {
    for (size_t i = page; i < end; i++)
        if (a->state[i] == UNMAPPED) return;
    void *at = a->at + page * PAGE;
    if (of == FOREIGN && chance(2)) {
        must(mmap(at, (end - page) * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file, page * PAGE));
        set(a, page, end, of, 1);
        for (; page < end; page++) a->salt[page] = 1000 + page;
        return;
    }
    int kind = of == FOREIGN ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
    must(mmap(at, (end - page) * PAGE, prot, kind | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    set(a, page, end, of, 1);
}

static void turn(struct area *a) {
    size_t page = chance(PAGES), end = page + 1 + chance(RUN);
    if (end > PAGES) end = PAGES;
    char *at = a->at + page * PAGE;
    switch (chance(16)) {
    case 0: case 1: protect(a, page, end, PROT_READ | PROT_WRITE, WRITABLE); break;
    case 2: protect(a, page, end, PROT_READ, READABLE); break;
    case 3: protect(a, page, end, PROT_NONE, HIDDEN); break;
    case 4: case 5: map_over(a, page, end, PROT_READ | PROT_WRITE, WRITABLE); break;
    case 6: map_over(a, page, end, PROT_NONE, RESERVED); break;
    case 7: map_over(a, page, end, PROT_READ, READABLE); break;
    case 8: if (chance(3) == 0) map_over(a, page, end, PROT_READ | PROT_WRITE, FOREIGN); break;
    case 9:
        if (is_ours(a, page, end)) {
            must(madvise(at, (end - page) * PAGE, MADV_DONTNEED));
            for (size_t i = page; i < end; i++) a->salt[i] = 0;
        }
        break;
    case 10:
        if (chance(40) == 0) {
            must(munmap(at, PAGE));
            set(a, page, page + 1, UNMAPPED, 1);
        }
        break;
    case 11:
        if (is_ours(a, page, end) && chance(3) == 0) {
            int on = chance(3) > 0;
            must(madvise(at, (end - page) * PAGE, on ? MADV_DONTFORK : MADV_DOFORK));
            for (; page < end; page++) a->unforked[page] = on;
        }
        break;
    case 12: for (; page < end; page++) verify(a, page); break;
    default:
        for (; page < end; page++)
            if (a->state[page] == WRITABLE) fill(a->at + page * PAGE, PAGE, a->salt[page] = 1 + chance(900));
    }
}

static void make(struct area *a) {
    memset(a, 0, sizeof *a);
    // Aligned, as allocators do it: more is reserved, and what is in front and behind is given back.
    size_t bytes = PAGES * PAGE, align = chance(2) ? 2 * MIB : 64 * 1024;
    char *all = (char *)must(mmap(0, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    a->at = (char *)(((size_t)all + align - 1) & -align);
    if (a->at > all) must(munmap(all, a->at - all));
    if (a->at + bytes < all + bytes + align) must(munmap(a->at + bytes, all + align - a->at));
}

static void verify_all(struct area *a) {
    for (size_t page = 0; page < PAGES; page++) verify(a, page);
}

static void *work(void *number) {
    struct area *a = malloc(sizeof *a);
    state = (size_t)number;
    make(a);
    for (int i = 0; i < TURNS; i++) turn(a);
    verify_all(a);
    free(a);
    return 0;
}

static void in_threads(size_t salt) {
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)(salt + i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
}

static void in_child(struct area *a) {
    int child = must(fork());
    if (child == 0) {
        for (size_t page = 0; page < PAGES; page++) {
            if (!a->unforked[page]) continue;
            if (can_read(a->at + page * PAGE)) count(100000);
            a->state[page] = UNMAPPED;
        }
        verify_all(a);
        for (int i = 0; i < TURNS; i++) turn(a);
        verify_all(a);
        if (chance(2)) thrash();
        for (int i = 0; i < TURNS; i++) turn(a);
        verify_all(a);
        if (bad) fprintf(stderr, "child: %zu\n", bad);
        _exit(bad != 0);
    }
    count(ended(child));
}

int main(int argc, char **argv) {
    static struct area a;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    file = must(memfd_create("content", 0));
    must(ftruncate(file, PAGES * PAGE));
    char *content = (char *)must(mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    for (size_t page = 0; page < PAGES; page++) fill(content + page * PAGE, PAGE, 1000 + page);
    if (sbrk(0) != sbrk(0)) count(1);
    state = argc > 1 ? atoi(argv[1]) : 5;
    make(&a);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < TURNS; i++) turn(&a);
        in_child(&a);
    }
    in_threads(100);
    verify_all(&a);
    check("small", bad);
    // It grows, and everything stays as it is.
    thrash();
    verify_all(&a);
    check("grown", bad);
    char *end = sbrk(0), *more = sbrk(3 * MIB);
    if (more != end) count(1);
    fill(more, 3 * MIB, 7);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < TURNS; i++) turn(&a);
        in_child(&a);
        thrash();
    }
    in_threads(200);
    verify_all(&a);
    count(wrong(more, 3 * MIB, 7));
    brk(more + MIB);
    count(wrong(more, MIB, 7));
    check("content", bad);
    return verdict();
}
