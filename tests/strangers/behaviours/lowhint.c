// Memory at a low address that the program names without MAP_FIXED, and uses without a look at the result, as reproducers of
// kernel bugs do; and more that it keeps in 32 bits.
#include "behaviour.h"
int main(void) {
    mmap((void *)0x20000000, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(volatile unsigned *)0x20000000 = 7;
    *(volatile unsigned *)0x20fffffc = 8;
    void *ballast = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(ballast, 1, 64 << 20);
    uint32_t kept[8];
    for (size_t number = 0; number < 8; number++) {
        char *place = mmap((void *)(0x30000000 + number * (2 << 20)), 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED || (uintptr_t)place >> 32) return 1;
        memset(place, (int)number + 1, 2 << 20);
        kept[number] = (uint32_t)(uintptr_t)place;
    }
    unsigned sum = *(volatile unsigned *)0x20000000 + *(volatile unsigned *)0x20fffffc;
    for (size_t number = 0; number < 8; number++) sum += *(unsigned char *)(uintptr_t)kept[number];
    printf("%u %d\n", sum, ((char *)ballast)[12345678]);
    return 0;
}
