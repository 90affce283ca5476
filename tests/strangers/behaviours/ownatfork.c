// A program that takes the C library's __register_atfork over, and runs the handlers that it was given around a clone of its own.
#include "behaviour.h"

static struct { void (*prepare)(void), (*parent)(void), (*child)(void); } handlers[64];
static int count;

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *of) {
    handlers[count++] = (typeof(handlers[0])){prepare, parent, child};
    return 0;
}

static char *data;
static size_t bytes = 64 * MIB;

static void *run(void *given) {
    FILE *file = fopen("/proc/self/stat", "r");
    int pid = -1;
    if (fscanf(file, "%d", &pid) != 1 || pid != getpid()) failures++;
    fclose(file);
    return given;
}

int main(void) {
    data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    for (int i = count; i--;)
        if (handlers[i].prepare) handlers[i].prepare();
    pid_t pid = must(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
        for (int i = 0; i < count; i++)
            if (handlers[i].child) handlers[i].child();
        // Not for ever, where the child has locks of threads that it does not have.
        alarm(20);
        pthread_t thread;
        pthread_create(&thread, 0, run, 0);
        pthread_join(thread, 0);
        check("in the child", wrong(data, bytes, 1));
        _exit(verdict());
    }
    for (int i = 0; i < count; i++)
        if (handlers[i].parent) handlers[i].parent();
    printf("child %d\n", ended(pid));
    check("in the parent", wrong(data, bytes, 1));
    return verdict();
}
