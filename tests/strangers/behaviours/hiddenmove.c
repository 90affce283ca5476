// mremap to a fixed place, or away from one that stays: also what may not be read or written, and several mappings at once.
#include "behaviour.h"

enum { SIZE = 16 << 20 };
static const char *const names[] = {"hidden", "read-only", "plain"};
static const int rights[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};

// What was moved is what it was, and the place that it has left, if it stays, is empty.
static void check_moved(int which, const char *how, char *now, char *old) {
    char what[64];
    must(mprotect(now, SIZE, PROT_READ | PROT_WRITE));
    snprintf(what, sizeof what, "%s, %s", names[which], how);
    check(what, wrong(now, SIZE, 5 + which));
    must(munmap(now, SIZE));
    if (!old) return;
    must(mprotect(old, SIZE, PROT_READ));
    check("left behind", nonzero(old, SIZE));
    must(munmap(old, SIZE));
}

int main(void) {
    for (int which = 0; which < 3; which++) {
        for (int how = 0; how < 3; how++) {
            char *old = pages(SIZE);
            fill(old, SIZE, 5 + which);
            thrash();
            must(mprotect(old, SIZE, rights[which]));
            char *to = pages(2 * SIZE);
            if (how == 0) check_moved(which, "longer", (char *)must(mremap(old, SIZE, 2 * SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to)), 0);
            int stays = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
            if (how == 1) check_moved(which, "fixed", (char *)must(mremap(old, SIZE, SIZE, stays | MREMAP_FIXED, to)), old);
            if (how == 2) check_moved(which, "anywhere", (char *)must(mremap(old, SIZE, SIZE, stays, 0)), old);
        }
    }
    // Linux 6.17 and later move several mappings at once; others refuse, and change nothing.
    char *old = pages(SIZE), *to = pages(SIZE);
    fill(old, SIZE, 9);
    must(mprotect(old + SIZE / 4, SIZE / 4, PROT_NONE));
    must(mprotect(old + SIZE / 2, SIZE / 4, PROT_READ));
    thrash();
    char *now = mremap(old, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (now == MAP_FAILED) now = old;
    int pipes[2];
    must(pipe(pipes));
    size_t bad = 0;
    for (size_t at = 0; at < SIZE; at += SIZE / 16) {
        // The kernel says what may be read and what may be written.
        int reads = write(pipes[1], now + at, 1) == 1, writes = 0;
        if (!reads) must(write(pipes[1], "x", 1));
        writes = read(pipes[0], now + at, 1) == 1;
        if (!writes) {
            char other;
            must(read(pipes[0], &other, 1));
        }
        int quarter = at / (SIZE / 4);
        bad += reads != (quarter != 1) || writes != (quarter != 1 && quarter != 2);
    }
    check("rights of several", bad);
    must(mprotect(now, SIZE, PROT_READ | PROT_WRITE));
    check("several", wrong(now, SIZE, 9));
    return verdict();
}
