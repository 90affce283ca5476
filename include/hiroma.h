/*
 * hiroma.h - far memory, and huge pages where a program is hot, for C and C++ programs.
 *
 * A region is a stretch of addresses that is used like ordinary memory and may be far larger than the machine's. What does
 * not fit in the local limit lies in compressed memory, on disk, or in other machines' memory, and comes back when touched.
 * Regions are private to the process, are inherited across fork(), and their addresses may be given to system calls.
 *
 * Every function may be called by any thread. On failure a function returns NULL or -1 (or 0 for a size), sets errno, and
 * leaves a message for hiroma_last_error(). If a store fails for good, the process ends with exit code 75 and a message;
 * far memory never reads as something else than what was written.
 *
 * Link with -lhiroma (pkg-config hiroma). See hiroma(3).
 */
#ifndef HIROMA_H
#define HIROMA_H

#include <stddef.h>
#include <stdint.h>

#include "hps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- The shortest way: the two functions of the paper --- */

/*
 * Allocates `size` bytes of far memory, aligned to 16 bytes (to 2 MiB from 1 MiB on). The first call starts far memory with the options
 * of the environment: HIROMA_LOCAL=1G (or 25%), HIROMA_STORE=compressed,file:/var/tmp, and so on; see hiroma(3).
 */
void *teramalloc(size_t size);
/* The same for `count` elements of `size` bytes; zeros. */
void *teracalloc(size_t count, size_t size);
/* Changes the size of an allocation, which may move; from 1 MiB on without copying. NULL allocates. */
void *terarealloc(void *memory, size_t size);
/* Frees what the functions above returned. NULL is ignored. Anything else ends the process with a message, as free() does. */
void terafree(void *memory);

/* --- Options --- */

/* Always begin with hiroma_options_init(); what is then left alone comes from the environment, or is the default. */
typedef struct hiroma_options {
	size_t size;                /* of this structure; set by hiroma_options_init() */
	uint64_t local_limit_bytes; /* most bytes in this machine's memory; 0: HIROMA_LOCAL, or 1 GiB */
	const char *store;          /* "compressed,file:/var/tmp", "tcp://HOST:PORT,HOST:PORT", ...; filled in this order */
	const char *block;          /* "auto", or a power of two from "4K" to "4M": how much moves at a time */
	const char *replacement;    /* "lru" or "fifo" */
	const char *allocation;     /* "simple" or "round-robin": how the servers of one store are filled */
	const char *key_file;       /* shared key for servers that ask for one */
	const char *control_dir;    /* directory for the page through which `hiroma ctl` reaches this process */
	const char *kernel_path;    /* "auto", "full" or "fallback" */
	uint32_t store_timeout_ms;  /* how long an unreachable store is waited for; 0: 30000 */
	int32_t prefetch;           /* 1 on, 0 off, -1: HIROMA_PREFETCH, or on */
} hiroma_options;

/* Sets every option to "not set". Pass sizeof *options as `size`. */
void hiroma_options_init(hiroma_options *options, size_t size);

/* --- Regions --- */

typedef struct hiroma_region hiroma_region;

/*
 * Creates a region of `bytes` bytes, which costs nothing until it is touched. `options` may be NULL.
 * One process has one local limit and one list of stores: the first region (or teramalloc) starts them, and a later region
 * whose options differ is refused with EBUSY. Use hiroma_set_limit() to change the limit.
 */
hiroma_region *hiroma_region_create(const hiroma_options *options, size_t bytes);
/* Destroys a region with everything in it. NULL is ignored; a region destroyed before is refused with EINVAL. */
int hiroma_region_destroy(hiroma_region *region);

/*
 * The whole region as raw memory: zeros at first, aligned to 2 MiB from 1 MiB on. Use a region either raw or through the
 * functions below, not both.
 */
void *hiroma_region_base(const hiroma_region *region);
size_t hiroma_region_size(const hiroma_region *region);

/* --- Allocations inside a region. Neither allocating nor freeing touches far memory. --- */

void *hiroma_alloc(hiroma_region *region, size_t size);
void *hiroma_calloc(hiroma_region *region, size_t count, size_t size);
void *hiroma_realloc(hiroma_region *region, void *memory, size_t size);
void *hiroma_aligned_alloc(hiroma_region *region, size_t alignment, size_t size); /* a power of two up to 1 GiB */
int hiroma_free(hiroma_region *region, void *memory); /* EINVAL if it is not an allocation of this region */

