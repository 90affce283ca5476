// A limit on processor time that the program sets for itself counts what it does, not what it waits for.
#include "behaviour.h"

static volatile int told;
static void handler(int number) { told++; }

int main(int count, char **given) {
    // In a child, as a batch system or a judge does it.
    if (count > 1 && !strcmp(given[1], "self")) must(setrlimit(RLIMIT_CPU, &(struct rlimit){60, 61}));
    signal(SIGXCPU, handler);
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    struct rlimit limit;
    must(getrlimit(RLIMIT_CPU, &limit));
    printf("limit %s\n", limit.rlim_cur == 60 ? "60" : "another");
    size_t bad = 0;
    for (int i = 0; i < 12; i++) bad += wrong(data, bytes, 1);
    check("memory", bad);
    printf("told %d times\n", told);
    return verdict();
}
