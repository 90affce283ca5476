/*
 * What this kernel offers to far memory: prints one `probe: NAME VALUE` line for each thing asked.
 *
 * The numbers are written out here because the headers of the build machine may be older than the kernel under test.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define HUGE (2UL << 20)
#define PAGE 4096UL

struct move_args {
    uint64_t dst, src, len, mode;
    int64_t moved;
};
#define IOCTL_MOVE _IOWR(0xAA, 0x05, struct move_args)

static const char *const FEATURES[] = {
    "PAGEFAULT_FLAG_WP", "EVENT_FORK",    "EVENT_REMAP",   "EVENT_REMOVE",       "MISSING_HUGETLBFS",  "MISSING_SHMEM",
    "EVENT_UNMAP",       "SIGBUS",        "THREAD_ID",     "MINOR_HUGETLBFS",    "MINOR_SHMEM",        "EXACT_ADDRESS",
    "WP_HUGETLBFS_SHMEM", "WP_UNPOPULATED", "POISON",      "WP_ASYNC",           "MOVE",
};
static const char *const IOCTLS[] = {
    [0] = "REGISTER", [1] = "UNREGISTER", [2] = "WAKE", [3] = "COPY", [4] = "ZEROPAGE",
    [5] = "MOVE", [6] = "WRITEPROTECT", [7] = "CONTINUE", [8] = "POISON", [0x3f] = "API",
};

static void print_bits(const char *name, uint64_t bits, const char *const *names, size_t count)
{
    printf("probe: %s %#llx", name, (unsigned long long)bits);
    for (size_t bit = 0; bit < 64; bit++) {
        if (!(bits >> bit & 1))
            continue;
        if (bit < count && names[bit])
            printf(" %s", names[bit]);
        else
            printf(" bit%zu", bit);
    }
    printf("\n");
}

static int open_with(uint64_t features, int flags, struct uffdio_api *api)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | flags);
    if (fd < 0)
        return -1;
    *api = (struct uffdio_api){ .api = UFFD_API, .features = features };
    if (ioctl(fd, UFFDIO_API, api) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* 2 MiB aligned private anonymous memory; the slack is left mapped. */
static char *map_huge(size_t len)
{
    char *raw = mmap(NULL, len + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return (char *)(((uintptr_t)raw + HUGE - 1) & ~(HUGE - 1));
}

static long huge_kib(const char *addr)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to;
    long kib = -1;
    int inside = 0;
    while (smaps && fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = (unsigned long)addr >= from && (unsigned long)addr < to;
        else if (inside && sscanf(line, "AnonHugePages: %ld", &kib) == 1)
            break;
    }
    if (smaps)
        fclose(smaps);
    return kib;
}