/* --- Advice --- */

enum {
	HIROMA_ADVICE_NORMAL = 0,     /* nothing special */
	HIROMA_ADVICE_WILLNEED = 1,   /* fetch it now, in the background */
	HIROMA_ADVICE_COLD = 2,       /* may leave local memory first */
	HIROMA_ADVICE_SEQUENTIAL = 3, /* will be read in order */
	HIROMA_ADVICE_RANDOM = 4      /* will be read in no order */
};

/* Advises on the pages that hold `size` bytes from `memory`. */
int hiroma_advise(void *memory, size_t size, int advice);
/* Drops the content of all whole pages among `size` bytes from `memory`, near and far; they read as zeros. */
int hiroma_discard(void *memory, size_t size);
/* Changes the local limit of the process; takes effect while running. */
int hiroma_set_limit(uint64_t bytes);

/* --- Statistics of the process --- */

typedef struct hiroma_stats {
	size_t size;                   /* of this structure */
	uint64_t limit_bytes;          /* the limit in force */
	uint64_t local_bytes;          /* managed memory that is local: mapped, staged and in buffers */
	uint64_t local_bytes_max;      /* the most that has been */
	uint64_t resident_bytes;       /* of local_bytes: mapped into the program */
	uint64_t staged_bytes;         /* of local_bytes: about to leave, still there if touched */
	uint64_t buffer_bytes;         /* of local_bytes: empty frames and frames being filled */
	uint64_t far_bytes;            /* bytes of the program that are in a store */
	uint64_t far_bytes_max;        /* the most that have been */
	uint64_t stored_bytes;         /* what they take up there */
	uint64_t store_capacity_bytes; /* what the stores may hold */
	uint64_t mapped_bytes;         /* managed addresses in use */
	uint64_t metadata_bytes;       /* tables of the pager and its stores */
	uint64_t faults;               /* faults that reached the pager; of these: */
	uint64_t faults_fresh;         /* memory that was never touched before */
	uint64_t faults_staged;        /* staged blocks, rescued */
	uint64_t faults_prefetched;    /* blocks that a prefetch had brought or was bringing */
	uint64_t faults_fetched;       /* blocks that had to be fetched */
	uint64_t prefetches;           /* blocks fetched ahead of need */
	uint64_t prefetches_wasted;    /* of these: dropped without having been used */
	uint64_t fetched_bytes;        /* read from stores */
	uint64_t written_bytes;        /* written to stores */
	uint64_t clean_bytes;          /* evicted without being written, because the far copy was still right */
	uint64_t pattern_bytes;        /* evicted without being stored, because they were one repeated word */
	uint64_t stalls_for_room;      /* faults that had to wait for room */
	uint64_t unevictable_bytes;    /* could not be evicted when tried (pinned, locked) */
	uint64_t mode_changes;         /* extents that changed between huge and small mode */
	uint64_t fault_latency_ns_p50; /* from the pager reading the fault to waking the thread; within 19 % */
	uint64_t fault_latency_ns_p99;
	uint64_t accessed_reads;       /* answers to requests for accessed bits; 0 in a process that hiroma run did not start */
	uint64_t local_bytes_at_fetches; /* local_bytes without buffers when a fault had to fetch: a sum over faults_fetched */
} hiroma_stats;

/* Fills in the counters. Pass sizeof *stats as `size`. */
int hiroma_stats_read(hiroma_stats *stats, size_t size);

/* --- Huge pages where the program is hot: the fuller form of hps.h; see hps(3) --- */

enum { HIROMA_HOT_EVENT = 2 }; /* a style beside those of hps.h: no signal; a descriptor becomes readable */

/* Always begin with hiroma_hot_options_init(); 0 is the default of each. */
typedef struct hiroma_hot_options {
	size_t size;             /* of this structure; set by hiroma_hot_options_init() */
	const char *socket;      /* of the daemon; NULL: HIROMA_HOT_SOCKET, else the usual places */
	uint64_t budget_bytes;   /* most bytes to be made huge; 0: the share that the daemon gives */
	uint32_t style;          /* HPS_HANDLER, HPS_THREAD or HIROMA_HOT_EVENT */
	uint32_t managed;        /* 1: the daemon makes hot ranges huge itself, and tells only of those with too few hot pages */
	int32_t signal;          /* a real-time signal; 0: SIGRTMIN+6 */
	uint32_t collapse_pages; /* active pages of 512 from which a range is made huge; 0: 128 */
	uint32_t count_min;      /* count from which a page is active; 0: the daemon's rule */
	uint32_t pages_min;      /* active pages from which the program is told; 0: 1 */
} hiroma_hot_options;

