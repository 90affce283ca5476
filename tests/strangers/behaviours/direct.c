// O_DIRECT writes from and reads into memory that leaves and comes back at the same time.
#include "behaviour.h"
static volatile int over;
static void *pressure(void *unused) {
    while (!over) thrash();
    return 0;
}
int main(void) {
    size_t bytes = 48 * MIB, piece = 256 << 10;
    int file = open("direct", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0) skip("O_DIRECT: %s", strerror(errno));
    char *data = pages(bytes), *back = pages(bytes);
    fill(data, bytes, 1);
    pthread_t thread;
    must(pthread_create(&thread, 0, pressure, 0));
    for (size_t at = 0; at < bytes; at += piece)
        if (pwrite(file, data + at, piece, at) != (long)piece) printf("write: %s\n", strerror(errno));
    for (size_t at = 0; at < bytes; at += piece)
        if (pread(file, back + at, piece, at) != (long)piece) printf("read: %s\n", strerror(errno));
    over = 1;
    pthread_join(thread, 0);
    check("written", wrong(data, bytes, 1));
    check("read", wrong(back, bytes, 1));
    unlink("direct");
    return verdict();
}
