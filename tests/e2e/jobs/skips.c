/*
 * skips MIB ROUNDS LAST: fills memory that does not compress, then verifies in each round all pages whose number is not 3 modulo 64;
 * prints `skips: right`, and then reads page LAST. The first word of page N is 0x48495041 << 32 | N.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE_WORDS 512UL

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t content(uint64_t page, uint64_t word)
{
    return word ? mix(page << 32 ^ word) : 0x48495041ul << 32 | page;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    uint64_t pages = strtoull(argv[1], NULL, 0) << 8, rounds = strtoull(argv[2], NULL, 0), last = strtoull(argv[3], NULL, 0);
    volatile uint64_t *mem = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint64_t at = 0; at < pages * PAGE_WORDS; at++)
        mem[at] = content(at / PAGE_WORDS, at % PAGE_WORDS);
    for (uint64_t round = 0; round < rounds; round++) {
        /* In order at first, and then in one in which neighbours do not follow each other. */
        for (uint64_t i = 0; i < pages; i++) {
            uint64_t page = round % 2 ? i * 40503 % pages : i;
            if (page % 64 == 3)
                continue;
            for (uint64_t word = 0; word < PAGE_WORDS; word += 73) {
                if (mem[page * PAGE_WORDS + word] != content(page, word)) {
                    printf("skips: WRONG page %lu word %lu\n", (unsigned long)page, (unsigned long)word);
                    return 1;
                }
            }
        }
    }
    puts("skips: right");
    return mem[last * PAGE_WORDS] == content(last, 0) ? 0 : 1;
}
