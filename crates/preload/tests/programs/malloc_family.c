// The malloc family: alignment, sizes, content, errors. Argument `managed` or `plain` says where the memory should lie.
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>

static int managed;

static void sizes_and_alignment(void) {
    for (size_t size = 0; size < 5000; size += 7) {
        unsigned char *p = malloc(size);
        CHECK(p && (uintptr_t)p % 16 == 0 && malloc_usable_size(p) >= size);
        memset(p, 0xAA, malloc_usable_size(p));
        CHECK(is_managed(p) == managed);
        free(p);
    }
    static const size_t large[] = {100 * KIB, 1 * MIB, 15 * MIB, 16 * MIB, 17 * MIB, 200 * MIB};
    for (unsigned i = 0; i < sizeof large / sizeof *large; i++) {
        unsigned char *p = malloc(large[i]);
        CHECK(p && (uintptr_t)p % 16 == 0 && malloc_usable_size(p) >= large[i]);
        p[0] = p[large[i] - 1] = 1;
        CHECK(is_managed(p) == managed && is_managed(p + large[i] - 1) == managed);
        free(p);
    }
    for (size_t align = 8; align <= 64 * MIB; align *= 2) {
        void *p;
        CHECK(posix_memalign(&p, align, 3 * align / 2) == 0 && (uintptr_t)p % align == 0);
        memset(p, 1, 100 < align ? 100 : align);
        free(p);
        p = aligned_alloc(align, align);
        CHECK(p && (uintptr_t)p % align == 0);
        free(p);
        p = memalign(align, 10);
        CHECK(p && (uintptr_t)p % align == 0 && malloc_usable_size(p) >= 10);
        free(p);
    }
    void *p = valloc(10);
    CHECK(p && (uintptr_t)p % 4096 == 0);
    free(p);
    p = pvalloc(10);
    CHECK(p && (uintptr_t)p % 4096 == 0 && malloc_usable_size(p) >= 4096);
    free(p);
}

static void zeroes(void) {
    static const size_t sizes[] = {1, 16, 1000, 70000, 3 * MIB, 40 * MIB};
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *p = calloc(sizes[i], 1);
            CHECK(p && is_zero(p, sizes[i]));
            memset(p, 0xFF, sizes[i]);
            free(p);
        }
    }
}

static void content_survives_realloc(void) {
    size_t size = 8;
    uint64_t *p = malloc(size);
    fill(p, size, 1);
    while (size < 100 * MIB) {
        size_t more = size * 3 / 2 / 8 * 8 + 8;
        p = realloc(p, more);
        CHECK(p && is_filled(p, size, 1));
        fill(p, more, 1);
        size = more;
    }
    while (size > 100) {
        size_t less = size / 3 / 8 * 8;
        p = reallocarray(p, less / 8, 8);
        CHECK(p && is_filled(p, less, 1) && is_managed(p) == managed);
        size = less;
    }
    CHECK(realloc(p, 0) == NULL);
    p = realloc(NULL, 100);
    CHECK(p);
    free(p);
}

static void errors(void) {
    volatile size_t huge = SIZE_MAX, half = SIZE_MAX / 2 + 2;
    void *p = (void *)1;
    errno = 0;
    CHECK(malloc(huge - 100) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(half, 2) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(NULL, half, 2) == NULL && errno == ENOMEM);
    void *q = malloc(10);
    errno = 0;
    CHECK(realloc(q, huge - 100) == NULL && errno == ENOMEM);
    free(q);
    errno = 0;
    CHECK(posix_memalign(&p, 24, 10) == EINVAL && posix_memalign(&p, 2, 10) == EINVAL && p == (void *)1 && errno == 0);
    CHECK(posix_memalign(&p, 64, huge - 4096) == ENOMEM && p == (void *)1);
    errno = 77;
    for (size_t size = 1; size < 64 * MIB; size *= 3) free(malloc(size));
    CHECK(errno == 77);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
}

static void questions(void) {
    void *p = malloc(32 * MIB);
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks + info.hblkhd >= 32 * MIB);
    free(p);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    malloc_trim(0);
}

// Blocks that the dynamic linker and libc allocated before anything else ran.
static void strangers(void) {
    setenv("HIROMA_TEST", "1", 1);
    char *line = NULL;
    CHECK(asprintf(&line, "%d", 12345) == 5 && strcmp(line, "12345") == 0);
    free(line);
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file);
    size_t size = 0;
    line = NULL;
    while (getline(&line, &size, file) > 0) {}
    free(line);
    fclose(file);
}

// Whoever asks a handle for the functions, or binds to the C library's before all others, gets those that everybody has.
static void past_the_global_scope(void) {
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_DEEPBIND);
    CHECK(library && dlopen(NULL, RTLD_NOW));
    void *(*allocate)(size_t) = dlsym(library, "malloc"), *(*resize)(void *, size_t) = dlsym(library, "realloc");
    void (*release)(void *) = dlsym(library, "free");
    CHECK(allocate && resize && release && dlsym(library, "strdup") && dlsym(RTLD_DEFAULT, "strdup"));
    CHECK(!dlsym(library, "there_is_no_such_function") && dlerror());
    for (size_t size = 1; size < 8 * MIB; size *= 3) {
        release(memset(malloc(size), 1, size));
        free(memset(allocate(size), 1, size));
        free(resize(memset(malloc(size), 1, size), 2 * size));
    }
    release(strdup("text"));
    CHECK(dlclose(library) == 0);
}

int main(int argc, char **argv) {
    managed = argc > 1 && strcmp(argv[1], "managed") == 0;
    sizes_and_alignment();
    zeroes();
    content_survives_realloc();
    errors();
    questions();
    strangers();
    past_the_global_scope();
    puts("ok");
}
