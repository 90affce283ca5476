/* A program that is told of its active pages: `hot MODE`. Says where its memory is, and then does as its mode says. */
#define _GNU_SOURCE
#include <errno.h>
#include <hiroma.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXTENT ((size_t)2 << 20)
#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))

static void fail(const char *what, int line)
{
	printf("line %d: %s (errno %d: %s)\n", line, what, errno, hiroma_last_error());
	exit(1);
}

static volatile size_t seen_ranges, seen_pages, slices;
static volatile int stop_in_compact;

static int decide(const hps_range *range, void *context)
{
	if (context != (void *)&slices || range->size != EXTENT || (uintptr_t)range->start % EXTENT != 0)
		abort();
	for (size_t page = 0; page < range->page_count; page++)
		if (range->pages[page].address - (uintptr_t)range->start >= EXTENT)
			abort();
	seen_ranges++;
	seen_pages += range->page_count;
	return HPS_DEFAULT;
}

static int compact(const hps_range *range, uint64_t deadline_ns, void *context)
{
	struct timespec now;
	(void)range;
	(void)context;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (deadline_ns < (uint64_t)now.tv_sec * 1000000000u)
		abort();
	if (stop_in_compact && hps_disable_track() != 0)
		abort();
	return ++slices % 3 == 0 ? HPS_DONE : HPS_MORE;
}

static int crash(const hps_range *range, uint64_t deadline_ns, void *context)
{
	(void)range;
	(void)deadline_ns;
	(void)context;
	*(volatile int *)8 = 1;
	return HPS_DONE;
}

static int block(const hps_range *range, uint64_t deadline_ns, void *context)
{
	char byte;
	(void)range;
	(void)deadline_ns;
	(void)context;
	puts("blocks");
	fflush(stdout);
	return read(0, &byte, 1) == 1 ? HPS_DONE : -1;
}

static void set(int (*function)(const hps_range *, uint64_t, void *))
{
	hps_functions functions = {sizeof functions, decide, function, (void *)&slices};
	CHECK(hps_set_functions(&functions) == 0);
}

static hiroma_hot_stats stats(void)
{
	hiroma_hot_stats now;
	CHECK(hiroma_hot_stats_read(&now, sizeof now) == 0);
	return now;
}

static void ready(void *memory)
{
	printf("ready %p\n", memory);
	fflush(stdout);
}

static void sleep_ms(long ms)
{
	struct timespec time = {ms / 1000, ms % 1000 * 1000000};
	nanosleep(&time, NULL);
}

/* Waits until so many ranges were handled, for a minute. */
static void until_handled(uint64_t ranges)
{
	for (int turn = 0; turn < 12000; turn++) {
		hiroma_hot_stats now = stats();
		if (now.collapsed + now.compacted + now.left + now.failed >= ranges)
			return;
		sleep_ms(5);
	}
	fail("handled within a minute", __LINE__);
}

static long wait_some(void)
{
	long pages = 0;
	for (int turn = 0; turn < 60 && pages == 0; turn++)
		CHECK((pages = hiroma_hot_wait(1000)) >= 0);
	return pages;
}

