/*
 * Records of which few are hot, scattered over much memory: the hot ones are moved together onto huge pages.
 *
 *   cc hot_records.c $(pkg-config --cflags --libs hiroma) -o hot_records
 *   sudo hiroma hot serve &
 *   sudo ./hot_records 20        # seconds
 *
 * A program that moves its objects has to know where they are: here a table of pointers is the only way to a record.
 */
#include <hiroma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RECORD_BYTES = 512, RECORDS = 400000, HOT_EVERY = 64 };

struct record {
	size_t number;
	unsigned char rest[RECORD_BYTES - sizeof(size_t)];
};

static struct record *records; /* as they were at first */
static struct record **table;  /* where they are now */
static hiroma_arena *arena;
static size_t moved;

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Moves the records of active pages, until the time is up. Runs in the thread that also uses them, so nobody looks meanwhile. */
static int compact(const hps_range *range, uint64_t deadline_ns, void *context)
{
	(void)context;
	for (size_t page = 0; page < range->page_count; page++) {
		uint64_t first = range->pages[page].address, begin = (uint64_t)(uintptr_t)records;
		if (first + 4096 <= begin || first >= begin + sizeof(struct record) * RECORDS)
			continue;
		size_t number = first > begin ? (size_t)(first - begin) / RECORD_BYTES : 0;
		for (; number < RECORDS && begin + number * RECORD_BYTES < first + 4096; number++) {
			if (table[number] != &records[number])
				continue;
			struct record *copy = hiroma_arena_alloc(arena, 64, sizeof *copy);
			if (copy == NULL)
				return -1;
			memcpy(copy, &records[number], sizeof *copy);
			table[number] = copy;
			moved++;
		}
		if (now_ns() > deadline_ns && page + 1 < range->page_count)
			return HPS_MORE;
	}
	return HPS_DONE;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 10;
	hps_functions functions = {sizeof functions, NULL, compact, NULL};
	uint64_t end;
	size_t sum = 0, wanted = 0;
	int tracked;

	records = calloc(RECORDS, sizeof *records);
	table = calloc(RECORDS, sizeof *table);
	arena = hiroma_arena_create((size_t)64 << 20);
	if (records == NULL || table == NULL || arena == NULL)
		return 1;
	for (size_t number = 0; number < RECORDS; number++) {
		records[number].number = number;
		table[number] = &records[number];
	}
	tracked = hps_set_functions(&functions) == 0 && hps_enable_track(HPS_THREAD) == 0;
	if (!tracked)
		fprintf(stderr, "not tracked: %s\n", hiroma_last_error());

	end = now_ns() + (uint64_t)(seconds * 1e9);
	do {
		for (size_t number = 0; number < RECORDS; number += HOT_EVERY) {
			sum += table[number]->number;
			wanted += number;
		}
		if (tracked && hps_wait_signal(0) < 0) {
			fprintf(stderr, "no longer tracked: %s\n", hiroma_last_error());
			tracked = 0;
		}
	} while (now_ns() < end);

	hiroma_arena_stats used;
	hiroma_arena_stats_read(arena, &used, sizeof used);
	printf("%zu of %d records moved, %.1f MiB of huge pages, sum %s\n", moved, RECORDS, (double)used.huge_bytes / (1 << 20),
	       sum == wanted ? "right" : "WRONG");
	return sum != wanted;
}
