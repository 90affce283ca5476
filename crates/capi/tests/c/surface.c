/* Every function of hiroma.h, used rightly and wrongly. Prints what failed and exits 1. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hiroma.h>

#define MIB ((size_t)1 << 20)
#define CHECK(what)                                                                                   \
	do {                                                                                          \
		if (!(what)) {                                                                        \
			fprintf(stderr, "%s:%d: %s; errno %d, %s\n", __FILE__, __LINE__, #what,       \
			        errno, hiroma_last_error());                                          \
			exit(1);                                                                      \
		}                                                                                     \
	} while (0)
#define REFUSED(what, number, part)                                                                   \
	do {                                                                                          \
		errno = 0;                                                                            \
		CHECK((what) && errno == (number));                                                   \
		CHECK(strstr(hiroma_last_error(), (part)) != NULL);                                   \
	} while (0)

static hiroma_region *region;

static void refusals(void)
{
	struct {
		hiroma_options known;
		uint64_t later;
	} longer;
	hiroma_options options;
	hiroma_stats stats;
	hiroma_region *bogus = (hiroma_region *)&options;

	REFUSED(hiroma_stats_read(&stats, sizeof stats) == -1, EINVAL, "create a region first");
	REFUSED(hiroma_set_limit(MIB) == -1, EINVAL, "create a region first");
	REFUSED(hiroma_region_destroy(bogus) == -1, EINVAL, "not a region");

	memset(&options, 0, sizeof options);
	REFUSED(hiroma_region_create(&options, MIB) == NULL, EINVAL, "hiroma_options_init");
	hiroma_options_init(&options, sizeof options);
	options.store = "tape";
	REFUSED(hiroma_region_create(&options, MIB) == NULL, EINVAL, "`tape` is not a store");
	options.store = NULL;
	options.prefetch = 7;
	REFUSED(hiroma_region_create(&options, MIB) == NULL, EINVAL, "prefetch");

	hiroma_options_init(&longer.known, sizeof longer);
	longer.later = 1;
	REFUSED(hiroma_region_create(&longer.known, MIB) == NULL, E2BIG, "does not know");
}

static void region_life(void)
{
	struct {
		hiroma_options known;
		uint64_t later;
	} longer;
	hiroma_options options;
	hiroma_region *second;

	hiroma_options_init(&options, sizeof options);
	CHECK(options.size == sizeof options && options.prefetch == -1 && options.store == NULL);
	options.local_limit_bytes = 24 * MIB;
	options.store = "compressed:1G";
	options.replacement = "lru";
	region = hiroma_region_create(&options, 256 * MIB + 1);
	CHECK(region != NULL);
	CHECK(hiroma_region_size(region) == 256 * MIB + 4096);

	/* A structure of a later version is fine as long as what we do not know is not set. */
	hiroma_options_init(&longer.known, sizeof longer);
	second = hiroma_region_create(&longer.known, 64 * MIB);
	CHECK(second != NULL && second != region);
	CHECK(hiroma_region_size(second) == 64 * MIB);
	CHECK((uintptr_t)hiroma_region_base(second) % (2 * MIB) == 0);
	memset(hiroma_region_base(second), 0x5a, 64 * MIB);
	CHECK(((unsigned char *)hiroma_region_base(second))[64 * MIB - 1] == 0x5a);
	CHECK(hiroma_region_destroy(second) == 0);
	REFUSED(hiroma_region_destroy(second) == -1, EINVAL, "destroyed already");
	REFUSED(hiroma_alloc(second, 1) == NULL, EINVAL, "destroyed already");
	REFUSED(hiroma_region_base(second) == NULL, EINVAL, "destroyed already");
	REFUSED(hiroma_region_size(NULL) == 0, EINVAL, "not a region");
	CHECK(hiroma_region_destroy(NULL) == 0);

	options.replacement = "fifo";
	REFUSED(hiroma_region_create(&options, MIB) == NULL, EBUSY, "replacement = Lru, not Fifo");
	REFUSED(hiroma_region_create(NULL, 0) == NULL, EINVAL, "0 bytes");
	REFUSED(hiroma_region_create(NULL, (size_t)-1) == NULL, EINVAL, "makes no sense");
	CHECK(hiroma_strerror(EBUSY)[0] != 0 && hiroma_strerror(-5)[0] != 0 && hiroma_version()[0] != 0);
}

