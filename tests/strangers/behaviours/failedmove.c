// An mremap onto memory that fails for another reason than its target: what is there stays. usage: failedmove small|large
#include "behaviour.h"

static char *target;
enum { SIZE = 4 * MIB };

static void onto(const char *what, void *old, size_t old_len, size_t new_len, int flags) {
    void *moved = mremap(old, old_len, new_len, flags | MREMAP_FIXED, target + MIB);
    printf("%s: %s\n", what, moved == MAP_FAILED ? strerror(errno) : "moved");
    check("target", wrong(target, SIZE, 3));
}

int main(int count, char **given) {
    char *data = 0;
    if (count > 1 && !strcmp(given[1], "large")) data = pages(64 * MIB), fill(data, 64 * MIB, 1), thrash();
    target = pages(SIZE);
    fill(target, SIZE, 3);
    int file = must(memfd_create("some", 0));
    must(ftruncate(file, MIB));
    char *shared = (char *)must(mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    char *gone = (char *)must(mmap(0, MIB, PROT_READ, MAP_SHARED, file, 0));
    must(munmap(gone + MIB / 2, MIB / 2));
    strcpy(shared, "here");
    onto("no move allowed", shared, MIB, MIB, 0);
    onto("unknown flag", shared, MIB, MIB, MREMAP_MAYMOVE | 64);
    onto("nothing", shared, MIB, 0, MREMAP_MAYMOVE);
    onto("half a page", shared + 1, MIB, MIB, MREMAP_MAYMOVE);
    onto("what is gone", gone + MIB / 2, PAGE, PAGE, MREMAP_MAYMOVE);
    onto("a part that is gone", gone + MIB / 4, MIB / 2, MIB, MREMAP_MAYMOVE);
    onto("kept, and longer", shared, MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    onto("kernel's half", (void *)(1ul << 63), PAGE, PAGE, MREMAP_MAYMOVE);
    if (data) thrash();
    check("later", wrong(target, SIZE, 3));
    // And one that works: the same, twice, where something was.
    char *moved = mremap(shared, 0, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target + MIB);
    printf("twice: %s, %s\n", moved == MAP_FAILED ? strerror(errno) : moved, shared);
    moved = mremap(shared, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target + 2 * MIB);
    printf("moved: %s\n", moved == MAP_FAILED ? strerror(errno) : moved);
    if (data) thrash();
    check("before", wrong(target, MIB, 3));
    if (data) check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
