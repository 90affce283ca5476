// A namespace of processes with a /proc of its own, in which a large process has the number of one outside.
#include "behaviour.h"
#include <spawn.h>
#include <sys/mount.h>

static char *data;
enum { BYTES = 64 << 20 };

// The next process gets this number, if it is free.
static int next_is(pid_t number) {
    char text[32];
    int file = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
    snprintf(text, sizeof text, "%d", number - 1);
    int done = file >= 0 && write(file, text, strlen(text)) > 0;
    close(file);
    return done;
}

// The first process of the namespace; one that it starts gets the number.
static int first(pid_t number) {
    if (mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) || mount("proc", "/proc", "proc", 0, 0)) return 77;
    if (!next_is(number)) return 77;
    pid_t pid = must(fork());
    if (pid == 0) {
        if (getpid() != number) _exit(77);
        size_t bad = wrong(data, BYTES, 1);
        thrash();
        // Whoever takes it for the other one has some time for that.
        usleep(800000);
        _exit(bad + wrong(data, BYTES, 1) ? 1 : 5);
    }
    return ended(pid);
}

int main(void) {
    data = pages(BYTES);
    fill(data, BYTES, 1);
    thrash();
    // Far from the numbers of others, so that those behind it are nobody's.
    pid_t outside, own = getpid();
    next_is(own + 1000);
    char *sleeps[] = {"sleep", "60", 0};
    if (posix_spawnp(&outside, "sleep", 0, 0, sleeps, environ)) skip("no sleep");
    next_is(own + 1);
    if (unshare(CLONE_NEWPID | CLONE_NEWNS)) skip("unshare: %s", strerror(errno));
    pid_t pid = must(fork());
    if (pid == 0) _exit(first(outside));
    int inside = ended(pid);
    must(kill(outside, SIGTERM));
    int other = ended(outside);
    if (inside == 77) skip("no /proc can be mounted, or numbers of processes not be chosen");
    printf("inside %d, outside %d\n", inside, other);
    check("data", wrong(data, BYTES, 1));
    return verdict();
}
