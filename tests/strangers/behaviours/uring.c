// io_uring reads into and writes from far memory, with buffers that are registered (pinned) too. usage: uring [fixed]
#include "behaviour.h"
#include <liburing.h>
int main(int count, char **given) {
    int fixed = count > 1;
    size_t bytes = 32 * MIB, piece = MIB;
    struct io_uring ring;
    int error = io_uring_queue_init(32, &ring, 0);
    if (error) skip("io_uring: %s", strerror(-error));
    int file = must(open("ring", O_RDWR | O_CREAT | O_TRUNC, 0600));
    char *data = pages(bytes), *back = pages(bytes);
    fill(data, bytes, 1);
    memset(back, 7, bytes);
    thrash();
    struct iovec buffers[] = {{data, bytes}, {back, bytes}};
    if (fixed) printf("registered %d\n", io_uring_register_buffers(&ring, buffers, 2));
    for (int reading = 0; reading < 2; reading++) {
        int bad = 0;
        for (size_t at = 0; at < bytes; at += piece) {
            struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
            if (reading && fixed) io_uring_prep_read_fixed(entry, file, back + at, piece, at, 1);
            else if (reading) io_uring_prep_read(entry, file, back + at, piece, at);
            else if (fixed) io_uring_prep_write_fixed(entry, file, data + at, piece, at, 0);
            else io_uring_prep_write(entry, file, data + at, piece, at);
            if (at / piece % 16 == 15) {
                io_uring_submit_and_wait(&ring, 16);
                for (int i = 0; i < 16; i++) {
                    struct io_uring_cqe *done;
                    io_uring_wait_cqe(&ring, &done);
                    bad += done->res != (int)piece;
                    io_uring_cqe_seen(&ring, done);
                }
            }
        }
        check(reading ? "reads" : "writes", bad);
        thrash();
    }
    check("written", wrong(data, bytes, 1));
    check("read", wrong(back, bytes, 1));
    io_uring_queue_exit(&ring);
    unlink("ring");
    return verdict();
}
