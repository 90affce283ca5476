// The constructor of a library that dlopen loads maps much memory, while other threads outgrow the nursery. usage: nursery_linker LIBRARY
#include "behaviour.h"
#include <dlfcn.h>

enum { BYTES = 16 << 20, ROUNDS = 40 };

#ifdef LIBRARY
static char *memory;
__attribute__((constructor)) static void loaded(void) { fill(memory = pages(BYTES), BYTES, 7); }
size_t damage(void) { return wrong(memory, BYTES, 7); }
#else
static const char *library;

static void *loads(void *argument) {
    void *handle = dlopen(library, RTLD_NOW);
    size_t (*damage)(void) = handle ? dlsym(handle, "damage") : 0;
    return (void *)(damage ? damage() : 1);
}

static void *grows(void *argument) {
    size_t bad = 0;
    for (int i = 0; i < 400; i++) {
        char *block = malloc(48 << 10);
        fill(block, 48 << 10, i);
        bad += wrong(block, 48 << 10, i);
    }
    return (void *)bad;
}

// Each child is a process that is small when it begins.
static int round_of_threads(void) {
    void *(*work[3])(void *) = {loads, grows, grows}, *bad;
    pthread_t threads[3];
    size_t sum = 0;
    for (int i = 0; i < 3; i++) must(-pthread_create(&threads[i], 0, work[i], 0));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], &bad), sum += (size_t)bad;
    return sum != 0;
}

int main(int count, char **words) {
    library = words[1];
    size_t bad = 0;
    for (int i = 0; i < ROUNDS; i++) {
        pid_t pid = must(fork());
        if (pid == 0) _exit(round_of_threads());
        bad += ended(pid) != 0;
    }
    check("children", bad);
    return verdict();
}
#endif
