/*
 * Sorts an array that is far larger than the memory it may use, and checks the result.
 *
 *   cc -O2 teramalloc.c $(pkg-config --cflags --libs hiroma) -o teramalloc
 *   HIROMA_LOCAL=64M HIROMA_STORE=compressed,file:/var/tmp ./teramalloc 256
 *
 * The argument is the size of the array in MiB (default 256). Exits 0 if the array came back sorted and complete.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiroma.h>

static uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

/* Sorts by the lowest byte, then the next, and so on: eight passes from one array to the other. */
static void radix_sort(uint64_t *from, uint64_t *to, size_t count)
{
	for (int shift = 0; shift < 64; shift += 8) {
		size_t place[256] = {0};
		size_t sum = 0;
		uint64_t *swap = from;

		for (size_t i = 0; i < count; i++)
			place[from[i] >> shift & 255]++;
		for (int digit = 0; digit < 256; digit++) {
			size_t here = place[digit];
			place[digit] = sum;
			sum += here;
		}
		for (size_t i = 0; i < count; i++)
			to[place[from[i] >> shift & 255]++] = from[i];
		from = to;
		to = swap;
	}
}

int main(int argc, char **argv)
{
	size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 256;
	size_t count = mib * 1024 * 1024 / sizeof(uint64_t);
	uint64_t state = 88172645463325252u, sum = 0, found = 0;
	uint64_t *array, *other;
	hiroma_stats stats;

	array = teramalloc(count * sizeof *array);
	other = teramalloc(count * sizeof *other);
	if (array == NULL || other == NULL) {
		fprintf(stderr, "teramalloc: %s (%s)\n", hiroma_last_error(), hiroma_strerror(errno));
		return 1;
	}
	for (size_t i = 0; i < count; i++)
		sum += array[i] = next_random(&state);

	radix_sort(array, other, count);

	for (size_t i = 0; i < count; i++) {
		found += array[i];
		if (i > 0 && array[i - 1] > array[i]) {
			fprintf(stderr, "out of order at %zu\n", i);
			return 1;
		}
	}
	if (found != sum) {
		fprintf(stderr, "numbers were lost: sum %llx, expected %llx\n", (unsigned long long)found, (unsigned long long)sum);
		return 1;
	}
	if (hiroma_stats_read(&stats, sizeof stats) != 0) {
		fprintf(stderr, "hiroma_stats_read: %s\n", hiroma_last_error());
		return 1;
	}
	printf("sorted %zu numbers in 2 x %zu MiB; local limit %llu MiB, most local %llu MiB, most far %llu MiB, %llu faults\n", count, mib,
	       (unsigned long long)(stats.limit_bytes >> 20), (unsigned long long)(stats.local_bytes_max >> 20),
	       (unsigned long long)(stats.far_bytes_max >> 20), (unsigned long long)stats.faults);
	terafree(array);
	terafree(other);
	return 0;
}
