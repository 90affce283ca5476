// Keeps everything in short mappings: aligned pages of a heap, ones that grow, threads, a fork, and protection. usage: small heap|grow|threads|fork|mixed
#include "behaviour.h"
#define SIZE (16 * 1024ul)
#define COUNT 6144
static char *heap[COUNT];

// As Ruby does: twice the size, and what is not aligned goes back.
static char *aligned(void) {
    char *start = pages(2 * SIZE), *at = (char *)(((uintptr_t)start + SIZE - 1) / SIZE * SIZE);
    if (at > start) must(munmap(start, at - start));
    if (at + SIZE < start + 2 * SIZE) must(munmap(at + SIZE, start + 2 * SIZE - at - SIZE));
    return at;
}

static void make(int from, int to) {
    for (int i = from; i < to; i++) {
        heap[i] = aligned();
        if (nonzero(heap[i], SIZE)) failures++;
        fill(heap[i], SIZE, i);
    }
}

static size_t all_wrong(int from, int to) {
    size_t bad = 0;
    for (int i = from; i < to; i++) bad += wrong(heap[i], SIZE, i);
    return bad;
}

static void again(int from, int to) {
    for (int i = from; i < to; i += 3) {
        must(munmap(heap[i], SIZE));
        heap[i] = aligned();
        if (nonzero(heap[i], SIZE)) failures++;
        fill(heap[i], SIZE, i);
    }
}

// A vector that grows by mremap, from one page on.
static size_t grows(size_t most, u64 salt) {
    size_t size = PAGE, bad = 0;
    char *list = pages(size);
    fill(list, size, salt);
    while (size < most) {
        list = (char *)must(mremap(list, size, 2 * size, MREMAP_MAYMOVE));
        bad += wrong(list, size, salt) + nonzero(list + size, size);
        size *= 2;
        fill(list, size, salt);
    }
    bad += wrong(list, size, salt);
    if (salt % 2) {
        must(munmap(list, size));
    } else {
        // Short again, and long again.
        list = (char *)must(mremap(list, size, PAGE, 0));
        list = (char *)must(mremap(list, PAGE, most, MREMAP_MAYMOVE));
        bad += wrong(list, PAGE, salt) + nonzero(list + PAGE, most - PAGE);
        must(munmap(list, most));
    }
    return bad;
}

static void *thread(void *given) {
    size_t number = (size_t)given, from = number * COUNT / 4, to = from + COUNT / 4, bad = 0;
    make(from, to);
    for (u64 round = 0; round < 40; round++) bad += grows(MIB, 2 * round + number);
    again(from, to);
    return (void *)(bad + all_wrong(from, to));
}

int main(int count, char **given) {
    const char *how = given[1];
    if (!strcmp(how, "heap")) {
        make(0, COUNT);
        check("heap", all_wrong(0, COUNT));
        again(0, COUNT);
        check("heap again", all_wrong(0, COUNT));
    } else if (!strcmp(how, "grow")) {
        check("one", grows(128 * MIB, 2));
        size_t bad = 0;
        for (u64 i = 0; i < 200; i++) bad += grows(MIB, i);
        check("many", bad);
    } else if (!strcmp(how, "threads")) {
        pthread_t ids[4];
        size_t bad = 0;
        for (size_t i = 0; i < 4; i++) must(-pthread_create(&ids[i], 0, thread, (void *)i));
        for (size_t i = 0; i < 4; i++) {
            void *wrong_words;
            must(-pthread_join(ids[i], &wrong_words));
            bad += (size_t)wrong_words;
        }
        check("threads", bad);
        check("all", all_wrong(0, COUNT));
    } else if (!strcmp(how, "fork")) {
        // One before there are many, and one after.
        for (int part = 0; part < 2; part++) {
            make(part ? 64 : 0, part ? COUNT : 64);
            int all = part ? COUNT : 64, status;
            if (fork() == 0) {
                size_t bad = all_wrong(0, all);
                again(0, all);
                bad += all_wrong(0, all) + grows(4 * MIB, 2) + failures;
                _exit(bad ? 1 : 0);
            }
            must(wait(&status));
            check("child", status != 0);
            check("parent", all_wrong(0, all));
        }
    } else {
        // Protected, locked, replaced and advised: what is remembered of it must not be wrong.
        make(0, 256);
        char *list = pages(8 * PAGE);
        fill(list, 8 * PAGE, 5);
        must(mprotect(list, 8 * PAGE, PROT_READ));
        list = (char *)must(mremap(list, 8 * PAGE, MIB, MREMAP_MAYMOVE));
        check("read only", wrong(list, 8 * PAGE, 5));
        int fds[2];
        must(pipe(fds));
        printf("written to: %s\n", read(fds[0], list, 0) == 0 && write(fds[1], "x", 1) == 1 && read(fds[0], list, 1) == -1 ? strerror(errno) : "yes");
        int file = must(memfd_create("file", 0));
        must(ftruncate(file, 2 * MIB));
        char *shared = (char *)must(mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)), *over = pages(8 * PAGE);
        must(mmap(over, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
        over = (char *)must(mremap(over, 8 * PAGE, MIB, MREMAP_MAYMOVE));
        fill(over, MIB, 6);
        check("of the file", wrong(shared, 8 * PAGE, 6));
        char *part = pages(16 * PAGE);
        fill(part, 16 * PAGE, 7);
        must(munmap(part + 8 * PAGE, 8 * PAGE));
        printf("too long: %s\n", mremap(part, 16 * PAGE, MIB, MREMAP_MAYMOVE) == MAP_FAILED ? strerror(errno) : "moved");
        part = (char *)must(mremap(part, 8 * PAGE, MIB, MREMAP_MAYMOVE));
        check("part", wrong(part, 8 * PAGE, 7) + nonzero(part + 8 * PAGE, MIB - 8 * PAGE));
        char *odd = pages(2 * PAGE);
        fill(odd, 2 * PAGE, 8);
        odd = (char *)must(mremap(odd, PAGE + 1, MIB, MREMAP_MAYMOVE));
        check("length that is no multiple", wrong(odd, 2 * PAGE, 8));
        char *locked = pages(4 * PAGE);
        if (mlock(locked, 4 * PAGE) == 0) locked = (char *)must(mremap(locked, 4 * PAGE, MIB / 4, MREMAP_MAYMOVE));
        make(256, COUNT);
        check("all", all_wrong(0, COUNT));
    }
    return failures != 0;
}
