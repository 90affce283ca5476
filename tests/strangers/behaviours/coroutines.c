// 64 coroutines (makecontext) on mapped stacks, far in between.
#include "behaviour.h"
#include <ucontext.h>
enum { COUNT = 64 };
static ucontext_t center, others[COUNT];
static size_t bad;
static void run(int number) {
    volatile char deep[MIB];
    for (int round = 0; round < 3; round++) {
        fill((void *)deep, sizeof deep, number * 10 + round);
        swapcontext(&others[number], &center);
        bad += wrong((void *)deep, sizeof deep, number * 10 + round);
    }
}
int main(void) {
    for (int i = 0; i < COUNT; i++) {
        getcontext(&others[i]);
        others[i].uc_stack.ss_sp = pages(2 * MIB);
        others[i].uc_stack.ss_size = 2 * MIB;
        others[i].uc_link = &center;
        makecontext(&others[i], (void (*)(void))run, 1, i);
    }
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT; i++) swapcontext(&center, &others[i]);
        if (round == 1) thrash();
    }
    check("coroutines", bad);
    return verdict();
}