static void in_a_child(void)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		/* What the parent enabled is not the child's; but it can enable it for itself. */
		CHECK(hps_wait_signal(0) == -1 && errno == ENOTCONN);
		CHECK(hps_disable_track() == -1 && errno == ENOTCONN);
		CHECK(hps_enable_track(HPS_THREAD) == 0);
		CHECK(hps_wait_signal(1) == 0);
		CHECK(hps_disable_track() == 0);
		_exit(7);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void misuse(void)
{
	hiroma_hot_options options;
	hps_page page;
	CHECK(hps_wait_signal(0) == -1 && errno == ENOTCONN);
	CHECK(hps_disable_track() == -1 && errno == ENOTCONN);
	CHECK(hiroma_hot_fetch(&page, 1, NULL) == -1 && errno == ENOTCONN);
	CHECK(hiroma_hot_fd() == -1 && errno == ENOTCONN);
	CHECK(hps_enable_track(5) == -1 && errno == EINVAL);
	CHECK(hps_enable_track(-1) == -1 && errno == EINVAL);
	memset(&options, 0xff, sizeof options);
	options.size = 3;
	CHECK(hiroma_hot_enable(&options) == -1 && errno == EINVAL);
	hiroma_hot_options_init(&options, sizeof options);
	options.signal = SIGKILL;
	CHECK(hiroma_hot_enable(&options) == -1 && errno == EINVAL);
	hiroma_hot_options_init(&options, sizeof options);
	options.collapse_pages = 513;
	CHECK(hiroma_hot_enable(&options) == -1 && errno == EINVAL);
	hiroma_hot_options_init(&options, sizeof options);
	options.socket = "/nonexistent";
	CHECK(hiroma_hot_enable(&options) == -1 && errno == ENOENT && strstr(hiroma_last_error(), "/nonexistent"));
	hiroma_hot_options_init(&options, sizeof options);
	options.signal = SIGRTMIN + 2;
	signal(options.signal, SIG_DFL);
	CHECK(hps_enable_track(HPS_HANDLER) == 0);
	CHECK(hps_enable_track(HPS_HANDLER) == -1 && errno == EALREADY);
	CHECK(hps_wait_signal(0) == -1 && errno == EINVAL);
	CHECK(hps_disable_track() == 0);
	CHECK(hiroma_hot_enable(&options) == 0);
	CHECK(hps_disable_track() == 0);
	struct sigaction own = {.sa_handler = exit};
	CHECK(sigaction(options.signal, &own, NULL) == 0);
	CHECK(hiroma_hot_enable(&options) == -1 && errno == EBUSY);
	in_a_child();
}

static void events(void)
{
	hiroma_hot_options options;
	hps_page pages[16];
	size_t left, total = 0;
	hiroma_hot_options_init(&options, sizeof options);
	options.style = HIROMA_HOT_EVENT;
	CHECK(hiroma_hot_enable(&options) == 0);
	CHECK(hiroma_hot_fd() >= 0);
	for (int turn = 0; turn < 12000 && total < 200; turn++) {
		long got = hiroma_hot_fetch(pages, 16, &left);
		CHECK(got >= 0 && got <= 16);
		total += (size_t)got;
		if (got == 0)
			sleep_ms(5);
	}
	CHECK(total == 200 && left == 0);
	CHECK(hiroma_hot_done(0, 1, 0) == 0);
	CHECK(stats().compacted == 1);
	CHECK(hps_disable_track() == 0);
}

static void *waits(void *pages)
{
	*(long *)pages = wait_some();
	return NULL;
}

static void arenas(void)
{
	hiroma_arena *arena = hiroma_arena_create(5 * EXTENT - 1);
	hiroma_arena_stats now;
	CHECK(arena != NULL);
	char *first = hiroma_arena_alloc(arena, 64, 1 << 20), *second = hiroma_arena_alloc(arena, 16, 600);
	CHECK(first && second && (uintptr_t)first % 64 == 0);
	memset(first, 1, 1 << 20);
	memset(second, 2, 600);
	CHECK(hiroma_arena_stats_read(arena, &now, sizeof now) == 0);
	CHECK(now.bytes == 5 * EXTENT && now.used_bytes == (1 << 20) + 600 && now.populated_bytes >= EXTENT);
	CHECK(hiroma_arena_alloc(arena, 3, 1) == NULL && errno == EINVAL);
	CHECK(hiroma_arena_alloc(arena, 16, 6 * EXTENT) == NULL && errno == ENOMEM);
	CHECK(hiroma_arena_free(arena, first + 1) == -1 && errno == EINVAL);
	CHECK(hiroma_arena_free(arena, first) == 0 && hiroma_arena_free(arena, NULL) == 0);
	CHECK(second[599] == 2);
	CHECK(hiroma_arena_destroy(arena) == 0);
	CHECK(hiroma_arena_destroy(arena) == -1 && errno == EINVAL);
	CHECK(hiroma_arena_create(0) == NULL && hiroma_arena_create(SIZE_MAX) == NULL);
}

