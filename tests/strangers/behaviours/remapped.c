// mremap grows a mapping over another one, and makes a second view of shared memory (an old size of zero).
#include "behaviour.h"

int main(void) {
    size_t bytes = 32 * MIB;
    char *data = pages(bytes), *over = pages(3 * bytes);
    fill(data, bytes, 1);
    fill(over, 3 * bytes, 2);
    thrash_by(64 * MIB);
    char *moved = mremap(data, bytes, 2 * bytes, MREMAP_MAYMOVE | MREMAP_FIXED, over + bytes / 2);
    printf("over another: %d\n", moved == over + bytes / 2);
    check("moved", wrong(moved, bytes, 1));
    check("grown", nonzero(moved + bytes, bytes));
    check("before it", wrong(over, bytes / 2, 2));
    size_t bad = 0;
    for (size_t i = (bytes / 2 + 2 * bytes) / 8; i < 3 * bytes / 8; i++) bad += ((u64 *)over)[i] != word(i, 2);
    check("behind it", bad);
    fill(moved + bytes, bytes, 3);
    thrash_by(64 * MIB);
    check("moved again", wrong(moved, bytes, 1) + wrong(moved + bytes, bytes, 3));
    char *shared = (char *)must(mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    fill(shared, bytes, 4);
    char *view = mremap(shared, 0, bytes, MREMAP_MAYMOVE);
    printf("second view: %d\n", view != MAP_FAILED && view != shared);
    thrash_by(64 * MIB);
    check("view", wrong(view, bytes, 4));
    fill(view, bytes, 5);
    check("shared", wrong(shared, bytes, 5));
    // Private memory has no second view.
    int refused = mremap(moved, 0, bytes, MREMAP_MAYMOVE) == MAP_FAILED;
    printf("private: %d %d\n", refused, errno == EINVAL);
    check("after it", wrong(moved, bytes, 1));
    return verdict();
}
