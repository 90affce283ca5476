// fork beside threads that have many thread-specific values: the C library clears its tables of them in the child, and only these.
#include "behaviour.h"
enum { KEYS = 64, THREADS = 8, BLOCKS = 64 };
static pthread_key_t keys[KEYS];
static int go[2], ready;
static char *near_tables[THREADS][BLOCKS];
static void *waits(void *given) {
    long me = (long)given;
    char c;
    for (int i = 0; i < BLOCKS; i++) {
        // A second table is allocated for the later keys, among blocks of the same size.
        if (i == BLOCKS / 2) must(-pthread_setspecific(keys[KEYS - 1], &go));
        near_tables[me][i] = malloc(512);
        fill(near_tables[me][i], 512, me * 100 + i);
    }
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    must(read(go[0], &c, 1));
    return 0;
}
static size_t bad(void) {
    size_t bad = 0;
    for (int k = 0; k < THREADS; k++)
        for (int i = 0; i < BLOCKS; i++) bad += wrong(near_tables[k][i], 512, k * 100 + i) != 0;
    return bad;
}
int main(void) {
    pthread_t thread;
    must(pipe(go));
    char *more = pages(64 * MIB);
    fill(more, 64 * MIB, 1);
    for (int i = 0; i < KEYS; i++) must(-pthread_key_create(&keys[i], 0));
    for (long k = 0; k < THREADS; k++) must(-pthread_create(&thread, 0, waits, (void *)k));
    while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) < THREADS) usleep(1000);
    for (int round = 0; round < 4; round++) {
        for (int k = 0; k < THREADS; k++)
            for (int i = 0; i < BLOCKS; i++) madvise((void *)((size_t)near_tables[k][i] & -PAGE), PAGE, MADV_PAGEOUT);
        thrash();
        pid_t child = must(fork());
        if (child == 0) {
            check("in the child", bad());
            _exit(verdict());
        }
        printf("child %d\n", ended(child));
    }
    check("in the parent", bad());
    printf("value %d\n", pthread_getspecific(keys[KEYS - 1]) == 0);
    fflush(stdout);
    _exit(verdict());
}
