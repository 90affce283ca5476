// A thread that is not the first one executes another program while the others work; this one again, five times over.
#include "behaviour.h"
static char *name, *data;
static int left;
static void *work(void *unused) {
    for (;;) fill(data + 32 * MIB, 32 * MIB, 2);
}
static void *leave(void *unused) {
    char number[16];
    usleep(50000);
    sprintf(number, "%d", left - 1);
    execl("/proc/self/exe", name, number, (char *)0);
    _exit(96);
}
int main(int count, char **given) {
    name = given[0];
    left = atoi(given[1]);
    data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    check("memory", wrong(data, 64 * MIB, 1));
    if (!left) return verdict();
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_create(&thread, 0, work, 0);
    pthread_create(&thread, 0, leave, 0);
    pause();
}
