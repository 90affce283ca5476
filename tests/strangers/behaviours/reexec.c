// A program replaces itself five times: through /proc/self/exe, a descriptor, with a megabyte of arguments; large each time.
#include "behaviour.h"
int main(int count, char **given, char **environment) {
    int left = atoi(given[1]);
    char *data = pages(64 * MIB), number[16];
    fill(data, 64 * MIB, 1);
    thrash();
    check("memory", wrong(data, 64 * MIB, 1));
    printf("%d arguments\n", count);
    fflush(stdout);
    if (!left) return verdict();
    sprintf(number, "%d", left - 1);
    char *few[] = {"a name", number, 0};
    if (left % 3 == 0) execv("/proc/self/exe", few);
    if (left % 3 == 1) fexecve(must(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), few, environment);
    static char long_[100001], *many[13];
    memset(long_, 'x', 100000);
    for (int i = 2; i < 12; i++) many[i] = long_;
    many[0] = "", many[1] = number;
    execv("/proc/self/exe", many);
    return 94;
}
