// What another program starts: allocates 100 MiB and checks it. Without threads, so that it can be built statically and for 32 bits.
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    size_t count = 100ul << 18, bad = 0;
    unsigned *data = malloc(count * 4);
    if (!data) return 9;
    for (size_t i = 0; i < count; i++) data[i] = i * 2654435761u;
    for (size_t i = 0; i < count; i++) bad += data[i] != (unsigned)(i * 2654435761u);
    printf("%zu bits, %zu wrong\n", sizeof(void *) * 8, bad);
    return bad ? 1 : 12;
}
