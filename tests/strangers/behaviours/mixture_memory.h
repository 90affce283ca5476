// The kinds of `mixture` that work on memory: discards, protections, moves, locks, mappings past the C library, stacks.
#include <alloca.h>
#include <ucontext.h>

static struct shared {
    pthread_mutex_t lock;
    struct region region;
} shared[4];

static void do_read(void) { verify(&me->own, some(&me->own, 1024)); }

static void do_write(void) {
    struct range x = some(&me->own, 512);
    rewrite(&me->own, x);
    verify(&me->own, x);
}

static void do_shared(void) {
    struct shared *s = &shared[chance(4)];
    struct range x = some(&s->region, 256);
    pthread_mutex_lock(&s->lock);
    verify(&s->region, x);
    rewrite(&s->region, x);
    pthread_mutex_unlock(&s->lock);
}

// More than the limit that is never written again; sometimes the library's calls change nothing about that.
static void do_readonly(void) {
    struct range x = some(&readonly, 2048);
    if (chance(4) == 0) want(call(SYS_mprotect, place(&readonly, x.first), x.count * PAGE, PROT_READ, 0, 0, 0), 0);
    verify(&readonly, x);
}

static void do_discard(void) {
    struct range x = some(&me->own, chance(4) ? 32 : 1024);
    want(call(SYS_madvise, place(&me->own, x.first), x.count * PAGE, MADV_DONTNEED, 0, 0, 0), 0);
    are_zero(&me->own, x);
    if (chance(2)) verify(&me->own, x);
    if (chance(2)) rewrite(&me->own, x);
}

static void do_free(void) {
    struct region *r = &me->own;
    struct range x = some(r, 64);
    want(call(SYS_madvise, place(r, x.first), x.count * PAGE, MADV_FREE, 0, 0, 0), 0);
    usleep(chance(4) * 500);
    for (size_t i = x.first; i < x.first + x.count; i++) {
        // A write keeps the page as it is then: all of it old, or all of it zeros.
        volatile u64 *words = (u64 *)place(r, i);
        words[0] = 1;
        if (words[1] == 0) r->salts[i] = 0;
        words[0] = expected(0, r->salts[i]);
    }
    verify(r, x);
}

static void do_advice(void) {
    static const int kinds[] = {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, 22 /* POPULATE_READ */, 23 /* POPULATE_WRITE */, MADV_HUGEPAGE,
                                MADV_NOHUGEPAGE, MADV_RANDOM, MADV_SEQUENTIAL, MADV_NORMAL, 25 /* COLLAPSE */};
    int advice = kinds[chance(sizeof kinds / sizeof *kinds)];
    struct range x = some(&me->own, advice == 25 ? 2048 : 128);
    // Advice on huge pages and on what is cold may be refused; populating may not.
    long result = call(SYS_madvise, place(&me->own, x.first), x.count * PAGE, advice, 0, 0, 0);
    if (advice == 22 || advice == 23) want(result, 0);
    verify(&me->own, x);
    if (chance(2)) rewrite(&me->own, x);
}

static void do_protect(void) {
    struct region *r = &me->own;
    struct range x = some(r, 128);
    int none = chance(2);
    want(call(SYS_mprotect, place(r, x.first), x.count * PAGE, none ? PROT_NONE : PROT_READ, 0, 0, 0), 0);
    if (!none) verify(r, x);
    usleep(chance(4) * 500);
    // The kernel may not write there either.
    want(call(SYS_getrandom, place(r, x.first + chance(x.count)), 16, 0, 0, 0, 0), -1);
    want(errno, EFAULT);
    if (!none) verify(r, x);
    want(call(SYS_mprotect, place(r, x.first), x.count * PAGE, PROT_READ | PROT_WRITE, 0, 0, 0), 0);
    verify(r, x);
    rewrite(r, x);
}

// By the library or by syscall(): memory that is moved by the instruction cannot be followed.
static char *moved(char *from, size_t old, size_t bytes, int flags, char *to) {
    return (char *)(chance(2) ? need(mremap(from, old, bytes, flags, to)) : need(syscall(SYS_mremap, from, old, bytes, flags, to)));
}

static void do_move(void) {
    struct region *r = &me->moving;
    size_t bytes = r->pages * PAGE, half = 1 + chance(r->pages - 1);
    char *before = r->at;
    switch (chance(3)) {
    case 0:
        r->at = moved(before, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pages(bytes));
        break;
    case 1:
        r->at = moved(before, bytes, half * PAGE, 0, 0);
        r->at = moved(r->at, half * PAGE, bytes, MREMAP_MAYMOVE, 0);
        are_zero(r, (struct range){half, r->pages - half});
        break;
    default:
        r->at = moved(before, bytes, bytes, MREMAP_MAYMOVE | 4 /* DONTUNMAP */, 0);
        if (nonzero(before, bytes)) failed("what was moved is still there", nonzero(before, bytes), 0, __LINE__);
        need(munmap(before, bytes));
    }
    verify(r, all(r));
    rewrite(r, some(r, 256));
}