/* In a reserved pool that is large enough: all of it is there from the beginning, and cannot fail later. */
static void reserved(void)
{
	hiroma_arena *arena = hiroma_arena_create(5 * EXTENT);
	hiroma_arena_stats now;
	CHECK(arena != NULL);
	char *all = hiroma_arena_alloc(arena, 64, 5 * EXTENT);
	CHECK(all != NULL);
	memset(all, 3, 5 * EXTENT);
	CHECK(hiroma_arena_stats_read(arena, &now, sizeof now) == 0);
	CHECK(now.reserved && now.bytes == 5 * EXTENT && now.populated_bytes == now.bytes && now.huge_bytes == now.bytes);
	CHECK(all[5 * EXTENT - 1] == 3);
	CHECK(hiroma_arena_free(arena, all) == 0 && hiroma_arena_destroy(arena) == 0);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	void *memory = NULL;
	CHECK(posix_memalign(&memory, EXTENT, 8 * EXTENT) == 0);
	memset(memory, 1, 8 * EXTENT);
	set(compact);
	if (strcmp(mode, "handler") == 0) {
		CHECK(hps_enable_track(HPS_HANDLER) == 0);
		ready(memory);
		until_handled(3);
		CHECK(seen_ranges == 3 && seen_pages == 2 * 5 + 200 && slices == 6);
		CHECK(stats().compacted == 2 && stats().collapsed + stats().failed == 1 && stats().pages == 210);
		CHECK(hps_disable_track() == 0);
	} else if (strcmp(mode, "thread") == 0) {
		long pages;
		pthread_t thread;
		CHECK(hps_enable_track(HPS_THREAD) == 0);
		CHECK(pthread_create(&thread, NULL, waits, &pages) == 0);
		ready(memory);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(pages == 210 && seen_ranges == 3 && slices == 6);
		CHECK(hps_wait_signal(0) == 0);
		CHECK(hps_disable_track() == 0);
	} else if (strcmp(mode, "event") == 0) {
		ready(memory);
		events();
	} else if (strcmp(mode, "stop") == 0) {
		stop_in_compact = 1;
		CHECK(hps_enable_track(HPS_HANDLER) == 0);
		ready(memory);
		/* There is no descriptor with this style; when tracking has ended, that is the reason. */
		for (int turn = 0; turn < 12000 && hiroma_hot_fd() == -1 && errno == EINVAL; turn++)
			sleep_ms(5);
		CHECK(errno == ENOTCONN && slices >= 1);
	} else if (strcmp(mode, "crash") == 0 || strcmp(mode, "block") == 0) {
		set(mode[0] == 'c' ? crash : block);
		CHECK(hps_enable_track(HPS_THREAD) == 0);
		ready(memory);
		CHECK(wait_some() > 0);
		CHECK(stats().call_ns_max > 0 && stats().compacted == 2);
		/* Until the daemon has taken note: what a process says last, before it ends, may be missed. */
		char byte;
		CHECK(read(0, &byte, 1) == 0);
	} else if (strcmp(mode, "restart") == 0) {
		CHECK(hps_enable_track(HPS_THREAD) == 0);
		ready(memory);
		CHECK(hps_wait_signal(60000) == -1 && errno == ENOTCONN);
		CHECK(hps_disable_track() == 0);
		while (hps_enable_track(HPS_THREAD) != 0)
			sleep_ms(5);
		ready(memory);
		CHECK(wait_some() > 0);
	} else if (strcmp(mode, "exec") == 0) {
		CHECK(hps_enable_track(HPS_HANDLER) == 0);
		ready(memory);
		execlp("cat", "cat", (char *)NULL);
		fail("exec", __LINE__);
	} else if (strcmp(mode, "misuse") == 0) {
		misuse();
	} else if (strcmp(mode, "arena") == 0) {
		arenas();
	} else if (strcmp(mode, "reserved") == 0) {
		reserved();
	} else {
		fail("a mode", __LINE__);
	}
	printf("all right\n");
	return 0;
}
