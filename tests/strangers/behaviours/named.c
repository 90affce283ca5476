// Memory gets names, policies and other marks in pieces, so that it is many mappings to the kernel, and leaves and comes back.
#include "behaviour.h"
#include <linux/mempolicy.h>
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

int main(void) {
    size_t bytes = 64 * MIB, step = 192 * 1024;
    char *data = pages(bytes);
    u64 nodes = 1;
    fill(data, bytes, 1);
    for (size_t at = 0; at + step <= bytes; at += 2 * step) {
        char name[32];
        snprintf(name, sizeof name, "piece %zu", at / step);
        // Kernels without names say EINVAL; the content has to stay either way.
        prctl(PR_SET_VMA, 0, data + at, step, at % 3 ? name : "same");
        if (at % (8 * step) == 0) madvise(data + at, step, MADV_DONTDUMP);
        if (at % (12 * step) == 0) syscall(SYS_mbind, data + at, step, MPOL_BIND, &nodes, 64, 0);
        if (at % (16 * step) == 0) madvise(data + at, step, MADV_RANDOM);
    }
    thrash_by(64 * MIB);
    check("first", wrong(data, bytes, 1));
    fill(data, bytes, 2);
    for (size_t at = 0; at + step <= bytes; at += 2 * step) prctl(PR_SET_VMA, 0, data + at, step, 0);
    thrash_by(64 * MIB);
    check("second", wrong(data, bytes, 2));
    must(syscall(SYS_mbind, data, bytes, MPOL_DEFAULT, 0, 0, MPOL_MF_STRICT | MPOL_MF_MOVE));
    thrash_by(64 * MIB);
    check("third", wrong(data, bytes, 2));
    return verdict();
}
