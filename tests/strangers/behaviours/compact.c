// Compacting collectors: the heap is set aside as a whole by mremap, and its pages come back one by one where they are touched
// (userfaultfd).
#include "behaviour.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

enum { BYTES = 24 * MIB };
static int uffd;
static char *heap, *aside;

static void *answer(void *unused) {
    struct uffd_msg message;
    while (read(uffd, &message, sizeof message) == sizeof message) {
        u64 at = message.arg.pagefault.address & -PAGE;
        struct uffdio_copy copy = {.dst = at, .src = (u64)aside + (at - (u64)heap), .len = PAGE};
        if (ioctl(uffd, UFFDIO_COPY, &copy) && errno != EEXIST) return 0;
    }
    return 0;
}

static void watch(char *at) {
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) skip("userfaultfd: %s", strerror(errno));
    struct uffdio_register range = {.range = {(u64)at, BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    must(ioctl(uffd, UFFDIO_REGISTER, &range));
}

int main(void) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    for (int round = 0; round < 3; round++) {
        heap = pages(BYTES);
        fill(heap, BYTES, 5);
        thrash();
        aside = pages(BYTES);
        char *moved = mremap(heap, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, aside);
        printf("%s\n", moved == aside ? "aside" : strerror(errno));
        watch(heap);
        pthread_t thread;
        pthread_create(&thread, 0, answer, 0);
        check("comes back", wrong(heap, BYTES, 5));
        check("aside", wrong(aside, BYTES, 5));
        close(uffd);
        must(munmap(aside, BYTES));
        must(munmap(heap, BYTES));
    }
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
