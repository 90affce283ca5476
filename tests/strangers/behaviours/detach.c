// System V shared memory attached over memory that nothing has touched (SHM_REMAP), detached, and the addresses used again.
#include "behaviour.h"
#include <sys/shm.h>

int main(void) {
    size_t piece = 4 * MIB;
    int id = must(shmget(IPC_PRIVATE, piece, IPC_CREAT | 0600));
    char *data = pages(4 * piece), *view = (char *)must(shmat(id, data + piece, SHM_REMAP));
    must(shmctl(id, IPC_RMID, 0));
    printf("attached %s\n", view == data + piece ? "right" : "elsewhere");
    fill(view, piece, 1);
    fill(data, piece, 2);
    fill(data + 2 * piece, 2 * piece, 3);
    check("view", wrong(view, piece, 1));
    must(shmdt(view));
    char *again = (char *)must(mmap(view, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    check("again", nonzero(again, piece));
    fill(again, piece, 4);
    thrash_by(64 * MIB);
    check("again, filled", wrong(again, piece, 4));
    check("before", wrong(data, piece, 2));
    check("after", wrong(data + 2 * piece, 2 * piece, 3));
    return verdict();
}
