// Memory mapped past the C library over memory that is in use, in pieces of all sizes; then it leaves.
#include "behaviour.h"

enum { ROUNDS = 3, STEP = 4 };

int main(void) {
    size_t bytes = 24 * MIB, bad = 0, over = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char *data = pages(bytes);
        fill(data, bytes, 1);
        // Some of it is gone before, some after, and what was just used is there.
        if (round % 2) thrash();
        for (size_t at = 0; at + STEP * MIB <= bytes; at += STEP * MIB) {
            size_t first = at / PAGE * 7919 % 700 + round, count = 1 + at / PAGE * 31 % (round < 2 ? 9 : 240);
            char *piece = data + at + first * PAGE;
            if (round == 2) bad += ((volatile u64 *)data)[at / 8] != word(at / 8, 1);
            must(syscall(SYS_mmap, piece, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
            bad += nonzero(piece, count * PAGE);
            fill(piece, count * PAGE, at + 5);
        }
        // A few pages stay in use, so that the others around them leave alone.
        for (int turn = 0; turn < 4; turn++) {
            thrash_by(24 * MIB);
            for (size_t at = 0; at < bytes; at += 11 * PAGE) ((volatile char *)data)[at];
        }
        thrash();
        for (size_t at = 0; at + STEP * MIB <= bytes; at += STEP * MIB) {
            size_t first = at / PAGE * 7919 % 700 + round, count = 1 + at / PAGE * 31 % (round < 2 ? 9 : 240);
            over += wrong(data + at + first * PAGE, count * PAGE, at + 5);
            for (size_t i = at / 8; i < (at + STEP * MIB) / 8; i++)
                if (i * 8 < at + first * PAGE || i * 8 >= at + (first + count) * PAGE) bad += ((u64 *)data)[i] != word(i, 1);
        }
        must(munmap(data, bytes));
    }
    check("over it", over);
    check("the rest", bad);
    return verdict();
}
