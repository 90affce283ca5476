// pthread_atfork handlers allocate and touch far memory, on all three sides of a fork.
#include "behaviour.h"
static char *data;
static int calls[3];
static void touch(int which) {
    calls[which]++;
    char *some = malloc(MIB);
    fill(some, MIB, which);
    if (wrong(some, MIB, which) || wrong(data + which * 16 * MIB, 0, 1)) failures++;
    ((volatile char *)data)[which * 20 * MIB] ^= 0;
    free(some);
}
static void prepare(void) { touch(0); }
static void parent(void) { touch(1); }
static void child(void) { touch(2); }
int main(void) {
    data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    pthread_atfork(prepare, parent, child);
    for (int i = 0; i < 5; i++) {
        thrash();
        pid_t pid = must(fork());
        if (pid == 0) _exit(wrong(data, 64 * MIB, 1) || calls[2] != 1 || failures ? 1 : 4);
        printf("child %d\n", ended(pid));
    }
    printf("%d %d %d\n", calls[0], calls[1], calls[2]);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
