// Memory that processes share: anonymous, memfd, System V, POSIX; a child changes it, both have memory of their own too. usage: shared anonymous|memfd|sysv|posix
#include "behaviour.h"
#include <sys/ipc.h>
#include <sys/shm.h>
int main(int count, char **given) {
    size_t bytes = 16 * MIB, own = 64 * MIB;
    char *both, *data = pages(own);
    fill(data, own, 1);
    if (!strcmp(given[1], "anonymous")) {
        both = (char *)must(mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    } else if (!strcmp(given[1], "sysv")) {
        int id = must(shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600));
        both = (char *)must(shmat(id, 0, 0));
        must(shmctl(id, IPC_RMID, 0));
    } else {
        char name[64];
        sprintf(name, "/hiroma-strangers-%d", getpid());
        int file = !strcmp(given[1], "memfd") ? memfd_create("both", 0) : shm_open(name, O_RDWR | O_CREAT, 0600);
        if (!strcmp(given[1], "posix")) shm_unlink(name);
        must(ftruncate(file, bytes));
        both = (char *)must(mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    }
    fill(both, bytes, 2);
    thrash();
    pid_t pid = must(fork());
    if (pid == 0) {
        size_t bad = wrong(both, bytes, 2) + wrong(data, own, 1);
        fill(both, bytes, 3);
        fill(data, own, 4);
        thrash();
        _exit(bad + wrong(data, own, 4) ? 1 : 4);
    }
    printf("child %d\n", ended(pid));
    thrash();
    check("shared", wrong(both, bytes, 3));
    check("own", wrong(data, own, 1));
    return verdict();
}
