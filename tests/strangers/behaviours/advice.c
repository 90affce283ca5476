// madvise through the C library or past it (raw). usage: advice lib|raw dontneed|free|wipe|nofork|populate|cold|huge|remove
#include "behaviour.h"
static int raw;
static int advise(void *at, size_t bytes, int advice) {
    if (!raw) return madvise(at, bytes, advice);
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_madvise), "D"(at), "S"(bytes), "d"((long)advice) : "rcx", "r11", "memory");
    return result < 0 ? (errno = -result, -1) : (int)result;
}
int main(int count, char **given) {
    raw = !strcmp(given[1], "raw");
    size_t bytes = 64 * MIB, part = 16 * MIB;
    const char *what = given[2];
    char *data = pages(bytes), *middle = data + 24 * MIB + 3 * PAGE;
    fill(data, bytes, 1);
    size_t first = middle - data, rest = bytes - first - part;
    thrash();
#define AROUND() check("around", wrong(data, first, 1) + ({ size_t n = 0; for (size_t i = (first + part) / 8; i < bytes / 8; i++) n += ((u64 *)data)[i] != word(i, 1); n; }))
    if (!strcmp(what, "dontneed")) {
        printf("%d\n", advise(middle, part, MADV_DONTNEED));
        check("zero", nonzero(middle, part));
        fill(middle, part, 2);
        thrash();
        check("new", wrong(middle, part, 2));
        for (size_t at = 0; at < part; at += 8 * PAGE) advise(middle + at, PAGE, MADV_DONTNEED);
        thrash();
        size_t bad = 0;
        for (size_t at = 0; at < part; at += 8 * PAGE) bad += nonzero(middle + at, PAGE);
        check("pages: zero", bad);
    } else if (!strcmp(what, "free")) {
        printf("%d\n", advise(middle, part, MADV_FREE));
        size_t bad = 0;
        for (size_t at = 0; at < part; at += PAGE) {
            size_t i = (middle - data + at) / 8 + 100;
            u64 now = ((u64 *)data)[i];
            bad += now != 0 && now != word(i, 1);
        }
        check("old or zero", bad);
        fill(middle, part / 2, 2);
        thrash();
        check("written again", wrong(middle, part / 2, 2));
    } else if (!strcmp(what, "wipe")) {
        printf("%d\n", advise(middle, part, MADV_WIPEONFORK));
        pid_t pid = must(fork());
        if (pid == 0) {
            size_t bad = nonzero(middle, part) + wrong(data, first, 1);
            fill(middle, part, 5);
            thrash();
            _exit(bad + wrong(middle, part, 5) ? 1 : 4);
        }
        printf("child %d\n", ended(pid));
        size_t bad = 0;
        for (size_t i = first / 8; i < (first + part) / 8; i++) bad += ((u64 *)data)[i] != word(i, 1);
        check("parent's", bad);
    } else if (!strcmp(what, "nofork")) {
        printf("%d\n", advise(middle, part, MADV_DONTFORK));
        pid_t pid = must(fork());
        if (pid == 0) {
            unsigned char map[1];
            int gone = mincore(middle, PAGE, map) == -1 && errno == ENOMEM;
            _exit(wrong(data, first, 1) ? 1 : gone ? 4 : 5);
        }
        printf("child %d\n", ended(pid));
        printf("%d\n", advise(middle, part, MADV_DOFORK));
        pid = must(fork());
        if (pid == 0) _exit(((u64 *)middle)[0] != word(first / 8, 1));
        printf("child %d\n", ended(pid));
    } else if (!strcmp(what, "populate")) {
        char *more = pages(part);
        printf("%d\n", advise(more, part, 23 /* MADV_POPULATE_WRITE */));
        printf("%d\n", advise(middle, part, 22 /* MADV_POPULATE_READ */));
        check("zero", nonzero(more, part));
        fill(more, part, 3);
        thrash();
        check("filled", wrong(more, part, 3));
    } else if (!strcmp(what, "cold")) {
        printf("%d\n", advise(middle, part, MADV_COLD));
        printf("%d\n", advise(middle, part, MADV_PAGEOUT));
        thrash();
    } else if (!strcmp(what, "huge")) {
        printf("%d\n", advise(data, bytes, MADV_HUGEPAGE));
        char *more = pages(part);
        printf("%d\n", advise(more, part, MADV_HUGEPAGE));
        fill(more, part, 3);
        thrash();
        check("huge", wrong(more, part, 3));
        printf("%d\n", advise(more, part, MADV_NOHUGEPAGE));
        thrash();
        check("not huge", wrong(more, part, 3));
    } else {
        int result = advise(middle, part, MADV_REMOVE), error = errno;
        printf("%d %s\n", result, strerror(error));
    }
    if (!strcmp(what, "nofork") || !strcmp(what, "wipe")) check("before", wrong(data, first, 1));
    else AROUND();
    (void)rest;
    return verdict();
}
