/*
 * What the test programs write: every page differs from every other and from itself in another round, half of it does not
 * compress, and any word can be recomputed from its place.
 */
#ifndef CONTENT_H
#define CONTENT_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB (1UL << 20)
#define PAGE 4096UL
#define PAGE_WORDS (PAGE / sizeof(uint64_t))

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Word `index` of round `round`. */
static inline uint64_t word_at(uint64_t index, uint64_t round)
{
    uint64_t in_page = index % PAGE_WORDS;
    if (in_page < PAGE_WORDS / 2)
        return mix(index ^ round << 48);
    return index / PAGE_WORDS << 8 | round;
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
    __builtin_va_list args;
    __builtin_va_start(args, format);
    vfprintf(stderr, format, args);
    __builtin_va_end(args);
    fputc('\n', stderr);
    exit(1);
}

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition))                                                                                             \
            die("%s:%d: %s does not hold (%s)", __FILE__, __LINE__, #condition, strerror(errno));                     \
    } while (0)

static inline uint64_t *map_words(size_t len)
{
    void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mem != MAP_FAILED);
    return mem;
}

static inline void fill(uint64_t *mem, uint64_t from_page, uint64_t to_page, uint64_t round)
{
    for (uint64_t i = from_page * PAGE_WORDS; i < to_page * PAGE_WORDS; i++)
        mem[i] = word_at(i, round);
}

static inline void verify(const uint64_t *mem, uint64_t from_page, uint64_t to_page, uint64_t round, const char *what)
{
    for (uint64_t i = from_page * PAGE_WORDS; i < to_page * PAGE_WORDS; i++)
        if (mem[i] != word_at(i, round))
            die("%s: page %lu word %lu is %#lx, not %#lx", what, (unsigned long)(i / PAGE_WORDS),
                (unsigned long)(i % PAGE_WORDS), (unsigned long)mem[i], (unsigned long)word_at(i, round));
}

static inline void verify_zero(const uint64_t *mem, uint64_t from_page, uint64_t to_page, const char *what)
{
    for (uint64_t i = from_page * PAGE_WORDS; i < to_page * PAGE_WORDS; i++)
        if (mem[i] != 0)
            die("%s: page %lu word %lu is %#lx, not zero", what, (unsigned long)(i / PAGE_WORDS),
                (unsigned long)(i % PAGE_WORDS), (unsigned long)mem[i]);
}

static inline size_t argument(int argc, char **argv, int index, size_t otherwise)
{
    return argc > index ? strtoul(argv[index], NULL, 0) : otherwise;
}

#endif