static void probe_move(int fd, size_t len, int huge, const char *name)
{
    char *src = map_huge(HUGE), *dst = map_huge(HUGE);
    madvise(src, HUGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    struct uffdio_register reg = { .range = { (uintptr_t)dst, HUGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    if (ioctl(fd, UFFDIO_REGISTER, &reg) != 0) {
        printf("probe: %s register failed: %s\n", name, strerror(errno));
        return;
    }
    memset(src, 0x5a, len);
    struct move_args move = { .dst = (uintptr_t)dst, .src = (uintptr_t)src, .len = len };
    int rc = ioctl(fd, IOCTL_MOVE, &move);
    if (rc != 0)
        printf("probe: %s no (%s)\n", name, strerror(errno));
    else
        printf("probe: %s yes moved=%lld content=%s huge_kib_after=%ld\n", name, (long long)move.moved,
               dst[0] == 0x5a && dst[len - 1] == 0x5a ? "right" : "WRONG", huge_kib(dst));
}

static void probe_wp(int fd)
{
    char *mem = map_huge(HUGE);
    madvise(mem, HUGE, MADV_NOHUGEPAGE);
    memset(mem, 1, 16 * PAGE);
    struct uffdio_register reg = { .range = { (uintptr_t)mem, HUGE },
                                   .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP };
    if (ioctl(fd, UFFDIO_REGISTER, &reg) != 0) {
        printf("probe: write_protect_anonymous no (%s)\n", strerror(errno));
        return;
    }
    print_bits("ioctls_range_anonymous", reg.ioctls, IOCTLS, sizeof IOCTLS / sizeof *IOCTLS);
    struct uffdio_writeprotect wp = { .range = { (uintptr_t)mem, 16 * PAGE }, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
    printf("probe: write_protect_anonymous %s\n", ioctl(fd, UFFDIO_WRITEPROTECT, &wp) == 0 ? "yes" : strerror(errno));
    static char page[PAGE];
    struct uffdio_copy copy = { .dst = (uintptr_t)mem + 32 * PAGE, .src = (uintptr_t)page, .len = PAGE,
                                .mode = UFFDIO_COPY_MODE_WP };
    printf("probe: copy_write_protected %s\n", ioctl(fd, UFFDIO_COPY, &copy) == 0 ? "yes" : strerror(errno));
}

static void probe_madvise(const char *name, int advice)
{
    char *mem = map_huge(HUGE);
    memset(mem, 1, HUGE);
    int rc = madvise(mem, HUGE, advice);
    printf("probe: %s %s\n", name, rc == 0 ? "yes" : strerror(errno));
}

static void print_file(const char *name, const char *path)
{
    char text[256] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (got > 0)
        text[strcspn(text, "\n")] = 0;
    printf("probe: %s %s\n", name, got > 0 ? text : "none");
    if (fd >= 0)
        close(fd);
}

int main(void)
{
    struct utsname uts;
    struct uffdio_api api;
    uname(&uts);
    printf("probe: kernel %s\n", uts.release);

    int fd = open_with(0, 0, &api);
    if (fd < 0) {
        printf("probe: userfaultfd no (%s)\n", strerror(errno));
        return 1;
    }
    print_bits("features", api.features, FEATURES, sizeof FEATURES / sizeof *FEATURES);
    print_bits("ioctls_api", api.ioctls, IOCTLS, sizeof IOCTLS / sizeof *IOCTLS);
    uint64_t offered = api.features;
    close(fd);

    /* Everything that far memory may ask for at once: the kernel must accept the combination, not only list it. */
    uint64_t wanted = offered & ~(uint64_t)(1 << 7);
    fd = open_with(wanted, O_NONBLOCK, &api);
    printf("probe: all_but_sigbus_together %s\n", fd >= 0 ? "yes" : strerror(errno));
    if (fd >= 0)
        close(fd);
    fd = open_with(offered & (1 << 0 | 1 << 3 | 1 << 8 | 1 << 16), O_NONBLOCK, &api);
    if (fd < 0) {
        printf("probe: open_for_tests no (%s)\n", strerror(errno));
        return 1;
    }
    probe_wp(fd);
    probe_move(fd, PAGE, 0, "move_4k");
    probe_move(fd, HUGE, 1, "move_2m");
    probe_madvise("madv_populate_write", 23);
    probe_madvise("madv_collapse", 25);

    int dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    printf("probe: dev_userfaultfd %s\n", dev >= 0 ? "yes" : strerror(errno));
    char path[] = "/tmp/probe-XXXXXX";
    int file = mkostemp(path, O_CLOEXEC);
    int direct = file < 0 ? -1 : open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    printf("probe: direct_io_in_tmp %s\n", direct >= 0 ? "yes" : strerror(errno));
    unlink(path);
    long ring = syscall(SYS_io_uring_setup, 0, NULL);
    printf("probe: io_uring %s\n", ring < 0 && errno != ENOSYS && errno != EPERM ? "yes" : strerror(errno));
    print_file("unprivileged_userfaultfd", "/proc/sys/vm/unprivileged_userfaultfd");
    print_file("io_uring_disabled", "/proc/sys/kernel/io_uring_disabled");
    print_file("thp", "/sys/kernel/mm/transparent_hugepage/enabled");
    print_file("thp_defrag", "/sys/kernel/mm/transparent_hugepage/defrag");
    return 0;
}
