// A process that is small at first and grows in an awkward place. usage: nursery PLACE
#include "behaviour.h"
#include <dlfcn.h>
#include <ucontext.h>

// Small blocks and mappings with a known content, made while the process is small.
enum { BLOCKS = 400 };
static char *blocks[BLOCKS];
static size_t lengths[BLOCKS];
static char *maps[4];
static const size_t map_bytes[4] = {256 << 10, 192 << 10, 1 << 20, 128 << 10};

static void begin(void) {
    for (int i = 0; i < BLOCKS; i++) {
        lengths[i] = (i % 37 + 1) * 64;
        fill(blocks[i] = malloc(lengths[i]), lengths[i], i);
    }
    for (int i = 0; i < 4; i++) fill(maps[i] = pages(map_bytes[i]), map_bytes[i], 1000 + i);
    // The first half of one more is read only, and stays zeros.
    char *zeros = pages(MIB / 2);
    if (nonzero(zeros, MIB / 4)) failures++;
    must(munmap(zeros, MIB / 2));
}

static void verify(const char *what) {
    size_t bad = 0;
    for (int i = 0; i < BLOCKS; i++) bad += wrong(blocks[i], lengths[i], i);
    for (int i = 0; i < 4; i++) bad += wrong(maps[i], map_bytes[i], 1000 + i);
    check(what, bad);
}

// 24 MiB in blocks of 48 KiB, from the stack that it is called on.
static size_t grow(void) {
    enum { COUNT = 512, BYTES = 48 << 10 };
    char **more = malloc(COUNT * sizeof *more);
    size_t bad = 0;
    for (int i = 0; i < COUNT; i++) fill(more[i] = malloc(BYTES), BYTES, 5000 + i);
    for (int i = 0; i < COUNT; i++) bad += wrong(more[i], BYTES, 5000 + i), free(more[i]);
    free(more);
    return bad;
}

static size_t grown;
static ucontext_t center, other;
static void coroutine(void) { grown = grow(); }
static void handler(int signal) { (void)signal, grown = grow(); }
static int in_vfork(void *argument) { return (void)argument, grown = grow(), 0; }

static volatile int going = 1;
static void *forks(void *argument) {
    while (going) {
        pid_t pid = must(fork());
        if (pid == 0) _exit(wrong(blocks[7], lengths[7], 7) != 0);
        if (ended(pid) != 0) *(size_t *)argument += 1;
    }
    return argument;
}
static void *loads(void *argument) {
    while (going) {
        void *library = dlopen("libm.so.6", RTLD_NOW), *thread = dlopen("libresolv.so.2", RTLD_NOW);
        if (!library || !dlsym(library, "cos")) *(size_t *)argument += 1;
        if (thread) dlclose(thread);
        if (library) dlclose(library);
    }
    return argument;
}
static void *grows(void *argument) { return *(size_t *)argument += grow(), argument; }
static void *maps_too(void *argument) {
    for (int i = 0; i < 200; i++) {
        size_t bytes = (32 + i % 64) * PAGE;
        char *part = pages(bytes);
        fill(part, bytes, i);
        *(size_t *)argument += wrong(part, bytes, i);
        must(munmap(part, bytes));
        part = pages(bytes);
        *(size_t *)argument += nonzero(part, bytes);
        must(munmap(part + bytes / 2 / PAGE * PAGE, bytes - bytes / 2 / PAGE * PAGE));
    }
    return argument;
}

static void threads(void) {
    pthread_t some[8];
    size_t bad[8] = {0};
    void *(*work[8])(void *) = {forks, loads, grows, maps_too, grows, maps_too, grows, loads};
    for (int i = 0; i < 8; i++) must(-pthread_create(&some[i], 0, work[i], &bad[i]));
    for (int i = 2; i < 7; i++) pthread_join(some[i], 0);
    going = 0;
    size_t sum = 0;
    pthread_join(some[0], 0), pthread_join(some[1], 0), pthread_join(some[7], 0);
    for (int i = 0; i < 8; i++) sum += bad[i];
    check("threads", sum);
}

// Parts of early mappings change before and after the process grows.
static void mappings(void) {
    char *part = pages(8 * PAGE * 8);
    fill(part, 64 * PAGE, 50);
    must(mprotect(part + 8 * PAGE, PAGE, PROT_READ));
    check("protected", wrong(part, 64 * PAGE, 50));
    must(munmap(part + 32 * PAGE, 32 * PAGE));
    part = (void *)must(mremap(part + 16 * PAGE, 16 * PAGE, 4096 * PAGE, MREMAP_MAYMOVE));
    size_t bad = nonzero(part + 16 * PAGE, 4080 * PAGE);
    fill(part, 4096 * PAGE, 51);
    thrash();
    check("resized", bad + wrong(part, 4096 * PAGE, 51));
}

// Heap pages that were only read, were discarded, or come from the kernel's zero page.
static void zeros(void) {
    char *block = malloc(2 * MIB), *page = (char *)(((size_t)block + PAGE - 1) & -PAGE);
    fill(page, MIB, 60);
    must(madvise(page, MIB / 2, MADV_DONTNEED));
    size_t bad = nonzero(page, MIB / 2);
    must(madvise(page + MIB / 2, MIB / 4, MADV_FREE));
    fill(page + MIB / 2, MIB / 4, 61);
    grown = grow();
    thrash();
    bad += wrong(page + MIB / 2, MIB / 4, 61) + nonzero(page, MIB / 2);
    fill(page, MIB / 2, 62);
    must(madvise(page + MIB / 4, MIB / 4, MADV_DONTNEED));
    thrash();
    bad += wrong(page, MIB / 4, 62) + nonzero(page + MIB / 4, MIB / 4);
    check("zeros", bad);
    free(block);
}

int main(int count, char **words) {
    const char *place = count > 1 ? words[1] : "malloc";
    begin();
    if (!strcmp(place, "malloc")) grown = grow();
    if (!strcmp(place, "coroutine")) {
        getcontext(&other);
        other.uc_stack.ss_sp = pages(16 << 10), other.uc_stack.ss_size = 16 << 10, other.uc_link = &center;
        makecontext(&other, coroutine, 0);
        swapcontext(&center, &other);
    }
    if (!strcmp(place, "handler")) {
        stack_t stack = {.ss_sp = malloc(16 << 10), .ss_size = 16 << 10};
        struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
        must(sigaltstack(&stack, 0)), must(sigaction(SIGUSR1, &action, 0)), must(raise(SIGUSR1));
    }
    if (!strcmp(place, "vfork")) {
        char *stack = pages(MIB);
        int status, pid = must(clone(in_vfork, stack + MIB, CLONE_VM | CLONE_VFORK | SIGCHLD, 0));
        must(waitpid(pid, &status, 0));
        check("child", status + grown);
        grown = grow();
    }
    if (!strcmp(place, "fork")) {
        for (int i = 0; i < 3; i++) {
            pid_t pid = must(fork());
            if (pid == 0) {
                grown = grow();
                thrash();
                verify("in a child");
                _exit(grown != 0 || failures);
            }
            check("child", ended(pid));
        }
        grown = grow();
    }
    if (!strcmp(place, "threads")) threads();
    if (!strcmp(place, "mappings")) mappings();
    if (!strcmp(place, "zeros")) zeros();
    if (!strcmp(place, "user") && getuid() == 0) must(setuid(65534)), grown = grow();
    if (!strcmp(place, "root") && getuid() == 0) must(chroot("/proc/self")), grown = grow();
    check("grown", grown);
    thrash();
    verify("early memory");
    return verdict();
}
