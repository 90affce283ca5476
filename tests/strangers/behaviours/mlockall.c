// Everything is locked (mlockall: what is there, or also what will be), then no longer. usage: mlockall current|future
#include "behaviour.h"
int main(int count, char **given) {
    int future = count > 1 && !strcmp(given[1], "future");
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    int result = mlockall(future ? MCL_CURRENT | MCL_FUTURE : MCL_CURRENT);
    printf("mlockall %d%s%s\n", result, result ? ": " : "", result ? strerror(errno) : "");
    fflush(stdout);
    thrash();
    check("locked", wrong(data, bytes, 1));
    printf("munlockall %d\n", munlockall());
    thrash();
    check("unlocked", wrong(data, bytes, 1));
    return verdict();
}
