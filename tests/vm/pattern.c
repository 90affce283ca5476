/*
 * pattern [MIB] [TOUCHES]: fills memory, reads it all back, changes and reads pages at random, reads it all back again.
 * Pages of zeros and of one repeated word are among them.
 */
#include "content.h"

int main(int argc, char **argv)
{
    size_t mib = argument(argc, argv, 1, 256), touches = argument(argc, argv, 2, 4000);
    uint64_t pages = mib * MIB / PAGE;
    uint64_t *mem = map_words(pages * PAGE);
    unsigned char *round = calloc(pages, 1);
    CHECK(round);

    fill(mem, 0, pages, 1);
    memset(round, 1, pages);
    for (uint64_t page = 0; page < pages; page += 97) {
        memset(mem + page * PAGE_WORDS, page % 2 ? 0x77 : 0, PAGE);
        round[page] = 0;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t page = 0; page < pages; page++) {
            if (round[page]) {
                verify(mem, page, page + 1, round[page], pass ? "second reading" : "first reading");
                continue;
            }
            for (uint64_t i = 0; i < PAGE_WORDS; i++)
                if (mem[page * PAGE_WORDS + i] != (page % 2 ? 0x7777777777777777u : 0))
                    die("repeated word: page %lu word %lu is wrong", (unsigned long)page, (unsigned long)i);
        }
        uint64_t random = 12345;
        for (size_t touch = 0; pass == 0 && touch < touches; touch++) {
            random = mix(random);
            uint64_t page = random % pages;
            if (round[page])
                verify(mem, page, page + 1, round[page], "random reading");
            if (random >> 40 & 1) {
                round[page] = 2 + (touch & 63);
                fill(mem, page, page + 1, round[page]);
            }
        }
    }
    printf("pattern: %zu MiB right\n", mib);
    return 0;
}
