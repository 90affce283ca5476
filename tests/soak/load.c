/* Loads for the soak tests of `hiroma hot`: what a program does with its memory, and how fast.
 *
 * load PATTERN MIB SECONDS prints, at its end, the accesses of each second in millions.
 *   random   single words anywhere
 *   stride   one word of each page, from one end to the other, again and again
 *   chase    a chain through every tenth page, in random order
 *   moving   single words in a twelfth of the memory, in another place every three seconds
 *   fork     a child every 50 ms writes a quarter of the memory and ends
 *   churn    mappings of 8 MiB are made, written and unmapped
 * What is read is checked: every page begins with its own number.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul

static uint64_t state = 88172645463325252ull;

static uint64_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static char *map(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memory;
}

static void check(const char *memory, size_t page)
{
	if (*(const uint64_t *)(memory + page * PAGE) != page + 1) {
		fprintf(stderr, "page %zu has wrong content\n", page);
		exit(3);
	}
}

static uint64_t touch_random(char *memory, size_t first, size_t pages, size_t count)
{
	for (size_t i = 0; i < count; i++)
		check(memory, first + next_random() % pages);
	return count;
}

static uint64_t touch_fork(char *memory, size_t pages)
{
	pid_t child = fork();
	if (child == 0) {
		for (size_t page = 0; page < pages / 4; page++) {
			check(memory, page);
			memory[page * PAGE + 8] = 1;
		}
		_exit(0);
	}
	int status = 1;
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
		fprintf(stderr, "a child failed\n");
		exit(4);
	}
	usleep(50000);
	return pages / 4;
}

static uint64_t touch_churn(void)
{
	size_t bytes = 8ul << 20;
	char *memory = map(bytes);
	for (size_t at = 0; at < bytes; at += PAGE)
		memory[at] = 1;
	munmap(memory, bytes);
	return bytes / PAGE;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: load PATTERN MIB SECONDS\n");
		return 2;
	}
	const char *pattern = argv[1];
	size_t pages = (size_t)atol(argv[2]) * 256;
	double seconds = atof(argv[3]);
	char *memory = map(pages * PAGE);
	for (size_t page = 0; page < pages; page++)
		*(uint64_t *)(memory + page * PAGE) = page + 1;
	size_t links = pages / 10, *chain = NULL, link = 0;
	if (!strcmp(pattern, "chase")) {
		chain = calloc(pages, sizeof *chain);
		for (size_t i = 0; i < pages; i++)
			chain[i] = i;
		for (size_t i = pages - 1; i > 0; i--) {
			size_t other = next_random() % (i + 1), kept = chain[i];
			chain[i] = chain[other];
			chain[other] = kept;
		}
	}
	size_t at = 0;
	double start = now(), time = start;
	while (time - start < seconds) {
		double began = time;
		uint64_t touched = 0;
		while ((time = now()) < began + 1) {
			if (!strcmp(pattern, "random")) {
				touched += touch_random(memory, 0, pages, 20000);
			} else if (!strcmp(pattern, "stride")) {
				for (int i = 0; i < 200000; i++, touched++) {
					check(memory, at);
					at = at + 1 < pages ? at + 1 : 0;
				}
			} else if (!strcmp(pattern, "chase")) {
				for (int i = 0; i < 20000; i++, touched++) {
					check(memory, chain[link]);
					link = (chain[link] * 7919 + link + 1) % links;
				}
			} else if (!strcmp(pattern, "moving")) {
				size_t part = pages / 12;
				size_t place = (size_t)((time - start) / 3) % 12;
				touched += touch_random(memory, place * part, part, 20000);
			} else if (!strcmp(pattern, "fork")) {
				touched += touch_fork(memory, pages);
			} else if (!strcmp(pattern, "churn")) {
				touched += touch_churn();
			} else {
				fprintf(stderr, "there is no pattern `%s`\n", pattern);
				return 2;
			}
		}
		printf("%.3f ", touched / 1e6 / (time - began));
		fflush(stdout);
	}
	printf("\n");
	return 0;
}
