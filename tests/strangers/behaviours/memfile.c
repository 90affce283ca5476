// /proc/self/mem: what is far is read there and written to, also where the program itself may not write.
#include "behaviour.h"
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
    done = pread(file, &got, 8, 0);
    printf("nothing there: %zd %d\n", done, errno == EIO);
    return verdict();
}
