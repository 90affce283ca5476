// Parts are locked and unlocked (mlock, mlock2 on fault) while memory is short.
#include "behaviour.h"
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    printf("mlock %d\n", mlock(data + 8 * MIB, 4 * MIB));
    thrash();
    check("locked", wrong(data, bytes, 1));
    printf("mlock2 %d\n", mlock2(data + 32 * MIB, 4 * MIB, MLOCK_ONFAULT));
    printf("munlock %d\n", munlock(data + 8 * MIB, 4 * MIB));
    thrash();
    check("unlocked", wrong(data, bytes, 1));
    printf("munlock %d\n", munlock(data, bytes));
    thrash();
    check("all unlocked", wrong(data, bytes, 1));
    return verdict();
}
