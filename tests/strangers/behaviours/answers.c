// What calls of the mmap family answer where nothing is mapped, or for arguments that are wrong. usage: answers small|large
#include "behaviour.h"

static char *base;
static int shown;

static void say(const char *what, long result) {
    int error = errno;
    printf("%-28s %s\n", what, result == -1 ? strerror(error) : "works");
    shown++;
}

#define try(call) (errno = 0, say(#call, (long)(call)))

static void advise(char *at, size_t bytes, const char *where) {
    static const struct {
        int number;
        const char *name;
    } all[] = {{MADV_NORMAL, "normal"}, {MADV_RANDOM, "random"}, {MADV_SEQUENTIAL, "sequential"}, {MADV_WILLNEED, "willneed"}, {MADV_DONTNEED, "dontneed"},
               {MADV_FREE, "free"}, {MADV_DONTFORK, "dontfork"}, {MADV_DOFORK, "dofork"}, {MADV_WIPEONFORK, "wipeonfork"}, {MADV_KEEPONFORK, "keeponfork"},
               {MADV_DONTDUMP, "dontdump"}, {MADV_DODUMP, "dodump"}, {MADV_HUGEPAGE, "hugepage"}, {MADV_NOHUGEPAGE, "nohugepage"}, {MADV_COLD, "cold"},
               {MADV_PAGEOUT, "pageout"}, {MADV_POPULATE_READ, "populate read"}, {MADV_POPULATE_WRITE, "populate write"}, {99, "unknown"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s %s", where, all[i].name);
        say(text, (errno = 0, madvise(at, bytes, all[i].number)));
    }
}

static void holes(void) {
    // Eight pages, of which the third and the fourth are gone.
    char *gone = base + 2 * PAGE;
    must(munmap(gone, 2 * PAGE));
    unsigned char seen[8];
    try(munmap(gone, 2 * PAGE));
    try(mprotect(gone, PAGE, PROT_READ));
    try(mprotect(base, 8 * PAGE, PROT_READ | PROT_WRITE));
    try(mlock(gone, PAGE));
    try(mlock(base + PAGE, 2 * PAGE));
    try(mlock2(gone, PAGE, MLOCK_ONFAULT));
    try(munlock(gone, PAGE));
    try(munlock(base + PAGE, 2 * PAGE));
    try(munlock(base, PAGE));
    try(msync(gone, PAGE, MS_ASYNC));
    try(mincore(gone, PAGE, seen));
    try(mremap(gone, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    try(mremap(gone, PAGE, PAGE, MREMAP_MAYMOVE));
    try(mremap(gone, 2 * PAGE, PAGE, 0));
    try(mremap(gone, 2 * PAGE, PAGE, MREMAP_MAYMOVE));
    try(mremap(base + PAGE, 3 * PAGE, 4 * PAGE, MREMAP_MAYMOVE));
    try(mremap(gone, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + 6 * PAGE));
    advise(gone, 2 * PAGE, "hole:");
    advise(base + PAGE, 2 * PAGE, "to the hole:");
}

static void wrongs(void) {
    unsigned char seen[8];
    try(munmap(base + 1, PAGE));
    try(munmap(base, 0));
    try(mprotect(base + 1, PAGE, PROT_READ));
    try(mprotect(base, 0, PROT_READ));
    try(mprotect(base, PAGE, PROT_READ | 0x40));
    try(mprotect(base, PAGE, PROT_READ | PROT_GROWSDOWN));
    try(mprotect(base, -PAGE, PROT_READ));
    try(madvise(base + 1, PAGE, MADV_DONTNEED));
    try(madvise(base, 0, MADV_DONTNEED));
    try(madvise(base, 0, 99));
    try(madvise(base, -1ul, MADV_DONTNEED));
    try(madvise(base, 100, MADV_WILLNEED));
    try(mlock(base + 1, 1));
    try(mlock(base, 0));
    try(mlock(base, -1ul));
    try(munlock(base + 1, 1));
    try(mlock2(base, PAGE, 77));
    try(msync(base + 1, PAGE, MS_ASYNC));
    try(msync(base, PAGE, MS_ASYNC | MS_SYNC));
    try(msync(base, PAGE, 64));
    try(msync(base, 0, MS_ASYNC));
    try(mincore(base + 1, PAGE, seen));
    try(mincore(base, 0, seen));
    try(mincore(base, PAGE, (void *)8));
    try(mremap(base + 1, PAGE, PAGE, 0));
    try(mremap(base, PAGE, 0, MREMAP_MAYMOVE));
    try(mremap(base, 0, PAGE, MREMAP_MAYMOVE));
    try(mremap(base, PAGE, PAGE, 64));
    try(mremap(base, PAGE, PAGE, MREMAP_FIXED, base + 4 * PAGE));
    try(mremap(base, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + 1));
    try(mremap(base, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + PAGE));
    try(mremap(base, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP));
    try(mremap(base, PAGE, PAGE, MREMAP_DONTUNMAP));
    try(mmap(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    try(mmap(0, MIB, PROT_READ, MAP_ANONYMOUS, -1, 0));
    try(mmap(0, MIB, PROT_READ, MAP_PRIVATE | MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1l : 0);
    try(mmap(0, 1ul << 60, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    try(mmap(base + 1, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    try(mmap(base, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    try(mmap(base, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    try(mmap(0, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1));
}

// What is read only, or not accessible, is not written to.
static void rights(void) {
    must(mprotect(base, PAGE, PROT_READ));
    must(mprotect(base + PAGE, PAGE, PROT_NONE));
    try(madvise(base, PAGE, MADV_POPULATE_READ));
    try(madvise(base, PAGE, MADV_POPULATE_WRITE));
    try(madvise(base + PAGE, PAGE, MADV_POPULATE_READ));
    try(madvise(base + PAGE, PAGE, MADV_DONTNEED));
    try(madvise(base + PAGE, PAGE, MADV_WILLNEED));
    try(mlock(base, PAGE));
    try(munlock(base, 2 * PAGE));
    int ends[2];
    must(pipe(ends));
    try(write(ends[1], base, 10));
    try(read(ends[0], base, 10));
    try(write(ends[1], base + PAGE, 10));
    must(write(ends[1], "0123456789", 10));
    try(read(ends[0], base, 10));
    try(read(ends[0], base + PAGE, 10));
    try(read(ends[0], base + 7 * PAGE, 10));
}

int main(int count, char **given) {
    int is_large = count > 1 && !strcmp(given[1], "large");
    char *data = 0;
    if (is_large) data = pages(64 * MIB), fill(data, 64 * MIB, 1), thrash();
    // Of a mapping that is long enough to be worth something, with nothing mapped right behind it.
    for (int part = 0; part < 3; part++) {
        char *all = pages(4 * MIB);
        base = all + 2 * MIB;
        must(munmap(base + 8 * PAGE, 2 * MIB - 8 * PAGE));
        memset(base, 7, 8 * PAGE);
        if (part == 0) holes();
        if (part == 1) wrongs();
        if (part == 2) rights();
        must(munmap(all, 2 * MIB));
    }
    if (is_large) thrash(), check("memory", wrong(data, 64 * MIB, 1));
    printf("%d answers\n", shown);
    return verdict();
}
