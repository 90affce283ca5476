// Ends in a certain way after having been large. usage: ending exit N | _exit N | quick N | signal N | thread N | abort | segv | atexit | return N
#include "behaviour.h"
static char *data;
static void last(void) { check("at exit", wrong(data, 64 * MIB, 1)); }
static void *other(void *code) {
    exit((int)(long)code);
}
int main(int count, char **given) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    int n = count > 2 ? atoi(given[2]) : 0;
    data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    check("memory", wrong(data, 64 * MIB, 1));
    const char *how = given[1];
    if (!strcmp(how, "exit")) exit(n);
    if (!strcmp(how, "_exit")) _exit(n);
    if (!strcmp(how, "quick")) quick_exit(n);
    if (!strcmp(how, "signal")) kill(getpid(), n), pause();
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "segv")) *(volatile int *)8 = 1;
    if (!strcmp(how, "atexit")) {
        thrash();
        atexit(last);
        exit(0);
    }
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, other, (void *)(long)n);
        pause();
    }
    return n;
}
