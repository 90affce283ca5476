// The process ends while its threads touch far memory: by exit, by return, by a signal, and with destructors that use it.
#include "behaviour.h"

static char *data;
enum { BYTES = 40 * MIB };

static void *spin(void *salt) {
    for (size_t at = (size_t)salt * 7919 * PAGE;; at += 37 * PAGE) data[at % BYTES]++;
    return 0;
}

static void last(void) {
    size_t sum = 0;
    for (size_t at = 0; at < BYTES; at += PAGE) sum += data[at + 8];
    _exit(sum == 0 ? 13 : 14);
}

int main(void) {
    char *own = pages(64 * MIB);
    fill(own, 64 * MIB, 1);
    for (int i = 0; i < 12; i++) {
        pid_t pid = must(fork());
        if (!pid) {
            data = pages(BYTES);
            for (size_t at = 0; at < BYTES; at += PAGE) data[at] = 1;
            pthread_t thread;
            for (long k = 1; k < 5; k++) pthread_create(&thread, 0, spin, (void *)k);
            usleep(20000 + i * 3000);
            if (i % 4 == 0) exit(5);
            if (i % 4 == 1) atexit(last), exit(6);
            if (i % 4 == 2) kill(getpid(), SIGTERM), pause();
            abort();
        }
        printf("%d ", ended(pid));
        fflush(stdout);
    }
    printf("\n");
    check("memory", wrong(own, 64 * MIB, 1));
    return verdict();
}
