// The kernel reads from and writes to far memory: pipes, sockets, readv and writev, getrandom, splice, copies between threads.
#include "behaviour.h"
static int ends[2];
static char *data;
static volatile int over;
static void *writer(void *unused) {
    for (size_t at = 0; at < 64 * MIB;) at += must(write(ends[1], data + at, 64 * MIB - at > 3 * MIB ? 3 * MIB : 64 * MIB - at));
    return 0;
}
static void *pressure(void *unused) {
    while (!over) thrash();
    return 0;
}
int main(void) {
    data = pages(64 * MIB);
    char *copy = pages(64 * MIB);
    pthread_t thread, presser;
    fill(data, 64 * MIB, 1);
    pthread_create(&presser, 0, pressure, 0);
    for (int kind = 0; kind < 3; kind++) {
        must(kind == 0 ? pipe(ends) : socketpair(AF_UNIX, kind == 1 ? SOCK_STREAM : SOCK_SEQPACKET, 0, ends));
        memset(copy, 0, 64 * MIB);
        if (kind == 2) {
            for (size_t at = 0; at < 64 * MIB; at += 65536) {
                struct iovec parts[] = {{data + at, 30000}, {data + at + 30000, 35536}}, there[] = {{copy + at, 50000}, {copy + at + 50000, 15536}};
                struct msghdr out = {.msg_iov = parts, .msg_iovlen = 2}, in = {.msg_iov = there, .msg_iovlen = 2};
                if (sendmsg(ends[1], &out, 0) != 65536 || recvmsg(ends[0], &in, 0) != 65536) printf("message: %s\n", strerror(errno));
            }
        } else {
            pthread_create(&thread, 0, writer, 0);
            for (size_t got = 0; got < 64 * MIB;) {
                struct iovec parts[] = {{copy + got, (64 * MIB - got) / 2}, {copy + got + (64 * MIB - got) / 2, (64 * MIB - got) - (64 * MIB - got) / 2}};
                got += must(readv(ends[0], parts, 2));
            }
            pthread_join(thread, 0);
        }
        close(ends[0]);
        close(ends[1]);
        check(kind == 0 ? "pipe" : kind == 1 ? "stream" : "packets", wrong(copy, 64 * MIB, 1));
    }
    over = 1;
    pthread_join(presser, 0);
    int file = must(open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600));
    for (size_t at = 0; at < 64 * MIB;) at += must(write(file, data + at, 64 * MIB - at));
    memset(copy, 0, 64 * MIB);
    thrash();
    for (size_t at = 0; at < 64 * MIB;) at += must(pread(file, copy + at, 64 * MIB - at, at));
    check("file", wrong(copy, 64 * MIB, 1));
    unlink("copy");
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
