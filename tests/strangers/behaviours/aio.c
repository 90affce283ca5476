// Linux's own asynchronous I/O (io_submit) with O_DIRECT and far memory; what it is given of iocbs and vectors is far too.
#include "behaviour.h"
#include <linux/aio_abi.h>

int main(void) {
    size_t bytes = 32 * MIB, piece = 256 * 1024, count = bytes / piece;
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 64, &context)) skip("io_setup: %s", strerror(errno));
    int file = open("aio-file", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0) skip("O_DIRECT: %s", strerror(errno));
    char *data = pages(bytes), *back = pages(bytes);
    struct iocb *blocks = (void *)pages(count * PAGE), **list = (void *)pages(MIB);
    struct iovec *vectors = (void *)pages(count * PAGE);
    struct io_event *events = (void *)pages(MIB);
    fill(data, bytes, 1);
    memset(back, 9, bytes);
    for (int reading = 0; reading < 2; reading++) {
        for (size_t i = 0; i < count; i++) {
            struct iovec *vector = (void *)((char *)vectors + i * PAGE);
            struct iocb *block = list[i] = (void *)((char *)blocks + i * PAGE);
            char *at = (reading ? back : data) + i * piece;
            vector[0] = (struct iovec){at, piece / 2};
            vector[1] = (struct iovec){at + piece / 2, piece / 2};
            *block = (struct iocb){.aio_lio_opcode = reading ? IOCB_CMD_PREADV : IOCB_CMD_PWRITEV, .aio_fildes = file, .aio_buf = (u64)vector, .aio_nbytes = 2,
                                   .aio_offset = i * piece, .aio_data = i};
        }
        thrash_by(64 * MIB);
        size_t done = 0, bad = 0;
        for (size_t begun = 0; done < count;) {
            if (begun < count) begun += must(syscall(SYS_io_submit, context, count - begun < 32 ? count - begun : 32, list + begun));
            long got = must(syscall(SYS_io_getevents, context, 1, 64, events, 0));
            for (long i = 0; i < got; i++) bad += events[i].res != (long)piece;
            done += got;
        }
        check(reading ? "reads" : "writes", bad);
    }
    thrash_by(64 * MIB);
    check("written", wrong(data, bytes, 1));
    check("read", wrong(back, bytes, 1));
    unlink("aio-file");
    syscall(SYS_io_destroy, context);
    return verdict();
}
