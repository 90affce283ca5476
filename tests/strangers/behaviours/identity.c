// Another user for a while, and for good; children, threads and memory afterwards. usage: identity effective|real|threads
#include "behaviour.h"
#include <grp.h>
static void *thread(void *data) { return (void *)wrong(data, 64 * MIB, 1); }
int main(int count, char **given) {
    if (geteuid()) skip("needs root");
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    if (!strcmp(given[1], "effective")) {
        must(setegid(65534));
        must(seteuid(65534));
    } else {
        must(setgroups(0, 0));
        must(setresgid(65534, 65534, 65534));
        must(setresuid(65534, 65534, 65534));
    }
    thrash();
    if (!strcmp(given[1], "threads")) {
        pthread_t one;
        void *bad;
        pthread_create(&one, 0, thread, data);
        pthread_join(one, &bad);
        check("thread", (size_t)bad);
    } else {
        for (int i = 0; i < 3; i++) {
            pid_t pid = must(fork());
            if (pid == 0) {
                size_t bad = wrong(data, bytes, 1);
                thrash();
                _exit(wrong(data, bytes, 1) + bad ? 1 : 4);
            }
            printf("child %d\n", ended(pid));
        }
    }
    if (!strcmp(given[1], "effective")) {
        must(seteuid(0));
        must(setegid(0));
        pid_t pid = must(fork());
        if (pid == 0) _exit(wrong(data, bytes, 1) ? 1 : 4);
        printf("root's child %d\n", ended(pid));
    }
    char *more = pages(bytes);
    fill(more, bytes, 2);
    thrash();
    check("memory", wrong(data, bytes, 1) + wrong(more, bytes, 2));
    return verdict();
}
