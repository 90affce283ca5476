// Calls that fail, or act on part of what they are given, with a pager. usage: corners fixed|remap|onfault|remove|limit
#include "behaviour.h"

#define is(name) (!strcmp(which, name))
#define SIZE (48 * MIB)

static void refused(const char *what, void *got) {
    printf("%s: %s\n", what, got == MAP_FAILED ? strerror(errno) : "mapped");
}

// A mapping that the kernel refuses leaves what is there as it was.
static void fixed(void) {
    char *data = pages(SIZE), name[] = "/tmp/hiroma-corners-XXXXXX";
    fill(data, SIZE, 5);
    thrash();
    int file = must(mkstemp(name)), only = must(open(name, O_RDONLY)), ends[2];
    must(unlink(name));
    must(ftruncate(file, SIZE));
    must(pipe(ends));
    int rw = PROT_READ | PROT_WRITE, at = MAP_FIXED | MAP_SHARED;
    refused("for reading only", mmap(data, SIZE, rw, at, only, 0));
    refused("a pipe", mmap(data, SIZE, rw, at, ends[0], 0));
    refused("no descriptor", mmap(data, SIZE, rw, at, -1, 0));
    refused("half a page", mmap(data, SIZE, rw, at, file, 2048));
    refused("closed", mmap(data, SIZE, rw, MAP_FIXED | MAP_PRIVATE, 1 << 20, 0));
    check("what was there", wrong(data, SIZE, 5));
    must(mmap(data + 4 * MIB, MIB, rw, at, file, 0));
    must(mmap(data + 8 * MIB, MIB, PROT_READ, MAP_FIXED | MAP_PRIVATE, only, 0));
    check("a file", nonzero(data + 4 * MIB, MIB) + nonzero(data + 8 * MIB, MIB));
    check("before it", wrong(data, 4 * MIB, 5));
}

// What was advised for a mapping holds where it grows and where it moves.
static void remap(void) {
    for (int moves = 0; moves < 2; moves++) {
        char *data = pages(MIB), *kept = pages(MIB);
        fill(data, MIB, 6), fill(kept, MIB, 7);
        must(madvise(data, MIB, MADV_WIPEONFORK));
        char *in_the_way = moves ? mmap(data + MIB, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : 0;
        data = (char *)must(mremap(data, MIB, 8 * MIB, MREMAP_MAYMOVE));
        kept = (char *)must(mremap(kept, MIB, 8 * MIB, MREMAP_MAYMOVE));
        fill(data, 8 * MIB, 6), fill(kept, 8 * MIB, 7);
        thrash();
        pid_t child = must(fork());
        if (!child) _exit(nonzero(data, 8 * MIB) != 0 || wrong(kept, 8 * MIB, 7) != 0);
        int status;
        must(waitpid(child, &status, 0));
        printf("child %d\n", status);
        check("parent", wrong(data, 8 * MIB, 6) + wrong(kept, 8 * MIB, 7));
        if (in_the_way) must(munmap(in_the_way, PAGE));
    }
}

// Memory that is locked as it is touched takes none before.
static void onfault(void) {
    fill(malloc(64 * MIB), 64 * MIB, 8);
    size_t most = 64ul << 30;
    char *data = (char *)must(mmap(0, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    must(mlock2(data, most, MLOCK_ONFAULT));
    fill(data + (most >> 1), MIB, 9);
    check("touched", wrong(data + (most >> 1), MIB, 9) + nonzero(data + (most >> 2), MIB));
    printf("flags: %s\n", mlock2(data, PAGE, 8) ? strerror(errno) : "locked");
    must(munlock(data, most));
    must(munmap(data, most));
}

// A part of shared memory that lies in a reservation is given back.
static void remove_shared(void) {
    fill(malloc(64 * MIB), 64 * MIB, 10);
    char *base = (char *)must(mmap(0, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    char *shared = (char *)must(mmap(base + MIB, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    fill(shared, 8 * MIB, 11);
    must(madvise(shared + 2 * MIB, 2 * MIB, MADV_REMOVE));
    check("removed", nonzero(shared + 2 * MIB, 2 * MIB) + wrong(shared, 2 * MIB, 11));
}

// More than the process may lock.
static void limit(void) {
    char *data = pages(SIZE);
    fill(data, SIZE, 12);
    must(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){8 * MIB, 8 * MIB}));
    if (!getuid()) must(setgid(61234)), must(setuid(61234));
    printf("too much: %s\n", mlock(data, SIZE) ? strerror(errno) : "locked");
    printf("a part: %s\n", mlock(data, 4 * MIB) ? strerror(errno) : "locked");
    thrash();
    check("content", wrong(data, SIZE, 12));
}

int main(int count, char **words) {
    const char *which = count > 1 ? words[1] : "";
    if (is("fixed")) fixed();
    if (is("remap")) remap();
    if (is("onfault")) onfault();
    if (is("remove")) remove_shared();
    if (is("limit")) limit();
    return verdict();
}
