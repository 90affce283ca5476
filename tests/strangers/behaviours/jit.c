// Code is made in memory, executed, far, and executed again: writable and executable at once, and one after the other.
#include "behaviour.h"
typedef long (*function)(long);

// mov rax, imm64; add rax, rdi; ret
static void emit(unsigned char *at, u64 value) {
    at[0] = 0x48, at[1] = 0xb8;
    memcpy(at + 2, &value, 8);
    at[10] = 0x48, at[11] = 0x01, at[12] = 0xf8, at[13] = 0xc3;
}

static size_t run(unsigned char *code, size_t bytes, u64 salt) {
    size_t bad = 0;
    for (size_t at = 0; at < bytes; at += 512) bad += ((function)(code + at))(7) != (long)(at * salt + 7);
    return bad;
}

int main(void) {
    size_t bytes = 16 * MIB;
    unsigned char *both = mmap(0, bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *turns = pages(bytes);
    if (both == MAP_FAILED) skip("no memory may be writable and executable");
    for (size_t at = 0; at < bytes; at += 512) emit(both + at, at * 3), emit(turns + at, at * 5);
    must(mprotect(turns, bytes, PROT_READ | PROT_EXEC));
    thrash_by(64 * MIB);
    check("both", run(both, bytes, 3));
    check("turns", run(turns, bytes, 5));
    for (size_t at = 0; at < bytes; at += 512) {
        if (at % PAGE == 0) must(mprotect(turns + at, PAGE, PROT_READ | PROT_WRITE));
        emit(turns + at, at * 11);
        emit(both + at, at * 13);
        if (at % PAGE == PAGE - 512) must(mprotect(turns + at / PAGE * PAGE, PAGE, PROT_READ | PROT_EXEC));
    }
    thrash_by(64 * MIB);
    check("both again", run(both, bytes, 13));
    check("turns again", run(turns, bytes, 11));
    return verdict();
}
