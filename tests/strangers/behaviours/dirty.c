// A collector finds out what was written since the last round by the kernel: write protection by userfaultfd, PAGEMAP_SCAN, soft-dirty bits.
// usage: dirty sync|async|soft
#include "behaviour.h"
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

// Linux 6.7, where the headers are older.
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#ifndef PAGEMAP_SCAN
struct page_region {
    u64 start, end, categories;
};
struct pm_scan_arg {
    u64 size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PM_SCAN_WP_MATCHING 1
#define PM_SCAN_CHECK_WPASYNC 2
#define PAGE_IS_WRITTEN 2
#endif

enum { PAGES = 4096 };
static int uffd;
static char *heap;
static unsigned char seen[PAGES];

static void *notes(void *unused) {
    struct uffd_msg message;
    while (read(uffd, &message, sizeof message) == sizeof message) {
        u64 at = message.arg.pagefault.address & -PAGE;
        seen[(at - (u64)heap) / PAGE] = 1;
        struct uffdio_writeprotect allow = {.range = {at, PAGE}};
        if (ioctl(uffd, UFFDIO_WRITEPROTECT, &allow)) return 0;
    }
    return 0;
}

static void protect(void) {
    struct uffdio_writeprotect all = {.range = {(u64)heap, PAGES * PAGE}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    must(ioctl(uffd, UFFDIO_WRITEPROTECT, &all));
}

static void opens(u64 features) {
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) skip("userfaultfd: %s", strerror(errno));
    struct uffdio_register range = {.range = {(u64)heap, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(uffd, UFFDIO_REGISTER, &range)) {
        printf("register: %s\n", strerror(errno));
        exit(1);
    }
}

static void scan(void) {
    static struct page_region found[PAGES];
    int map = must(open("/proc/self/pagemap", O_RDONLY));
    struct pm_scan_arg arg = {.size = sizeof arg, .flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC, .start = (u64)heap, .end = (u64)heap + PAGES * PAGE,
                              .vec = (u64)found, .vec_len = PAGES, .category_mask = PAGE_IS_WRITTEN, .return_mask = PAGE_IS_WRITTEN};
    long count = must(ioctl(map, PAGEMAP_SCAN, &arg));
    for (long i = 0; i < count; i++)
        for (u64 at = found[i].start; at < found[i].end; at += PAGE) seen[(at - (u64)heap) / PAGE] = 1;
    close(map);
}

static void soft(void) {
    int map = must(open("/proc/self/pagemap", O_RDONLY));
    static u64 entries[PAGES];
    must(pread(map, entries, sizeof entries, (u64)heap / PAGE * 8));
    for (int i = 0; i < PAGES; i++) seen[i] = entries[i] >> 55 & 1;
    close(map);
}

static void clear(void) {
    int file = must(open("/proc/self/clear_refs", O_WRONLY));
    if (write(file, "4", 1) != 1) skip("no soft-dirty bits: %s", strerror(errno));
    close(file);
}

int main(int count, char **given) {
    const char *how = given[1];
    int is_sync = !strcmp(how, "sync"), is_soft = !strcmp(how, "soft");
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    heap = pages(PAGES * PAGE);
    fill(heap, PAGES * PAGE, 2);
    if (is_soft) {
        clear();
        soft();
        int left = 0;
        for (int i = 0; i < PAGES; i++) left += seen[i];
        heap[0] = 9;
        soft();
        if (left || !seen[0]) skip("no soft-dirty bits");
    }
    else opens(is_sync ? 0 : UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED);
    pthread_t thread;
    if (is_sync) pthread_create(&thread, 0, notes, 0);
    for (int round = 0; round < 3; round++) {
        if (is_soft) clear();
        else if (is_sync) protect();
        else scan();
        memset(seen, 0, sizeof seen);
        size_t missed = 0, extra = 0;
        for (int i = round; i < PAGES; i += 7) heap[i * PAGE + 8] = round;
        thrash();
        if (is_soft) soft();
        else if (!is_sync) scan();
        for (int i = 0; i < PAGES; i++) {
            int written = i >= round && (i - round) % 7 == 0;
            missed += written && !seen[i], extra += !written && seen[i];
        }
        check("missed", missed);
        check("more than written", extra);
    }
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
