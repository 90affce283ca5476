// UMap's benchmark `umapsort`, in memory of UMap (`umap FILE`) or in ordinary memory (`memory`):
// words in descending order are sorted in parallel, and verified.
// usage: sort umap|memory MIB THREADS [FILE]
#include <fcntl.h>
#include <omp.h>
#include <parallel/algorithm>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <umap/umap.h>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 4) fail("usage: sort umap|memory MIB THREADS [FILE]");
    const bool is_umap = !strcmp(argv[1], "umap");
    const size_t bytes = strtoul(argv[2], nullptr, 10) << 20, count = bytes / sizeof(uint64_t);
    omp_set_num_threads(atoi(argv[3]));
    void *memory;
    if (is_umap) {
        int file = open(argv[4], O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
        if (file < 0 || posix_fallocate(file, 0, bytes)) fail(argv[4]);
        memory = umap(nullptr, bytes, PROT_READ | PROT_WRITE, UMAP_PRIVATE, file, 0);
        if (memory == UMAP_FAILED) fail("umap");
    } else {
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) fail("mmap");
    }
    auto *words = static_cast<uint64_t *>(memory);
    const double start = now();
#pragma omp parallel for
    for (size_t at = 0; at < count; at++) words[at] = count - at;
    const double filled = now();
    __gnu_parallel::sort(words, words + count, std::less<uint64_t>(), __gnu_parallel::quicksort_tag());
    const double sorted = now();
    size_t wrong = 0;
#pragma omp parallel for reduction(+ : wrong)
    for (size_t at = 0; at < count; at++) wrong += words[at] != at + 1;
    printf("{\"fill_s\": %.3f, \"sort_s\": %.3f, \"verify_s\": %.3f, \"wrong\": %zu}\n", filled - start,
           sorted - filled, now() - sorted, wrong);
    fflush(stdout);
    if (is_umap) uunmap(memory, bytes);
    return wrong != 0;
}
