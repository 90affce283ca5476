// Holes that a program has made stay holes: it unmaps there again, or maps at these addresses, when it has become large.
#include "behaviour.h"

#define COUNT 64

static char *map(int file, size_t len) {
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    return (char *)must(mmap(0, len, PROT_READ | PROT_WRITE, flags, file, 0));
}

// Mappings that stay the kernel's: short ones, and a file's. What is mapped later fits in none of the holes.
static size_t size_of(int number) { return number < COUNT - 1 ? (3 + number % 8) * PAGE : 16 * MIB; }

int main(int count, char **arguments) {
    int again = count > 1 && !strcmp(arguments[1], "unmap");
    int file = must(memfd_create("holes", 0));
    must(ftruncate(file, 16 * MIB));
    char *pieces[COUNT];
    for (int i = 0; i < COUNT; i++) {
        pieces[i] = map(i < COUNT - 1 ? -1 : file, size_of(i));
        pieces[i][0] = (char)i;
    }
    for (int i = 0; i < COUNT; i++) {
        must(munmap(pieces[i] + PAGE, size_of(i) - 2 * PAGE));
    }
    size_t len = 64 * MIB;
    char *data = pages(len);
    fill(data, len, 1);
    thrash_by(64 * MIB);
    for (int i = 0; i < COUNT; i++) {
        char *hole = pieces[i] + PAGE;
        size_t bytes = size_of(i) - 2 * PAGE;
        must(munmap(hole, bytes));
        if (again) continue;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        must(mmap(hole, bytes, PROT_READ | PROT_WRITE, flags, -1, 0));
        fill(hole, PAGE, 2 + i);
    }
    check("large", wrong(data, len, 1));
    fill(data, len, 3);
    thrash_by(64 * MIB);
    check("large, again", wrong(data, len, 3));
    for (int i = 0; i < COUNT; i++) {
        failures += pieces[i][0] != (char)i;
        if (!again) check("hole", wrong(pieces[i] + PAGE, PAGE, 2 + i));
    }
    return verdict();
}
