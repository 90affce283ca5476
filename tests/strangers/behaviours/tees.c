// Far pages go through pipes by vmsplice, are copied by tee and end in a file and a socket, while the program changes and discards them.
#include "behaviour.h"

int main(void) {
    size_t bytes = 32 * MIB, piece = 64 * 1024;
    char *data = pages(bytes), *back = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    int first[2], second[2], pair[2], file = must(open("copied", O_RDWR | O_CREAT | O_TRUNC, 0600));
    must(pipe(first)), must(pipe(second)), must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    size_t bad = 0;
    for (size_t at = 0; at < bytes; at += piece) {
        struct iovec part = {data + at, piece};
        bad += vmsplice(first[1], &part, 1, 0) != (long)piece;
        bad += tee(first[0], second[1], piece, 0) != (long)piece;
        for (size_t done = 0; done < piece;) done += must(splice(first[0], 0, file, 0, piece - done, 0));
        // Other memory is needed while the pages are in the second pipe.
        if (at % (4 * MIB) == 0) thrash_by(40 * MIB);
        for (size_t done = 0; done < piece;) {
            long some = must(splice(second[0], 0, pair[0], 0, piece - done, 0));
            for (long got = 0; got < some;) got += must(read(pair[1], back + at + done + got, some - got));
            done += some;
        }
    }
    check("calls", bad);
    check("through the second pipe", wrong(back, bytes, 1));
    memset(back, 0, bytes);
    for (size_t at = 0; at < bytes;) at += must(pread(file, back + at, bytes - at, at));
    check("in the file", wrong(back, bytes, 1));
    // A gift: the program does not use the pages any more.
    char *gift = aligned_alloc(PAGE, piece);
    fill(gift, piece, 9);
    struct iovec part = {gift, piece};
    printf("gift %s\n", vmsplice(first[1], &part, 1, SPLICE_F_GIFT) == (long)piece ? "accepted" : strerror(errno));
    madvise(gift, piece, MADV_DONTNEED);
    thrash();
    for (size_t got = 0; got < piece;) got += must(read(first[0], back + got, piece - got));
    check("gift", wrong(back, piece, 9));
    check("memory", wrong(data, bytes, 1));
    unlink("copied");
    return verdict();
}
