// /proc/self/mem: what is far is read there and written to, also where the program itself may not write.
#include "behaviour.h"

// Calls that move an offset, or take vectors, may end early.
static size_t moving(int file, char *data, char *copy, size_t bytes) {
    size_t done = 0, bad = 0;
    must(lseek(file, (off_t)data, SEEK_SET));
    for (ssize_t some = 1; some > 0 && done < bytes; done += some > 0 ? some : 0) {
        struct iovec half[2] = {{copy + done, 1}, {copy + done + 1, bytes - done - 1}};
        some = done / PAGE % 2 && bytes - done > 1 ? readv(file, half, 2) : read(file, copy + done, bytes - done);
    }
    bad += done != bytes || memcmp(copy, data, bytes);
    thrash();
    memset(copy, 0, bytes);
    struct iovec whole = {copy, bytes};
    ssize_t some = preadv(file, &whole, 1, (off_t)data);
    bad += some <= 0 || memcmp(copy, data, some);
    thrash();
    fill(copy, bytes, 8);
    must(lseek(file, (off_t)data, SEEK_SET));
    for (done = 0, some = 1; some > 0 && done < bytes; done += some > 0 ? some : 0) {
        struct iovec rest = {copy + done, bytes - done};
        some = done / PAGE % 2 ? writev(file, &rest, 1) : write(file, copy + done, bytes - done);
    }
    return bad + (done != bytes) + wrong(data, bytes, 8);
}

int main(void) {
    char *other = pages(64 * MIB);
    fill(other, 64 * MIB, 1);
    char *code = pages(MIB), *data = pages(8 * MIB);
    fill(data, 8 * MIB, 7);
    code[0] = 1;
    must(mprotect(code, MIB, PROT_READ));
    thrash();
    int file = must(open("/proc/self/mem", O_RDWR));
    u64 value = 42, got = 0;
    // Never touched, and only readable.
    ssize_t done = pwrite(file, &value, 8, (off_t)(code + MIB / 2));
    printf("written %zd\n", done);
    check("value", *(u64 *)(code + MIB / 2) != 42);
    size_t bad = 0;
    for (size_t at = 0; at < 8 * MIB; at += 16 * PAGE) {
        done = pread(file, &got, 8, (off_t)(data + at));
        bad += done != 8 || memcmp(&got, data + at, 8);
        thrash_by(PAGE);
        got++;
        bad += pwrite(file, &got, 8, (off_t)(data + at)) != 8 || memcmp(&got, data + at, 8);
    }
    check("read and written", bad);
    thrash();
    char *copy = pages(8 * MIB);
    printf("whole: %d\n", pread(file, copy, 8 * MIB, (off_t)data) == 8 * MIB && !memcmp(copy, data, 8 * MIB));
    thrash();
    check("with an offset of its own, and vectors", moving(file, data, copy, 8 * MIB));
    done = pread(file, &got, 8, 0);
    printf("nothing there: %zd %d\n", done, errno == EIO);
    return verdict();
}
