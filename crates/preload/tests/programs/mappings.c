// The mmap family on managed memory.
#include "check.h"
#include <fcntl.h>
#include <sys/prctl.h>

static void what_is_managed(void) {
    CHECK(is_managed(map_rw(128 * KIB)) && is_managed(map_rw(1 * MIB)));
    CHECK(!is_managed(map_rw(64 * KIB)));
    CHECK(!is_managed(mmap(NULL, 1 * MIB, RW, ANON | MAP_STACK, -1, 0)));
    CHECK(!is_managed(mmap(NULL, 1 * MIB, RW | PROT_EXEC, ANON, -1, 0)));
    char *shared = mmap(NULL, 1 * MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    shared[0] = 1;
    CHECK(munmap(shared, 1 * MIB) == 0);
    errno = 0;
    CHECK(mmap(NULL, 0, RW, ANON, -1, 0) == MAP_FAILED && errno == EINVAL);
    errno = 0;
    CHECK(mmap(NULL, (size_t)1 << 60, RW, ANON, -1, 0) == MAP_FAILED && errno == ENOMEM);
    char *raw = (char *)syscall(SYS_mmap, NULL, 1 * MIB, RW, ANON, -1, 0L);
    CHECK(raw != MAP_FAILED && is_managed(raw));
    CHECK(syscall(SYS_munmap, raw, 1 * MIB) == 0);
}

static void new_memory_is_zero_and_keeps_what_is_written(void) {
    for (int round = 0; round < 3; round++) {
        char *p = map_rw(20 * MIB);
        CHECK(is_zero(p, 20 * MIB));
        fill(p, 20 * MIB, round);
        CHECK(is_filled(p, 20 * MIB, round));
        CHECK(munmap(p, 20 * MIB) == 0);
    }
}

static void reserved_space_is_committed_piece_by_piece(void) {
    char *base = mmap(NULL, 1 * GIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED && is_managed(base) && is_fatal(base, 0) && is_fatal(base + 512 * MIB, 1));
    CHECK(mmap(base + 4 * MIB, 8 * MIB, RW, ANON | MAP_FIXED, -1, 0) == base + 4 * MIB);
    fill(base + 4 * MIB, 8 * MIB, 5);
    CHECK(mprotect(base + 100 * MIB, 12 * KIB, RW) == 0);
    CHECK(is_zero(base + 100 * MIB, 12 * KIB));
    fill(base + 100 * MIB, 12 * KIB, 6);
    CHECK(is_fatal(base + 100 * MIB + 12 * KIB, 0) && is_fatal(base + 4 * MIB - 1, 0));
    CHECK(is_filled(base + 4 * MIB, 8 * MIB, 5) && is_filled(base + 100 * MIB, 12 * KIB, 6));
    // Mapped again: zeros, also in a part only.
    CHECK(mmap(base + 5 * MIB, 4096, RW, ANON | MAP_FIXED, -1, 0) == base + 5 * MIB);
    CHECK(is_zero(base + 5 * MIB, 4096) && is_filled(base + 4 * MIB, 1 * MIB, 5));
    // Uncommitted again, as runtimes do it.
    CHECK(mmap(base + 4 * MIB, 8 * MIB, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == base + 4 * MIB);
    CHECK(is_fatal(base + 4 * MIB, 0));
    errno = 0;
    CHECK(mmap(base, 4096, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
    CHECK(munmap(base, 1 * GIB) == 0);
}

static void parts_can_be_unmapped(void) {
    char *p = map_rw(8 * MIB);
    fill(p, 8 * MIB, 9);
    CHECK(munmap(p + 3 * MIB + 4096, 8192) == 0);
    CHECK(is_gone(p + 3 * MIB + 4096) && is_gone(p + 3 * MIB + 8192));
    CHECK(is_filled(p, 3 * MIB + 4096, 9));
    CHECK(is_filled(p + 4 * MIB, 4 * MIB, 9 + 4 * MIB / 8));
    CHECK(munmap(p + 4 * MIB, 4 * MIB) == 0 && munmap(p, 3 * MIB) == 0);
    CHECK(munmap(p, 8 * MIB) == 0);
    errno = 0;
    CHECK(munmap(p + 1, 4096) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(munmap(p, 0) == -1 && errno == EINVAL);
}

static void protection_is_kept(void) {
    char *p = map_rw(2 * MIB);
    fill(p, 2 * MIB, 3);
    CHECK(mprotect(p + 1 * MIB, 4096, PROT_READ) == 0);
    CHECK(is_fatal(p + 1 * MIB, 1) && !is_fatal(p + 1 * MIB, 0) && !is_fatal(p + 1 * MIB - 1, 1));
    CHECK(is_filled(p, 2 * MIB, 3));
    CHECK(mprotect(p, 2 * MIB, PROT_NONE) == 0 && is_fatal(p, 0));
    CHECK(mprotect(p, 2 * MIB, RW) == 0 && is_filled(p, 2 * MIB, 3));
    CHECK(munmap(p, 2 * MIB) == 0);
    char *readable = mmap(NULL, 1 * MIB, PROT_READ, ANON, -1, 0);
    CHECK(readable != MAP_FAILED && is_managed(readable) && is_zero(readable, 1 * MIB) && is_fatal(readable, 1));
    CHECK(munmap(readable, 1 * MIB) == 0);
}

static void code_runs_in_it(void) {
#ifdef __x86_64__
    static const unsigned char answer[] = {0xB8, 42, 0, 0, 0, 0xC3};
    unsigned char *p = map_rw(4 * MIB);
    memcpy(p + 2 * MIB, answer, sizeof answer);
    CHECK(mprotect(p + 2 * MIB, 4096, PROT_READ | PROT_EXEC) == 0);
    CHECK(((int (*)(void))(void *)(p + 2 * MIB))() == 42);
    CHECK(munmap(p, 4 * MIB) == 0);
    p = mmap(NULL, 4 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    CHECK(mmap(p + 8192, 4096, RW | PROT_EXEC, ANON | MAP_FIXED, -1, 0) == p + 8192);
    memcpy(p + 8192, answer, sizeof answer);
    CHECK(((int (*)(void))(void *)(p + 8192))() == 42);
    CHECK(munmap(p, 4 * MIB) == 0);
#endif
}

static void other_mappings_take_its_place(void) {
    char name[] = "/tmp/hiroma-mappings-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, 64 * KIB) == 0);
    CHECK(pwrite(file, "far", 3, 4096) == 3);
    char *p = map_rw(6 * MIB);
    fill(p, 6 * MIB, 4);
    CHECK(mmap(p + 1 * MIB, 64 * KIB, RW, MAP_SHARED | MAP_FIXED, file, 0) == p + 1 * MIB);
    CHECK(memcmp(p + 1 * MIB + 4096, "far", 3) == 0 && is_zero(p + 1 * MIB, 4096));
    p[1 * MIB] = 'x';
    char byte = 0;
    CHECK(pread(file, &byte, 1, 0) == 1 && byte == 'x');
    CHECK(is_filled(p, 1 * MIB, 4) && is_filled(p + 2 * MIB, 4 * MIB, 4 + 2 * MIB / 8));
    // And back to managed memory.
    CHECK(mmap(p + 1 * MIB, 64 * KIB, RW, ANON | MAP_FIXED, -1, 0) == p + 1 * MIB);
    CHECK(is_zero(p + 1 * MIB, 64 * KIB));
    CHECK(pread(file, &byte, 1, 0) == 1 && byte == 'x');
    CHECK(munmap(p, 6 * MIB) == 0 && close(file) == 0);
}

static void discards(void) {
    char *p = map_rw(8 * MIB);
    fill(p, 8 * MIB, 7);
    CHECK(madvise(p + 1 * MIB + 4096, 8192, MADV_DONTNEED) == 0);
    CHECK(is_zero(p + 1 * MIB + 4096, 8192) && is_filled(p, 1 * MIB + 4096, 7));
    CHECK(madvise(p + 4 * MIB, 4 * MIB, MADV_DONTNEED) == 0 && is_zero(p + 4 * MIB, 4 * MIB));
    CHECK(madvise(p, 1 * MIB, MADV_FREE) == 0);
    p[0] = 1;
    CHECK(p[0] == 1);
    fill(p, 8 * MIB, 8);
    static const int hints[] = {MADV_WILLNEED, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLD, MADV_DONTDUMP};
    for (unsigned i = 0; i < sizeof hints / sizeof *hints; i++) CHECK(madvise(p, 8 * MIB, hints[i]) == 0);
    CHECK(posix_madvise(p, 8 * MIB, POSIX_MADV_DONTNEED) == 0);
    CHECK(is_filled(p, 8 * MIB, 8));
    errno = 0;
    CHECK(madvise(p, 4096, 12345) == -1 && errno == EINVAL);
    CHECK(prctl(0x53564d41 /* PR_SET_VMA */, 0, p, 8 * MIB, "name") == 0);
    CHECK(munmap(p, 8 * MIB) == 0);
}

static void remaps(void) {
    char *p = map_rw(3 * MIB);
    fill(p, 3 * MIB, 11);
    char *q = mremap(p, 3 * MIB, 40 * MIB, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED && is_managed(q) && is_filled(q, 3 * MIB, 11) && is_zero(q + 3 * MIB, 37 * MIB));
    fill(q, 40 * MIB, 12);
    char *r = mremap(q, 40 * MIB, 1 * MIB, 0);
    CHECK(r == q && is_filled(r, 1 * MIB, 12) && is_gone(r + 1 * MIB) && is_gone(r + 39 * MIB));
    char *place = mmap(NULL, 64 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    CHECK(mremap(r, 1 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place + 4 * MIB) == place + 4 * MIB);
    CHECK(is_filled(place + 4 * MIB, 1 * MIB, 12) && is_zero(place + 5 * MIB, 1 * MIB) && is_gone(r));
    char *away = mremap(place + 4 * MIB, 1 * MIB, 1 * MIB, MREMAP_MAYMOVE | 4 /* DONTUNMAP */);
    CHECK(away != MAP_FAILED && is_filled(away, 1 * MIB, 12) && is_zero(place + 4 * MIB, 1 * MIB));
    CHECK(munmap(away, 1 * MIB) == 0);
    // Memory that may not be written moves with its protection.
    char *frozen = map_rw(2 * MIB);
    fill(frozen, 2 * MIB, 14);
    CHECK(mprotect(frozen, 2 * MIB, PROT_READ) == 0);
    char *moved = mremap(frozen, 2 * MIB, 30 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && is_filled(moved, 2 * MIB, 14));
    CHECK(read(open("/dev/zero", O_RDONLY | O_CLOEXEC), moved, 1) == -1 && errno == EFAULT);
    CHECK(munmap(moved, 30 * MIB) == 0);
    // A heap that grows at one end.
    char *heap = sbrk(0);
    CHECK(heap != (void *)-1 && sbrk(5 * MIB + 100) == heap && is_managed(heap) && is_zero(heap, 5 * MIB));
    fill(heap, 5 * MIB, 15);
    CHECK(sbrk(-(intptr_t)(2 * MIB)) != (void *)-1 && sbrk(2 * MIB) != (void *)-1);
    CHECK(is_filled(heap, 3 * MIB, 15) && is_zero(heap + 3 * MIB + 4096, 2 * MIB - 4096));
    // What is wiped on fork is zeros in the child, and what it was here.
    char *secret = map_rw(4 * MIB);
    fill(secret, 4 * MIB, 16);
    CHECK(madvise(secret + 1 * MIB, 1 * MIB, 18 /* WIPEONFORK */) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(is_filled(secret, 1 * MIB, 16) && is_zero(secret + 1 * MIB, 1 * MIB));
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && is_filled(secret, 4 * MIB, 16));
    CHECK(munmap(secret, 4 * MIB) == 0);
    errno = 0;
    CHECK(mremap(place + 4 * MIB, 1 * MIB, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    // A mapping of the kernel's moves into managed space.
    char *small = map_rw(8192);
    fill(small, 8192, 13);
    CHECK(mremap(small, 8192, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, place + 32 * MIB) == place + 32 * MIB);
    CHECK(is_filled(place + 32 * MIB, 8192, 13));
    CHECK(munmap(place, 64 * MIB) == 0);
    // In place where something is in the way: it stays as it was.
    char *two = map_rw(4 * MIB);
    CHECK(munmap(two + 2 * MIB, 2 * MIB) == 0 && mmap(two + 2 * MIB, 4096, RW, ANON | MAP_FIXED, -1, 0) == two + 2 * MIB);
    fill(two, 2 * MIB, 14);
    errno = 0;
    CHECK(mremap(two, 2 * MIB, 4 * MIB, 0) == MAP_FAILED && errno == ENOMEM && is_filled(two, 2 * MIB, 14));
    CHECK(munmap(two, 4 * MIB) == 0);
}

static void locks(void) {
    char *p = map_rw(1 * MIB);
    fill(p, 1 * MIB, 15);
    CHECK(mlock(p + 100, 5000) == 0 && is_filled(p, 1 * MIB, 15) && munlock(p + 100, 5000) == 0);
    CHECK(munmap(p, 1 * MIB) == 0);
    errno = 0;
    CHECK(mlockall(0) == -1 && errno == EINVAL);
    // Without the right to lock, as much as the limit allows.
    int locked = mlockall(MCL_CURRENT | MCL_FUTURE);
    CHECK(locked == 0 || errno == ENOMEM || errno == EPERM);
    p = map_rw(1 * MIB);
    fill(p, 1 * MIB, 16);
    CHECK(munlockall() == 0 && is_filled(p, 1 * MIB, 16) && munmap(p, 1 * MIB) == 0);
}

static void holes_are_seen(void) {
    unsigned char there[512];
    char *p = map_rw(2 * MIB);
    fill(p, 2 * MIB, 17);
    CHECK(mincore(p, 2 * MIB, there) == 0 && msync(p, 2 * MIB, MS_ASYNC) == 0);
    CHECK(munmap(p + 1 * MIB, 4096) == 0);
    errno = 0;
    CHECK(mincore(p, 2 * MIB, there) == -1 && errno == ENOMEM);
    errno = 0;
    CHECK(msync(p, 2 * MIB, MS_ASYNC) == -1 && errno == ENOMEM);
    CHECK(munmap(p, 2 * MIB) == 0);
}

static void limits_hold_for_the_program(void) {
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    limit = before;
    limit.rlim_cur = 8ul << 30;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == 8ul << 30);
    errno = 0;
    CHECK(mmap(0, 9ul << 30, RW, ANON, -1, 0) == MAP_FAILED && errno == ENOMEM);
    char *p = map_rw(1ul << 30);
    CHECK(munmap(p, 1ul << 30) == 0 && setrlimit(RLIMIT_AS, &before) == 0);
    p = map_rw(9ul << 30);
    CHECK(munmap(p, 9ul << 30) == 0);
}

static void system_calls_reach_it(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    char *from = map_rw(1 * MIB), *to = map_rw(1 * MIB);
    fill(from, 64 * KIB, 16);
    CHECK(write(ends[1], from, 64 * KIB) == (ssize_t)(64 * KIB));
    size_t got = 0;
    while (got < 64 * KIB) {
        ssize_t n = read(ends[0], to + got, 64 * KIB - got);
        CHECK(n > 0);
        got += n;
    }
    CHECK(is_filled(to, 64 * KIB, 16));
    CHECK(munmap(from, 1 * MIB) == 0 && munmap(to, 1 * MIB) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

// A program that gives back every reservation that is not where it wants it (ZGC) gets one there in the end.
static void hints_that_are_insisted_on(void) {
    char *want = (char *)(33 * 1024 * GIB), *got = MAP_FAILED;
    int tries = 0;
    while (tries++ < 200) {
        got = mmap(want, 64 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
        CHECK(got != MAP_FAILED);
        if (got == want) break;
        CHECK(munmap(got, 64 * MIB) == 0);
    }
    CHECK(got == want && munmap(got, 64 * MIB) == 0);
    // Java's other collectors look around a while and take what they get: that has to stay managed.
    CHECK(tries > 40);
}

int main(void) {
    limits_hold_for_the_program();
    what_is_managed();
    new_memory_is_zero_and_keeps_what_is_written();
    reserved_space_is_committed_piece_by_piece();
    parts_can_be_unmapped();
    protection_is_kept();
    code_runs_in_it();
    other_mappings_take_its_place();
    discards();
    remaps();
    locks();
    holes_are_seen();
    system_calls_reach_it();
    hints_that_are_insisted_on();
    puts("ok");
}
