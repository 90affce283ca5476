// Forks children that check the memory they inherited and change their copy, while the parent goes on with its own:
// forks MIB ROUNDS. Prints "forks: right" if every byte was right in all of them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t word(uint64_t at, uint64_t round) {
	uint64_t x = at * 0x9e3779b97f4a7c15ull + round;
	x ^= x >> 31;
	return x * 0xbf58476d1ce4e5b9ull;
}

static int differs(const uint64_t *memory, size_t words, uint64_t round) {
	for (size_t at = 0; at < words; at++)
		if (memory[at] != word(at, round)) {
			printf("WRONG: word %zu in round %llu\n", at, (unsigned long long)round);
			fflush(stdout);
			return 1;
		}
	return 0;
}

static void fill(uint64_t *memory, size_t words, uint64_t round) {
	for (size_t at = 0; at < words; at++)
		memory[at] = word(at, round);
}

int main(int argc, char **argv) {
	if (argc < 3)
		return 2;
	size_t words = (size_t)atol(argv[1]) << 17;
	uint64_t rounds = (uint64_t)atol(argv[2]);
	uint64_t *memory = malloc(words * 8);
	fill(memory, words, 0);
	printf("filled\n");
	fflush(stdout);
	for (uint64_t round = 0; round < rounds; round++) {
		pid_t child = fork();
		if (child < 0)
			return 3;
		if (child == 0) {
			int bad = differs(memory, words, round);
			fill(memory, words / 2, 1000 + round);
			bad = bad || differs(memory, words / 2, 1000 + round);
			_exit(bad);
		}
		int bad = differs(memory, words, round);
		fill(memory, words, round + 1);
		int status = 0;
		if (waitpid(child, &status, 0) != child || status != 0 || bad) {
			printf("WRONG: child ended with status %x in round %llu\n", status, (unsigned long long)round);
			return 1;
		}
		printf("round %llu\n", (unsigned long long)round);
		fflush(stdout);
	}
	printf("forks: right\n");
	return 0;
}