static void allocations(void)
{
	unsigned char *small, *big, *grown;
	size_t align;

	for (align = 1; align <= 4 * MIB; align *= 2) {
		void *memory = hiroma_aligned_alloc(region, align, 100);
		CHECK(memory != NULL && (uintptr_t)memory % align == 0);
		CHECK(hiroma_free(region, memory) == 0);
	}
	REFUSED(hiroma_aligned_alloc(region, 24, 100) == NULL, EINVAL, "power of two");
	REFUSED(hiroma_aligned_alloc(region, 0, 100) == NULL, EINVAL, "power of two");
	REFUSED(hiroma_alloc(region, 257 * MIB) == NULL, ENOMEM, "no room");
	REFUSED(hiroma_alloc(region, (size_t)-1) == NULL, ENOMEM, "no room");
	REFUSED(hiroma_calloc(region, (size_t)-1, 16) == NULL, ENOMEM, "no room");
	REFUSED(hiroma_free(region, &small) == -1, EINVAL, "not allocated");

	/* Memory that was used before comes back as zeros from calloc. */
	small = hiroma_alloc(region, 1000);
	CHECK(small != NULL && (uintptr_t)small % 16 == 0);
	memset(small, 0xff, 1000);
	CHECK(hiroma_free(region, small) == 0);
	REFUSED(hiroma_free(region, small) == -1, EINVAL, "freed already");
	small = hiroma_calloc(region, 10, 100);
	for (size_t i = 0; i < 1000; i++)
		CHECK(small[i] == 0);

	/* Content survives every way of growing and shrinking, and a trip to the store in between. */
	for (size_t i = 0; i < 1000; i++)
		small[i] = (unsigned char)i;
	grown = hiroma_realloc(region, small, 100000);
	CHECK(grown != NULL);
	big = hiroma_alloc(region, 100 * MIB);
	CHECK(big != NULL);
	memset(big, 0xa5, 100 * MIB);
	grown = hiroma_realloc(region, grown, 70 * MIB);
	CHECK(grown != NULL);
	for (size_t i = 0; i < 1000; i++)
		CHECK(grown[i] == (unsigned char)i);
	big = hiroma_realloc(region, big, MIB);
	CHECK(big != NULL && big[0] == 0xa5 && big[MIB - 1] == 0xa5);
	big = hiroma_realloc(region, big, 16);
	CHECK(big != NULL && big[15] == 0xa5);
	CHECK(hiroma_free(region, big) == 0);
	CHECK(hiroma_free(region, grown) == 0 && hiroma_free(region, NULL) == 0);
	big = hiroma_realloc(region, NULL, 200 * MIB);
	CHECK(big != NULL);
	for (size_t i = 0; i < 200 * MIB; i += 4096)
		CHECK(big[i] == 0);
	CHECK(hiroma_free(region, big) == 0);
}

static void advice_and_limit(void)
{
	unsigned char *memory = hiroma_alloc(region, 64 * MIB);
	hiroma_stats stats;
	int advice;

	CHECK(memory != NULL);
	memset(memory, 1, 64 * MIB);
	for (advice = HIROMA_ADVICE_NORMAL; advice <= HIROMA_ADVICE_RANDOM; advice++)
		CHECK(hiroma_advise(memory + 5, 64 * MIB - 5, advice) == 0);
	REFUSED(hiroma_advise(memory, 1, 99) == -1, EINVAL, "advice 99");
	REFUSED(hiroma_advise(&stats, 1, HIROMA_ADVICE_COLD) == -1, EINVAL, "not all in far memory");
	REFUSED(hiroma_discard(&stats, 4096) == -1, EINVAL, "not all in far memory");
	REFUSED(hiroma_discard(memory, (size_t)-1) == -1, EINVAL, "not all in far memory");

	CHECK(hiroma_discard(memory + 1, 3 * 4096) == 0);
	CHECK(memory[0] == 1 && memory[4095] == 1 && memory[4096] == 0 && memory[3 * 4096 - 1] == 0 && memory[3 * 4096] == 1);
	CHECK(hiroma_discard(memory + 1, 4096) == 0 && memory[1] == 1 && memory[5000] == 0);

	REFUSED(hiroma_set_limit(0) == -1, EINVAL, "0 bytes");
	CHECK(hiroma_set_limit(48 * MIB) == 0);
	CHECK(hiroma_stats_read(&stats, sizeof stats) == 0);
	CHECK(stats.size == sizeof stats && stats.limit_bytes == 48 * MIB);
	CHECK(hiroma_set_limit(24 * MIB) == 0);
	for (size_t i = 3 * 4096; i < 64 * MIB; i++)
		CHECK(memory[i] == 1);
	CHECK(hiroma_free(region, memory) == 0);
	/* A caller of an older version asks for less and gets no more. */
	stats.local_bytes = 77;
	CHECK(hiroma_stats_read(&stats, 16) == 0 && stats.size == 16 && stats.local_bytes == 77);
}

