// The program uses userfaultfd itself, as virtual machines do, on memory of its own.
#include "behaviour.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
static int uffd;
static char *area;
static void *answer(void *unused) {
    char *page = aligned_alloc(PAGE, PAGE);
    for (int i = 0; i < 4096; i++) {
        struct uffd_msg message;
        if (read(uffd, &message, sizeof message) != sizeof message) return 0;
        u64 at = message.arg.pagefault.address & ~(PAGE - 1);
        fill(page, PAGE, (at - (u64)area) / PAGE);
        struct uffdio_copy copy = {.dst = at, .src = (u64)page, .len = PAGE};
        if (ioctl(uffd, UFFDIO_COPY, &copy)) return 0;
    }
    return 0;
}
int main(void) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) skip("userfaultfd: %s", strerror(errno));
    area = pages(4096 * PAGE);
    struct uffdio_register range = {.range = {(u64)area, 4096 * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(uffd, UFFDIO_REGISTER, &range)) {
        printf("register: %s\n", strerror(errno));
        return 1;
    }
    pthread_t thread;
    pthread_create(&thread, 0, answer, 0);
    size_t bad = 0;
    for (int i = 0; i < 4096; i++) bad += wrong(area + i * PAGE, PAGE, i);
    check("answered", bad);
    thrash();
    for (int i = 0; i < 4096; i++) bad += wrong(area + i * PAGE, PAGE, i);
    check("later", bad);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
