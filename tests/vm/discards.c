/*
 * discards [MIB]: memory that the program gives back reads as zeros afterwards, and its neighbours keep their content:
 * MADV_DONTNEED, MADV_FREE, munmap, a new mapping over an old one, mremap, and memory that is reserved first and committed later.
 * Every step is taken on memory of which most is far.
 */
#define _GNU_SOURCE
#include "content.h"

static void discard_pages(uint64_t *mem, uint64_t pages)
{
    fill(mem, 0, pages, 1);
    /* Pieces of all shapes: single pages, pieces across 2 MiB borders, whole extents. */
    static const struct { uint64_t from, len; } PIECES[] = { { 3, 1 }, { 500, 20 }, { 1024, 512 }, { 1700, 900 }, { 4000, 1 } };
    for (size_t i = 0; i < sizeof PIECES / sizeof *PIECES; i++)
        CHECK(madvise(mem + PIECES[i].from * PAGE_WORDS, PIECES[i].len * PAGE, MADV_DONTNEED) == 0);
    uint64_t at = 0;
    for (size_t i = 0; i < sizeof PIECES / sizeof *PIECES; i++) {
        verify(mem, at, PIECES[i].from, 1, "between discarded pieces");
        at = PIECES[i].from + PIECES[i].len;
        verify_zero(mem, PIECES[i].from, at, "discarded piece");
        fill(mem, PIECES[i].from, at, 2);
    }
    verify(mem, at, pages, 1, "after the discarded pieces");
    at = 0;
    for (size_t i = 0; i < sizeof PIECES / sizeof *PIECES; i++) {
        at = PIECES[i].from + PIECES[i].len;
        verify(mem, PIECES[i].from, at, 2, "discarded piece that was written again");
    }
}

static void free_lazily(uint64_t *mem, uint64_t pages)
{
    fill(mem, 0, pages, 3);
    CHECK(madvise(mem + 100 * PAGE_WORDS, 3000 * PAGE, MADV_FREE) == 0);
    verify(mem, 0, 100, 3, "before lazily freed pages");
    verify(mem, 3100, pages, 3, "behind lazily freed pages");
    /* Each page keeps its content or is zero, whole; what is written afterwards stays. */
    for (uint64_t page = 100; page < 3100; page++) {
        uint64_t *words = mem + page * PAGE_WORDS;
        if (words[0] == 0)
            verify_zero(mem, page, page + 1, "lazily freed page");
        else
            verify(mem, page, page + 1, 3, "lazily freed page that is still there");
    }
    fill(mem, 100, 3100, 4);
    verify(mem, 3100, pages, 3, "behind, again");
    verify(mem, 100, 3100, 4, "lazily freed pages that were written again");
}

static void map_again(uint64_t *mem, uint64_t pages)
{
    fill(mem, 0, pages, 5);
    CHECK(mmap(mem + 700 * PAGE_WORDS, 1500 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          mem + 700 * PAGE_WORDS);
    verify(mem, 0, 700, 5, "before the new mapping");
    verify_zero(mem, 700, 2200, "new mapping over an old one");
    verify(mem, 2200, pages, 5, "behind the new mapping");
    CHECK(munmap(mem + 2200 * PAGE_WORDS, 300 * PAGE) == 0);
    verify(mem, 2500, pages, 5, "behind the hole");
    CHECK(mmap(mem + 2200 * PAGE_WORDS, 300 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          mem + 2200 * PAGE_WORDS);
    verify_zero(mem, 2200, 2500, "hole that was mapped again");
}

static void resize(uint64_t pages)
{
    uint64_t *mem = map_words(pages * PAGE), *other = map_words(pages * PAGE);
    fill(mem, 0, pages, 6);
    fill(other, 0, pages, 7);
    mem = mremap(mem, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    CHECK(mem != MAP_FAILED);
    verify(mem, 0, pages, 6, "grown mapping");
    verify_zero(mem, pages, 2 * pages, "new part of the grown mapping");
    fill(mem, pages, 2 * pages, 8);
    verify(other, 0, pages, 7, "another mapping");
    CHECK(mremap(mem, 2 * pages * PAGE, pages / 2 * PAGE, 0) == mem);
    verify(mem, 0, pages / 2, 6, "shrunk mapping");
    CHECK(munmap(mem, pages / 2 * PAGE) == 0);
    CHECK(munmap(other, pages * PAGE) == 0);
}

static void reserve_and_commit(uint64_t pages)
{
    uint64_t *mem = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(mem != MAP_FAILED);
    CHECK(mprotect(mem, pages / 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(mmap(mem + pages / 2 * PAGE_WORDS, pages / 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == mem + pages / 2 * PAGE_WORDS);
    fill(mem, 0, pages, 9);
    verify(mem, 0, pages, 9, "committed later");
    CHECK(mprotect(mem, pages / 4 * PAGE, PROT_READ) == 0);
    verify(mem, 0, pages, 9, "a part of it read-only");
    CHECK(munmap(mem, pages * PAGE) == 0);
}

int main(int argc, char **argv)
{
    uint64_t pages = argument(argc, argv, 1, 64) * MIB / PAGE;
    CHECK(pages >= 8192);
    uint64_t *mem = map_words(pages * PAGE);
    discard_pages(mem, pages);
    free_lazily(mem, pages);
    map_again(mem, pages);
    CHECK(munmap(mem, pages * PAGE) == 0);
    resize(pages);
    reserve_and_commit(pages);
    puts("discards: right");
    return 0;
}