static void *worker(void *argument)
{
	uint64_t state = (uintptr_t)argument * 2654435761u + 1;
	unsigned char *held[64] = {0};
	size_t sizes[64] = {0};

	for (int round = 0; round < 4000; round++) {
		size_t slot, size;

		state = state * 6364136223846793005u + 1442695040888963407u;
		slot = state >> 58;
		size = state >> 33 & ((state >> 32 & 7) == 0 ? 0x7ffff : 0xfff);
		if (held[slot] != NULL) {
			for (size_t i = 0; i < sizes[slot]; i += 97)
				CHECK(held[slot][i] == (unsigned char)(slot + sizes[slot]));
			if (round % 3 == 0) {
				held[slot] = hiroma_realloc(region, held[slot], size + 1);
				CHECK(held[slot] != NULL);
				if (size > 0 && sizes[slot] > 0)
					CHECK(held[slot][0] == (unsigned char)(slot + sizes[slot]));
			} else {
				CHECK(hiroma_free(region, held[slot]) == 0);
				held[slot] = hiroma_alloc(region, size);
			}
		} else {
			held[slot] = round % 2 ? hiroma_alloc(region, size) : teramalloc(size);
			CHECK(held[slot] != NULL);
			if (round % 2 == 0) {
				terafree(held[slot]);
				held[slot] = hiroma_calloc(region, 1, size);
				for (size_t i = 0; i < size; i++)
					CHECK(held[slot][i] == 0);
			}
		}
		CHECK(held[slot] != NULL);
		sizes[slot] = size;
		memset(held[slot], (unsigned char)(slot + size), size);
	}
	for (int slot = 0; slot < 64; slot++)
		CHECK(hiroma_free(region, held[slot]) == 0);
	return NULL;
}

static void threads(void)
{
	pthread_t ids[8];

	for (size_t i = 0; i < 8; i++)
		CHECK(pthread_create(&ids[i], NULL, worker, (void *)(i + 1)) == 0);
	for (size_t i = 0; i < 8; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
}

static void tera(void)
{
	unsigned char *memory = teramalloc(40 * MIB), *zeros;

	CHECK(memory != NULL);
	for (size_t i = 0; i < 40 * MIB; i += 512)
		memory[i] = (unsigned char)(i >> 9);
	memory = terarealloc(memory, 90 * MIB);
	CHECK(memory != NULL);
	for (size_t i = 0; i < 90 * MIB; i += 512)
		CHECK(memory[i] == (i < 40 * MIB ? (unsigned char)(i >> 9) : 0));
	memory = terarealloc(memory, 3000);
	CHECK(memory != NULL && memory[512] == 1);
	memory = terarealloc(memory, 300);
	CHECK(memory != NULL && memory[0] == 0);
	memory = terarealloc(memory, 5 * MIB);
	CHECK(memory != NULL && memory[0] == 0);
	terafree(memory);
	zeros = teracalloc(3, 100);
	CHECK(zeros != NULL && zeros[299] == 0);
	terafree(zeros);
	terafree(NULL);
	REFUSED(teramalloc((size_t)1 << 60) == NULL, ENOMEM, "no room");
	REFUSED(teracalloc((size_t)1 << 60, 32) == NULL, ENOMEM, "no room");
}

static void forks(void)
{
	unsigned char *memory = hiroma_alloc(region, 96 * MIB);
	int status;
	pid_t child;

	CHECK(memory != NULL);
	for (size_t i = 0; i < 96 * MIB; i += 256)
		memory[i] = (unsigned char)(i >> 8);
	child = fork();
	CHECK(child >= 0);
	for (size_t i = 0; i < 96 * MIB; i += 256) {
		CHECK(memory[i] == (unsigned char)(i >> 8));
		memory[i] += child == 0 ? 3 : 5;
	}
	for (size_t i = 0; i < 96 * MIB; i += 256)
		CHECK(memory[i] == (unsigned char)((i >> 8) + (child == 0 ? 3 : 5)));
	if (child == 0) {
		unsigned char *more = teramalloc(8 * MIB);
		CHECK(more != NULL);
		memset(more, 1, 8 * MIB);
		terafree(more);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(hiroma_free(region, memory) == 0);
}

int main(void)
{
	refusals();
	region_life();
	allocations();
	advice_and_limit();
	threads();
	tera();
	forks();
	CHECK(hiroma_region_destroy(region) == 0);
	puts("surface: all right");
	return 0;
}
