// Moments at which a small process grows that are easily missed or awkward. usage: nursery_late CASE
#include "behaviour.h"

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
    check(which, bad);
    return verdict();
}
