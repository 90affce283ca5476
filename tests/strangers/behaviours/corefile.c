// A child dies and leaves a core file: memory that was far is in it. usage: corefile
#include "behaviour.h"

int main(void) {
    char pattern[256] = "";
    int file = must(open("/proc/sys/kernel/core_pattern", O_RDONLY));
    must(read(file, pattern, 255));
    close(file);
    if (strncmp(pattern, "core", 4)) skip("core files go elsewhere: %s", pattern);
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &all)) skip("no core files: %s", strerror(errno));
    size_t bytes = 32 * MIB;
    u64 *data = (void *)pages(bytes);
    fill(data, bytes, 1);
    thrash_by(64 * MIB);
    pid_t pid = must(fork());
    if (pid == 0) abort();
    printf("child %d\n", ended(pid));
    char name[64];
    snprintf(name, sizeof name, "core.%d", pid);
    int core = open(name, O_RDONLY);
    if (core < 0) core = must(open("core", O_RDONLY));
    // Words of each page that are in the file at all.
    size_t found = 0;
    static u64 words[512];
    for (long got; (got = read(core, words, sizeof words)) == sizeof words;) {
        size_t page = 0;
        while (page < bytes / PAGE && words[1] != word(page * 512 + 1, 1)) page++;
        found += page < bytes / PAGE;
    }
    printf("pages in the core file: %zu of %zu\n", found, bytes / PAGE);
    unlink(name);
    unlink("core");
    return verdict();
}