// A mapping that nobody else knows of, from the beginning to the end.
static void do_rawmap(void) {
    struct region *r = &me->fresh;
    size_t count = 32 + chance(224), bytes = count * PAGE;
    r->pages = count;
    r->at = (char *)need(raw(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    rewrite(r, all(r));
    struct range x = some(r, 64);
    want(raw(SYS_madvise, (long)place(r, x.first), x.count * PAGE, MADV_DONTNEED, 0, 0, 0), 0);
    are_zero(r, x);
    r->at = (char *)need(raw(SYS_mremap, (long)r->at, bytes, 2 * bytes, MREMAP_MAYMOVE, 0, 0));
    r->pages = 2 * count;
    are_zero(r, (struct range){count, count});
    x = some(r, 64);
    want(raw(SYS_mprotect, (long)place(r, x.first), x.count * PAGE, PROT_READ, 0, 0, 0), 0);
    idle();
    verify(r, all(r));
    want(raw(SYS_munmap, (long)r->at, 2 * bytes, 0, 0, 0, 0), 0);
}

// Something else takes the place of a part of a mapping, past the C library.
static void do_overmap(void) {
    struct region *r = &me->fresh;
    r->pages = 512;
    r->at = pages(r->pages * PAGE);
    rewrite(r, all(r));
    struct range x = some(r, 128);
    char *at = place(r, x.first);
    want(raw(SYS_mmap, (long)at, x.count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
    are_zero(r, x);
    idle();
    verify(r, all(r));
    rewrite(r, some(r, 256));
    verify(r, all(r));
    need(munmap(r->at, r->pages * PAGE));
}

static void do_heap(void) {
    for (int i = 0; i < 4; i++) {
        struct block *b = &me->blocks[chance(BLOCKS)];
        size_t words = 2 + chance(1ul << 1 + chance(17)), kept = words < b->words ? words : b->words;
        if (b->at) verify_words("heap", b->at, b->at, b->words, b->salt);
        if (b->at && chance(2)) {
            b->at = realloc(b->at, words * 8);
            if (!b->at) failed("realloc", 0, 1, __LINE__);
            verify_words("heap", b->at, b->at, kept, b->salt);
        } else {
            free(b->at);
            b->at = chance(3) ? malloc(words * 8) : aligned_alloc(1ul << 4 + chance(12), (words * 8 + PAGE - 1) / PAGE * PAGE);
            if (!b->at) failed("malloc", 0, 1, __LINE__);
        }
        b->words = words;
        fill(b->at, words * 8, b->salt = next_salt());
    }
}

// Locked and unlocked in the same way: what is locked past the library has to be unlocked past it.
static void do_lock(void) {
    struct region *r = &me->own;
    struct range x = some(r, 128);
    long at = (long)place(r, x.first), bytes = x.count * PAGE;
    int how = chance(3);
    if (how == 0) want(mlock((void *)at, bytes), 0);
    if (how == 1) want(raw(SYS_mlock, at, bytes, 0, 0, 0, 0), 0);
    if (how == 2) want(syscall(SYS_mlock2, at, bytes, 1 /* ONFAULT */), 0);
    idle();
    verify(r, x);
    rewrite(r, x);
    want(how == 1 ? raw(SYS_munlock, at, bytes, 0, 0, 0, 0) : munlock((void *)at, bytes), 0);
    verify(r, x);
}

static __thread ucontext_t center, coroutine;

// Each level has a piece of the stack that nobody has touched before, and maps memory from there.
__attribute__((noinline)) static void deep(int level, int swaps) {
    size_t words = 16 + chance(1800), bytes = (32 + chance(64)) * PAGE;
    u64 salt = next_salt(), *frame = alloca(words * 8);
    fill(frame, words * 8, salt);
    char *some = pages(bytes);
    some[bytes - 1] = 1;
    want(mprotect(some, bytes / 2 / PAGE * PAGE, PROT_READ), 0);
    if (level) deep(level - 1, swaps);
    else if (swaps) swapcontext(&coroutine, &center);
    if (some[bytes - 1] != 1 || some[0]) failed("what was mapped from a deep stack", some[bytes - 1], 1, __LINE__);
    need(munmap(some, bytes));
    verify_words("stack", frame, frame, words, salt);
}

static void *on_stack(void *of) {
    me = of;
    deep(8 + chance(24), 0);
    return 0;
}

static void as_coroutine(void) { deep(8 + chance(24), 1); }

static void do_stack(void) {
    // The deepest takes 32 times 15 KiB; a signal's handler needs a place too.
    size_t bytes = MIB;
    int mapped = chance(2);
    char *stack = mapped ? pages(bytes) : aligned_alloc(PAGE, bytes);
    if (chance(2)) {
        pthread_attr_t how;
        pthread_t thread;
        want(pthread_attr_init(&how), 0);
        want(pthread_attr_setstack(&how, stack, bytes), 0);
        want(pthread_create(&thread, &how, on_stack, me), 0);
        want(pthread_join(thread, 0), 0);
        pthread_attr_destroy(&how);
    } else {
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = stack;
        coroutine.uc_stack.ss_size = bytes;
        coroutine.uc_link = &center;
        makecontext(&coroutine, as_coroutine, 0);
        want(swapcontext(&center, &coroutine), 0);
        idle();
        want(swapcontext(&center, &coroutine), 0);
    }
    if (mapped) need(munmap(stack, bytes));
    else free(stack);
}

// A timer's handler reads and writes far memory wherever the program is. It may interrupt itself in another thread.
static volatile u64 ticks;

static void on_tick(int number) {
    int error = errno;
    if (!me) me = &workers[WORKERS];
    u64 count = __atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED), page = count * 0x9e3779b97f4a7c15ul % (ticked.pages - 1) + 1;
    const u64 *words = (u64 *)place(&ticked, page);
    for (size_t i = 0; i < WORDS; i += 73)
        if (words[i] != expected(i, ticked.salts[page])) wrong_word("ticked", (u64 *)ticked.at, words, WORDS, i, ticked.salts[page]);
    // The first page counts.
    __atomic_add_fetch((u64 *)ticked.at + count % WORDS, 1, __ATOMIC_RELAXED);
    errno = error;
}

static void every(int microseconds) {
    struct itimerval interval = {{0, microseconds}, {0, microseconds}};
    need(setitimer(ITIMER_REAL, &interval, 0));
}

static void do_timer(void) {
    every(700);
    do_write();
    do_read();
    every(10000);
}
