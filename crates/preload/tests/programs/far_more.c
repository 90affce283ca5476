// More data than the local limit: everything written is read back, in blocks of all sizes and in one large object that grows.
#include "check.h"

int main(int argc, char **argv) {
    size_t total = (size_t)atoi(argc > 1 ? argv[1] : "256") * MIB;
    enum { SIZES = 6 };
    static const size_t sizes[SIZES] = {32, 200, 4000, 70000, 2 * MIB, 20 * MIB};
    size_t counts[SIZES];
    char **blocks[SIZES];
    for (int s = 0; s < SIZES; s++) {
        counts[s] = total / SIZES / sizes[s];
        blocks[s] = malloc((counts[s] + 1) * sizeof *blocks[s]);
        for (size_t i = 0; i < counts[s]; i++) fill(blocks[s][i] = malloc(sizes[s]), sizes[s], s * 1000003 + i);
    }
    for (int s = 0; s < SIZES; s++)
        for (size_t i = 0; i < counts[s]; i++) CHECK(is_filled(blocks[s][i], sizes[s], s * 1000003 + i));
    for (int s = 0; s < SIZES; s++)
        for (size_t i = 0; i < counts[s]; i++) free(blocks[s][i]);
    size_t len = 1 * MIB;
    char *growing = NULL;
    for (size_t old = 0; old < total; old = len, len = len * 5 / 4 / 8 * 8) {
        CHECK((growing = realloc(growing, len)));
        CHECK(is_filled(growing, old, 99));
        fill(growing, len, 99);
        if (len > total) break;
    }
    free(growing);
    puts("ok");
}
