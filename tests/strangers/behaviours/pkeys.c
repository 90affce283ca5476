// Protection keys on memory that leaves and comes back.
#include "behaviour.h"
int main(void) {
    int key = pkey_alloc(0, 0);
    if (key < 0) skip("pkey_alloc: %s", strerror(errno));
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    must(pkey_mprotect(data, bytes / 2, PROT_READ | PROT_WRITE, key));
    must(pkey_set(key, PKEY_DISABLE_ACCESS));
    thrash();
    must(pkey_set(key, 0));
    check("memory", wrong(data, bytes, 1));
    must(pkey_set(key, PKEY_DISABLE_WRITE));
    thrash();
    check("read-only", wrong(data, bytes, 1));
    return verdict();
}
