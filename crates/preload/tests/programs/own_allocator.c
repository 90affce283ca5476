// A program that brings its own malloc: a chain of free lists over mmap, as simple as can be. Its memory must still be managed.
#include "check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block { struct block *next; } *lists[48];
static char *chunk, *chunk_end;
static int calls;

static int class_of(size_t size) {
    int class = 5;
    while (((size_t)1 << class) < size) class++;
    return class;
}

void *malloc(size_t size) {
    int class = class_of(size + 16);
    size_t whole = (size_t)1 << class;
    pthread_mutex_lock(&lock);
    calls++;
    struct block *block = lists[class];
    if (block) {
        lists[class] = block->next;
    } else {
        if ((size_t)(chunk_end - chunk) < whole) {
            size_t len = whole > 4 * MIB ? whole : 4 * MIB;
            chunk = mmap(NULL, len, RW, ANON, -1, 0);
            if (chunk == MAP_FAILED) abort();
            chunk_end = chunk + len;
        }
        block = (struct block *)chunk;
        chunk += whole;
    }
    pthread_mutex_unlock(&lock);
    *(size_t *)block = class;
    return (char *)block + 16;
}

void free(void *p) {
    if (!p) return;
    struct block *block = (struct block *)((char *)p - 16);
    size_t class = *(size_t *)block;
    pthread_mutex_lock(&lock);
    block->next = lists[class];
    lists[class] = block;
    pthread_mutex_unlock(&lock);
}

void *calloc(size_t count, size_t size) {
    void *p = malloc(count * size);
    return memset(p, 0, count * size);
}

void *realloc(void *p, size_t size) {
    void *q = malloc(size);
    if (p) {
        size_t old = ((size_t)1 << *(size_t *)((char *)p - 16)) - 16;
        memcpy(q, p, old < size ? old : size);
        free(p);
    }
    return q;
}

static void *work(void *seed) {
    char *blocks[64] = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t r = mix((uintptr_t)seed + i);
        free(blocks[r % 64]);
        blocks[r % 64] = strdup("something to keep");
        CHECK(strcmp(blocks[r % 64], "something to keep") == 0);
    }
    char *big = malloc(30 * MIB);
    fill(big, 30 * MIB, 1);
    CHECK(is_managed(big) && is_filled(big, 30 * MIB, 1));
    free(big);
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)(i << 32)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        work(NULL);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && calls > 80000);
    puts("ok");
}
