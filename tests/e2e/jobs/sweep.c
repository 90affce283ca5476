/*
 * sweep MIB ROUNDS [STOPFILE [IDLEFILE]]: fills memory that does not compress, then verifies and rewrites it round by round; ends
 * after ROUNDS, or, with a STOPFILE, when that file is there; does nothing while IDLEFILE is there, after it has said `idle`. Prints
 * `filled` after the first round and `sweep: right` at the end; wrong content is said on standard output and ends with code 1.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_WORDS 512UL

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    uint64_t pages = strtoull(argv[1], NULL, 0) << 8, rounds = strtoull(argv[2], NULL, 0);
    const char *stop = argc > 3 ? argv[3] : NULL, *idle = argc > 4 ? argv[4] : NULL;
    uint64_t *mem = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint64_t round = 0; stop ? access(stop, F_OK) != 0 : round < rounds; round++) {
        for (uint64_t page = 0; page < pages; page++) {
            uint64_t *words = mem + page * PAGE_WORDS;
            for (uint64_t i = 0; i < PAGE_WORDS; i++) {
                uint64_t old = round ? mix(page << 32 ^ i << 20 ^ (round - 1)) : 0;
                if (words[i] != old) {
                    printf("sweep: WRONG page %lu word %lu in round %lu: %#lx\n", (unsigned long)page, (unsigned long)i,
                           (unsigned long)round, (unsigned long)words[i]);
                    return 1;
                }
                words[i] = mix(page << 32 ^ i << 20 ^ round);
            }
        }
        if (round == 0)
            puts("filled");
        if (idle && access(idle, F_OK) == 0)
            puts("idle");
        while (idle && access(idle, F_OK) == 0)
            usleep(10000);
    }
    puts("sweep: right");
    return 0;
}
