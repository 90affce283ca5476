// Moments at which a small process grows that are easily missed or awkward. usage: nursery_late CASE
#include "behaviour.h"
#include <ucontext.h>

#define is(name) (!strcmp(which, name))
static volatile int going = 1;
static size_t bad;

static void *together(void *(*one)(void *), void *(*other)(void *)) {
    pthread_t threads[2];
    pthread_create(&threads[0], 0, one, 0);
    pthread_create(&threads[1], 0, other, 0);
    pthread_join(threads[0], 0);
    pthread_join(threads[1], 0);
    return 0;
}

// A stream that allocates while the C library flushes it: another thread's fork waits for that lock.
static ssize_t write_stream(void *cookie, const char *bytes, size_t count) {
    (void)cookie, (void)bytes;
    char *block = malloc(17 * MIB);
    block[0] = 1;
    free(block);
    char *map = pages(MIB);
    map[0] = 1;
    must(munmap(map, MIB));
    return count;
}

static void *flushes(void *arg) {
    FILE *stream = fopencookie(0, "w", (cookie_io_functions_t){.write = write_stream});
    for (int i = 0; i < 100; i++) {
        fputs("hello", stream);
        fflush(0);
    }
    return arg;
}

static void *forks(void *arg) {
    for (int i = 0; i < 30; i++) {
        pid_t child = must(fork());
        if (!child) _exit(0);
        must(waitpid(child, 0, 0));
    }
    return arg;
}

// Another thread must see no descriptor but its own.
static void *allocates(void *arg) {
    while (going) {
        char *block = malloc(60000);
        block[0] = 1;
        free(block);
        char *map = pages(256 << 10);
        map[0] = 1;
        must(munmap(map, 256 << 10));
    }
    return arg;
}

static void *opens(void *arg) {
    int ends[2];
    must(pipe(ends));
    int fixed = dup(0);
    close(fixed);
    for (int i = 0; i < 20000; i++) {
        char byte = i, got = 0;
        if (write(ends[1], &byte, 1) != 1 || dup(0) != fixed || close(fixed)) bad++;
        if (dup2(ends[0], fixed) != fixed || read(fixed, &got, 1) != 1 || got != byte || close(fixed)) bad++;
    }
    going = 0;
    return arg;
}

// MiB of its own in memory, found without an allocation.
static long resident(void) {
    char text[200] = {0};
    int fd = must(open("/proc/thread-self/statm", O_RDONLY));
    if (read(fd, text, sizeof text - 1) < 0) failures++;
    close(fd);
    long size, all, shared;
    sscanf(text, "%ld %ld %ld", &size, &all, &shared);
    return (all - shared) * PAGE / MIB;
}

// The limit of the run is at most half of this: with a pager, no more than that is resident.
static void computes(char **blocks, int count, size_t bytes) {
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < count; i++) fill(blocks[i], bytes, i + round);
        for (int i = 0; i < count; i++) bad += wrong(blocks[i], bytes, i + round);
    }
    const char *limit = getenv("HIROMA_CONFIG");
    if (limit && resident() > 80) printf("%ld MiB are resident\n", resident());
}

static pthread_t first;
static void *after_main(void *arg) {
    char *blocks[50];
    pthread_join(first, 0);
    for (int i = 0; i < 50; i++) blocks[i] = pages(2 * MIB);
    computes(blocks, 50, 2 * MIB);
    check("memory", bad);
    exit(verdict());
    return arg;
}

static void *grows_slowly(void *arg) {
    if (arg) must(setpriority(PRIO_PROCESS, syscall(SYS_gettid), 19));
    char *blocks[24];
    for (int i = 0; i < 24; i++) fill(blocks[i] = malloc(MIB), MIB, i);
    for (int i = 0; i < 24; i++) bad += wrong(blocks[i], MIB, i);
    return 0;
}

static void *spins(void *arg) {
    while (going) __asm__ volatile("");
    return arg;
}

static void grows(void) {
    char *blocks[60];
    for (int i = 0; i < 60; i++) fill(blocks[i] = pages(2 * MIB), 2 * MIB, i);
    for (int i = 0; i < 60; i++) bad += wrong(blocks[i], 2 * MIB, i);
}

