// A library that is loaded with RTLD_DEEPBIND (as PHP loads its extensions) frees what the program has allocated, and the other way round.
#ifdef LIBRARY
#include <stdlib.h>
#include <string.h>
void *give(size_t bytes) { return memset(malloc(bytes), 7, bytes); }
void *grow(void *old, size_t bytes) { return realloc(old, bytes); }
void take(void *old) { free(old); }
#else
#include "behaviour.h"
#include <dlfcn.h>
int main(int count, char **given) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    void *library = dlopen(given[1], RTLD_NOW | RTLD_GLOBAL | RTLD_DEEPBIND);
    if (!library) return 9;
    void *(*give)(size_t) = dlsym(library, "give"), *(*grow)(void *, size_t) = dlsym(library, "grow");
    void (*take)(void *) = dlsym(library, "take");
    size_t bad = 0;
    char *old[3000];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3000; i++) {
            old[i] = i % 2 ? malloc(100 + i * 5) : give(100 + i * 5);
            memset(old[i], 7, 100 + i * 5);
        }
        thrash();
        for (int i = 0; i < 3000; i++) {
            old[i] = i % 3 ? realloc(old[i], 200 + i * 5) : grow(old[i], 200 + i * 5);
            bad += old[i][99 + i * 5] != 7;
        }
        for (int i = 0; i < 3000; i++) i % 5 ? take(old[i]) : free(old[i]);
    }
    check("blocks", bad);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
#endif
