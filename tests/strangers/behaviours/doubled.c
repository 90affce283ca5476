// Ring buffers that are mapped twice, one after the other, in address space that was reserved first; seals; duplicates by mremap.
#include "behaviour.h"

static char *twice(int file, size_t bytes, int reserve) {
    char *base = (char *)must(mmap(0, 2 * bytes, reserve, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (int i = 0; i < 2; i++) must(mmap(base + i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
    return base;
}

int main(void) {
    size_t bytes = MIB, all = 64 * MIB;
    for (int large = 0; large < 2; large++) {
        char *data = large ? pages(all) : 0;
        if (large) fill(data, all, 1), thrash();
        int file = must(memfd_create("ring", MFD_ALLOW_SEALING));
        must(ftruncate(file, bytes));
        char *ring = twice(file, bytes, large ? PROT_READ | PROT_WRITE : PROT_NONE);
        fill(ring + bytes / 2, bytes, 5);
        check("across the border", wrong(ring + bytes / 2, bytes, 5) + !!memcmp(ring, ring + bytes, bytes));
        printf("seals %d", fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
        printf(" %d", ftruncate(file, 2 * bytes));
        printf(" %d", fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
        printf(" %s", errno == EBUSY ? "busy" : "other");
        char *more = mremap(ring, 0, bytes, MREMAP_MAYMOVE);
        printf(" %s\n", more == MAP_FAILED ? strerror(errno) : memcmp(more, ring, bytes) ? "other content" : "a third time");
        must(munmap(more, bytes));
        // A part of it is memory of its own again.
        must(mmap(ring + bytes, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        check("fresh", nonzero(ring + bytes, bytes));
        fill(ring + bytes, bytes, 6);
        if (large) thrash();
        check("of its own", wrong(ring + bytes, bytes, 6));
        // In a child both follow their kind.
        pid_t pid = must(fork());
        if (!pid) {
            ring[0] = 77, ring[bytes] = 77;
            _exit(0);
        }
        printf("child %d: ", ended(pid));
        printf("%d %s\n", ring[0], ring[bytes] == 77 ? "shared" : "private");
        must(munmap(ring, 2 * bytes));
        printf("write seal %d\n", fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
        if (large) check("memory", wrong(data, all, 1));
        close(file);
    }
    return verdict();
}