// As a program does that calls the kernel by itself.
static long raw(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

// What was there when a small process forked leaves memory like anything else.
static void grows_after_fork(void) {
    char *early[4];
    for (int i = 0; i < 4; i++) fill(early[i] = pages(2 * MIB), 2 * MIB, 70 + i);
    // One child is gone, another one shares the pages.
    pid_t child = must(fork());
    if (!child) _exit(0);
    must(waitpid(child, 0, 0));
    child = must(fork());
    if (!child) pause();
    // They were used before, and may outlast what is used once, however much that is: unless they are advised to leave.
    size_t stay = 2048;
    for (int round = 0; round < 10 && stay > 1024; round++) {
        for (int i = 0; i < 4; i++) madvise(early[i], 2 * MIB, MADV_PAGEOUT);
        grows();
        stay = 0;
        for (int i = 0; i < 4; i++) stay += present(early[i], 2 * MIB);
    }
    if (getenv("HIROMA_CONFIG") && stay > 1024) printf("%zu pages stay\n", stay);
    must(kill(child, SIGKILL));
    must(waitpid(child, 0, 0));
    for (int i = 0; i < 4; i++) bad += wrong(early[i], 2 * MIB, 70 + i);
}

static char *kept[2400];
static void *keeps(void *arg) {
    char **block = arg;
    fill(*block = malloc(60000), 60000, block - kept);
    return 0;
}

// The last words of a start that fails must not reach what descriptor 2 has become.
static void fails_to_start(void) {
    struct { unsigned short code; unsigned char yes, no; unsigned k; } filter[] = {
        {0x20, 0, 0, 0},                    // the number of the call
        {0x15, 0, 3, SYS_ioctl},
        {0x20, 0, 0, 24},                   // its second argument
        {0x15, 0, 1, 0xc018aa3f},           // UFFDIO_API
        {0x06, 0, 0, 0x00050000 | EPERM},
        {0x06, 0, 0, 0x7fff0000},
    };
    struct { unsigned short count; void *filter; } program = {6, filter};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (raw(SYS_prctl, PR_SET_SECCOMP, 2, (long)&program, 0)) skip("no seccomp");
    char name[] = "/tmp/hiroma-late-XXXXXX";
    int file = must(mkstemp(name)), ends[2];
    must(unlink(name));
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 0) must(dup2(file, 2));
        if (turn == 1) must(pipe(ends)), must(dup2(ends[1], 2)), close(ends[0]), close(ends[1]);
        pid_t child = must(fork());
        if (!child) {
            grows();
            struct stat stat;
            must(fstat(file, &stat));
            _exit(bad || stat.st_size ? 1 : 0);
        }
        int status;
        must(waitpid(child, &status, 0));
        printf("turn %d: %d\n", turn, status);
    }
}

// No room for some of the threads of a pager, by a limit that counts them.
static void few_threads(void) {
    for (int room = 0; room < 10; room++) {
        pid_t child = must(fork());
        if (child) {
            int status;
            must(waitpid(child, &status, 0));
            printf("room for %d: %d\n", room, status);
            continue;
        }
        alarm(60);
        struct { unsigned version; int pid; } head = {0x20080522, 0};
        unsigned data[6] = {1 << 19, 1 << 19, 0, 0, 0, 0}; // CAP_SYS_PTRACE
        raw(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0);
        long done = raw(SYS_setresuid, 61234, 61234, 61234, 0);
        raw(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0);
        done |= raw(SYS_capset, (long)&head, (long)data, 0, 0);
        struct rlimit most = {room + 1, room + 1};
        done |= raw(SYS_prlimit64, 0, RLIMIT_NPROC, (long)&most, 0);
        if (done) _exit(done ? 3 : 0);
        grows();
        _exit(bad != 0);
    }
}

// A block on a stack of 8 KiB.
static ucontext_t center, other;
static void on_little_stack(void) {
    for (int i = 0; i < 2000; i++) kept[i] = memset(malloc(60000), i, 60000);
}
static void tight(void) {
    char *stack = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(mprotect(stack, PAGE, PROT_NONE));
    must(getcontext(&other));
    other.uc_stack.ss_sp = stack + PAGE;
    other.uc_stack.ss_size = 2 * PAGE;
    other.uc_link = &center;
    makecontext(&other, on_little_stack, 0);
    must(swapcontext(&center, &other));
    for (int i = 0; i < 2000; i++) bad += kept[i][0] != (char)i || kept[i][59999] != (char)i;
}

int main(int count, char **words) {
    const char *which = count > 1 ? words[1] : "";
    char *blocks[40];
    first = pthread_self();
    if (is("streams")) together(flushes, forks);
    if (is("descriptors")) together(opens, allocates);
    if (is("upfront")) {
        for (int i = 0; i < 38; i++) blocks[i] = malloc(3 * MIB);
        computes(blocks, 38, 3 * MIB);
    }
    if (is("mainexit")) {
        pthread_t thread;
        pthread_create(&thread, 0, after_main, 0);
        pthread_exit(0);
    }
    if (is("slack")) {
        must(prctl(PR_SET_TIMERSLACK, 1000000000ul));
        grows();
    }
    if (is("clock")) {
        must(prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
        grows();
        must(prctl(PR_SET_TSC, PR_TSC_ENABLE));
    }
    if (is("nice")) {
        pthread_t slow, spinners[2];
        pthread_create(&slow, 0, grows_slowly, words);
        pthread_join(slow, 0);
        for (int i = 0; i < 2; i++) pthread_create(&spinners[i], 0, spins, 0);
        grows();
        going = 0;
        for (int i = 0; i < 2; i++) pthread_join(spinners[i], 0);
    }
    if (is("files")) {
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3}));
        grows();
    }
    if (is("forked")) grows_after_fork();
    if (is("subreaper")) {
        must(prctl(PR_SET_CHILD_SUBREAPER, 1));
        grows();
        pid_t child = must(fork());
        if (!child) _exit(0);
        // Others may end, too: the pagers of its children.
        while (wait(0) > 0) continue;
        printf("%s\n", strerror(errno));
    }
    if (is("threads")) {
        pthread_t thread;
        for (int i = 0; i < 2400; i++) {
            pthread_create(&thread, 0, keeps, &kept[i]);
            pthread_join(thread, 0);
        }
        for (int i = 0; i < 2400; i++) bad += wrong(kept[i], 60000, i);
        if (getenv("HIROMA_CONFIG") && resident() > 80) printf("%ld MiB are resident\n", resident());
    }
    if (is("stderr")) fails_to_start();
    if (is("fewthreads")) few_threads();
    if (is("tight")) tight();
    check(which, bad);
    return verdict();
}