/* Sets every option to its default. Pass sizeof *options as `size`. */
void hiroma_hot_options_init(hiroma_hot_options *options, size_t size);
/* hps_enable_track() with options; NULL for none. */
int hiroma_hot_enable(const hiroma_hot_options *options);
/* The same as hps_disable_track(). */
int hiroma_hot_disable(void);
/* HIROMA_HOT_EVENT: the descriptor to poll. When it is readable, call hiroma_hot_wait(0), or fetch. Do not close it. */
int hiroma_hot_fd(void);
/* The same as hps_wait_signal(), also for HIROMA_HOT_EVENT. */
long hiroma_hot_wait(int timeout_ms);

/*
 * For programs that handle pages themselves, instead of hiroma_hot_wait(): fetches at most `count` active pages by address, and says
 * in `*left` (unless NULL) how many wait. A buffer of 512 or more never gets a part of a 2 MiB range. Returns how many. When all
 * is done with them, hiroma_hot_done() has to follow; until then nothing more is announced.
 */
long hiroma_hot_fetch(hps_page *pages, size_t count, size_t *left);
/* So many ranges were made huge, had their objects moved, or were left alone. */
int hiroma_hot_done(uint64_t collapsed, uint64_t compacted, uint64_t left);
/* Makes whole 2 MiB of this process's memory huge where they stand (MADV_COLLAPSE, Linux 6.1). */
int hiroma_hot_collapse(void *memory, size_t size);

typedef struct hiroma_hot_stats {
	size_t size;          /* of this structure */
	uint64_t signals;     /* signals, or readable descriptors, that came */
	uint64_t pages;       /* active pages that were fetched */
	uint64_t collapsed;   /* ranges of 2 MiB made huge in place */
	uint64_t compacted;   /* ranges whose objects were moved */
	uint64_t left;        /* ranges left alone */
	uint64_t failed;      /* ranges for which something failed */
	uint64_t call_ns_max; /* the longest call of a function of the program */
} hiroma_hot_stats;

/* Fills in what this process did so far. Pass sizeof *stats as `size`. */
int hiroma_hot_stats_read(hiroma_hot_stats *stats, size_t size);

/* --- Memory for hot objects, on huge pages from the beginning --- */

typedef struct hiroma_arena hiroma_arena;

/*
 * Creates an arena of `bytes` bytes, rounded up to 2 MiB: from the pool of reserved huge pages (vm.nr_hugepages) if that has them
 * all, else of addresses, of which each 2 MiB becomes a huge page when something is first allocated in it. Where the machine has no
 * huge page left, small ones serve: hiroma_arena_stats.huge_bytes tells.
 */
hiroma_arena *hiroma_arena_create(size_t bytes);
/* Destroys an arena with everything in it. NULL is ignored. */
int hiroma_arena_destroy(hiroma_arena *arena);
/* `size` bytes at a multiple of `alignment`, a power of two up to 2 MiB. What they hold is not defined. */
void *hiroma_arena_alloc(hiroma_arena *arena, size_t alignment, size_t size);
int hiroma_arena_free(hiroma_arena *arena, void *memory); /* EINVAL if it is not an allocation of this arena */

typedef struct hiroma_arena_stats {
	size_t size;              /* of this structure */
	uint64_t bytes;           /* the arena's length */
	uint64_t used_bytes;      /* allocated */
	uint64_t populated_bytes; /* that have memory */
	uint64_t huge_bytes;      /* of these, on huge pages */
	uint64_t reserved;        /* 1: from the reserved pool */
} hiroma_arena_stats;

int hiroma_arena_stats_read(const hiroma_arena *arena, hiroma_arena_stats *stats, size_t size);

/* --- Errors --- */

/* What went wrong in the last call of this thread that failed, and what to do; valid until the next one that fails. */
const char *hiroma_last_error(void);
/* What an errno means when one of these functions sets it. */
const char *hiroma_strerror(int errnum);
/* Version of the library, like "0.1.0". */
const char *hiroma_version(void);

#ifdef __cplusplus
}
#endif

#endif
