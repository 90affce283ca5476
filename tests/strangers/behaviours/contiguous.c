// A program at a fixed address, without randomised addresses, that takes its own data and its heap (sbrk) for one piece, as GCL does.
#include "behaviour.h"
#include <sys/personality.h>
extern char end;
#ifdef OWN
// Its own allocator, which expects to be the first to move the break.
static int calls, begun;
void *malloc(size_t bytes) {
    calls += !begun;
    bytes = (bytes + 31) / 16 * 16;
    size_t *block = sbrk(bytes);
    if (block == (void *)-1) return 0;
    *block = bytes - 16;
    return block + 2;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t bytes) {
    void *block = malloc(count * bytes);
    return block ? memset(block, 0, count * bytes) : 0;
}
void *realloc(void *old, size_t bytes) {
    void *block = malloc(bytes);
    size_t had = old ? ((size_t *)old)[-2] : 0;
    return block && old ? memcpy(block, old, had < bytes ? had : bytes) : block;
}
#endif
int main(int count, char **given) {
#ifdef OWN
    printf("%d blocks before it begins\n", calls);
    fflush(stdout);
    begun = 1;
#endif
    unsigned long now = must(personality(0xffffffff));
    if (!(now & ADDR_NO_RANDOMIZE)) {
        if (personality(now | ADDR_NO_RANDOMIZE) == -1) skip("personality: %s", strerror(errno));
        must(execv("/proc/self/exe", given));
    }
    setvbuf(stdout, 0, _IONBF, 0);
    char *first = (char *)(((uintptr_t)&end + PAGE - 1) / PAGE * PAGE), *start = sbrk(0);
    // The C library may have allocated already.
    printf("%s\n", start >= first && start - first < (long)MIB ? "one piece" : "two pieces");
    // Its pages have numbers from the first one on.
    must(sbrk(first + 96 * MIB - start));
    fill(first + MIB, 95 * MIB, 3);
    thrash();
    check("kept", wrong(first + MIB, 95 * MIB, 3));
    must(brk(first + 32 * MIB));
    must(sbrk(MIB));
    check("zero", nonzero(first + 32 * MIB, MIB));
    pid_t child = must(fork());
    if (child == 0) _exit(wrong(first + MIB, 31 * MIB, 3) != 0);
    printf("child %d\n", ended(child));
    return verdict();
}
