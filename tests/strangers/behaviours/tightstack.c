// clone as a fork, on a stack of a few bytes in the middle of the caller's, as D's garbage collector makes it: what the child is given lies below.
#include "behaviour.h"
struct work {
    char *data;
    size_t bytes;
    int (*how)(struct work *);
};
static int reads(struct work *work) { return wrong(work->data, work->bytes, 1) ? 9 : 6; }
static int begins(void *given) {
    struct work work = *(struct work *)given;
    return work.how(&work);
}
// More than the child needs natively until it has read what it is given.
static __attribute__((noinline)) int forks(char *data) {
    struct {
        struct work work;
        _Alignas(16) char stack[256];
    } frame = {{data, 64 * MIB, reads}, {0}};
    return ended(must(clone(begins, frame.stack + sizeof frame.stack, SIGCHLD, &frame.work)));
}
int main(void) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    printf("small: child %d\n", forks(data));
    for (int i = 0; i < 4; i++) {
        thrash();
        printf("child %d\n", forks(data));
    }
    check("parent", wrong(data, 64 * MIB, 1));
    return verdict();
}
