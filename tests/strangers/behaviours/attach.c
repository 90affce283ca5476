// System V shared memory attached over other memory (SHM_REMAP), and mappings at addresses that were given back. usage: attach kept|fork|freed
#include "behaviour.h"
#include <sys/shm.h>

static int id;
static size_t piece = 4 * MIB;

// In the middle of memory that is far in part; what is around it stays, and the addresses are used again.
static void over(int forks) {
    size_t bytes = 64 * MIB, before = 16 * MIB, after = bytes - before - piece;
    char *data = pages(bytes);
    fill(data, before, 1);
    fill(data + before, piece, 2);
    fill(data + before + piece, after, 3);
    char *view = (char *)must(shmat(id, data + before, SHM_REMAP));
    printf("attached %s\n", view == data + before ? "right" : "elsewhere");
    fill(view, piece, 4);
    thrash_by(96 * MIB);
    char *other = (char *)must(shmat(id, 0, 0));
    check("other view", wrong(other, piece, 4));
    must(shmdt(other));
    check("view", wrong(view, piece, 4));
    check("before", wrong(data, before, 1));
    check("after", wrong(data + before + piece, after, 3));
    if (forks) {
        pid_t pid = must(fork());
        if (pid == 0) {
            size_t bad = wrong(view, piece, 4) + wrong(data, before, 1);
            fill(view, piece, 5);
            _exit(bad ? 9 : 6);
        }
        printf("child %d\n", ended(pid));
        check("view, changed by the child", wrong(view, piece, 5));
    }
    must(shmdt(view));
    char *again = (char *)must(mmap(view, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    check("again", nonzero(again, piece));
    fill(again, piece, 6);
    thrash_by(96 * MIB);
    check("again, filled", wrong(again, piece, 6));
    check("before", wrong(data, before, 1));
}

static void say(const char *what, void *got, void *wanted, size_t bytes) {
    printf("%s: %s\n", what, got == wanted ? "right" : got == MAP_FAILED ? strerror(errno) : "elsewhere");
    if (got != MAP_FAILED) munmap(got, bytes);
}

int main(int count, char **given) {
    id = must(shmget(IPC_PRIVATE, piece, IPC_CREAT | 0600));
    if (strcmp(given[1], "freed")) over(!strcmp(given[1], "fork"));

    // Programs look for a place by reserving and giving back, and map there what must not be elsewhere.
    size_t bytes = 32 * MIB;
    char *at = (char *)must(mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    must(munmap(at, bytes));
    char *got = shmat(id, at, 0);
    printf("attached: %s\n", got == at ? "right" : got == (void *)-1 ? strerror(errno) : "elsewhere");
    if (got != (void *)-1) must(shmdt(got));
    must(shmctl(id, IPC_RMID, 0));
    int file = must(open("attach-file", O_RDWR | O_CREAT | O_TRUNC, 0600)), both = PROT_READ | PROT_WRITE;
    must(ftruncate(file, MIB));
    say("file", mmap(at, MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, 0), at, MIB);
    say("shared", mmap(at, MIB, both, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), at, MIB);
    say("code", mmap(at, MIB, both | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), at, MIB);
    say("private", mmap(at, MIB, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), at, MIB);
    unlink("attach-file");
    return verdict();
}
