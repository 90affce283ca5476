// A program that is Go's, as far as it shows: it exports what C calls Go by, or has a build ID of Go; its heap lies where it asks for it, and children that it forks by the instruction use that.
#include "behaviour.h"

#ifdef BUILD_ID
__attribute__((section(".note.go.buildid"), aligned(4), used)) static const struct {
    uint32_t name_bytes, id_bytes, type;
    char name[4], id[4];
} note = {4, 4, 4, "Go", {'a', 'b', 'c', 'd'}};
#else
void crosscall2(void) {}
#endif

static long fork_by_instruction(void) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0) : "rcx", "r11", "memory");
    return result;
}

int main(void) {
    // Where Go's runtime has its heap, and its race detector needs it.
    void *asked = (void *)0xc000000000;
    size_t bytes = 64 * MIB;
    char *heap = (char *)must(mmap(asked, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    printf("the heap is %s\n", heap == asked ? "where it was asked for" : "elsewhere");
    fill(heap, bytes, 1);
    thrash();
    pid_t pid = must(fork_by_instruction());
    if (pid == 0) _exit(wrong(heap, bytes, 1) ? 1 : 4);
    printf("child %d\n", ended(pid));
    check("memory", wrong(heap, bytes, 1));
    return verdict();
}
