// Stacks that grow downwards by themselves (MAP_GROWSDOWN), the heap moved by the system call itself, and populated memory.
#include "behaviour.h"

__attribute__((noinline)) static size_t deep(int level) {
    volatile char room[2000];
    memset((char *)room, level, sizeof room);
    size_t bad = level ? deep(level - 1) : 0;
    for (size_t i = 0; i < sizeof room; i += 100) bad += room[i] != (char)level;
    return bad;
}

static void *on_it(void *of) { return (void *)deep(100); }

int main(void) {
    size_t bytes = MIB;
    char *stack = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) skip("MAP_GROWSDOWN: %s", strerror(errno));
    fill(stack, bytes / 2, 1);
    thrash_by(64 * MIB);
    pthread_attr_t how;
    pthread_t thread;
    void *bad;
    pthread_attr_init(&how);
    must(pthread_attr_setstack(&how, stack + bytes / 2, bytes / 2) ? -1 : 0);
    must(pthread_create(&thread, &how, on_it, 0) ? -1 : 0);
    thrash_by(64 * MIB);
    pthread_join(thread, &bad);
    check("stack", (size_t)bad);
    check("below it", wrong(stack, bytes / 2, 1));
    char *all = mmap(0, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    check("populated", nonzero(all, 32 * MIB));
    fill(all, 32 * MIB, 2);
    thrash_by(64 * MIB);
    // Not on all kernels; the content stays in any case.
    madvise(all, 32 * MIB, 25 /* MADV_COLLAPSE */);
    posix_madvise(all, 32 * MIB, POSIX_MADV_DONTNEED);
    madvise(all, 16 * MIB, 20 /* MADV_COLD */), madvise(all + 16 * MIB, 16 * MIB, 21 /* MADV_PAGEOUT */);
    check("advised", wrong(all, 32 * MIB, 2));
    char *end = (char *)syscall(SYS_brk, 0), *new = (char *)syscall(SYS_brk, end + 8 * MIB);
    if (new == end + 8 * MIB) {
        fill(end, 8 * MIB, 3);
        thrash_by(64 * MIB);
        check("heap", wrong(end, 8 * MIB, 3));
        syscall(SYS_brk, end + 4 * MIB);
        syscall(SYS_brk, end + 8 * MIB);
        check("kept", wrong(end, 4 * MIB, 3));
        check("grown again", nonzero(end + 4 * MIB, 4 * MIB));
    }
    return verdict();
}
