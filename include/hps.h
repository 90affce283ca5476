/*
 * hps.h - huge pages exactly where this program is hot.
 *
 * A daemon (`hiroma hot serve`) looks at which pages of the program are used, and tells it with a queued real-time signal. The
 * library then fetches the addresses and decides for each 2 MiB: make it huge where it stands when a quarter of its 512 pages are
 * active, else have the program move its hot objects together ("compact"), or leave it. The program may replace the rule.
 *
 * These are the four functions of the paper (Shimizu and Yamada, HPS). <hiroma.h> has the fuller form. On failure a function
 * returns -1, sets errno, and leaves a message for hiroma_last_error(). See hps(3). Link with -lhiroma (pkg-config hiroma).
 */
#ifndef HPS_H
#define HPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the program learns of active pages. */
enum {
	HPS_HANDLER = 0, /* a signal handler does everything, in whichever thread the signal comes to */
	HPS_THREAD = 1   /* a thread of the program waits in hps_wait_signal(), which does everything */
};

/* An active page. */
typedef struct hps_page {
	uint64_t address; /* its first byte */
	uint32_t count;   /* in how many windows it was touched lately */
	uint32_t reserved;
} hps_page;

/* 2 MiB of the program's memory with active pages in it. */
typedef struct hps_range {
	void *start;           /* a multiple of 2 MiB */
	size_t size;           /* 2 MiB */
	const hps_page *pages; /* by address; valid during the call */
	size_t page_count;     /* 1 to 512 */
} hps_range;

/* What decide() may return. */
enum {
	HPS_DEFAULT = 0,  /* as the library decides: collapse from 128 active pages, else compact if there is such a function */
	HPS_COLLAPSE = 1, /* make it huge where it stands; where that can never be, compact() is called if there is one */
	HPS_COMPACT = 2,  /* call compact() */
	HPS_LEAVE = 3     /* nothing */
};

/* What compact() may return; below 0: it failed. */
enum {
	HPS_DONE = 0, /* that was all */
	HPS_MORE = 1  /* the time was up: call again */
};

/*
 * Functions of the program. Both may be NULL. With HPS_HANDLER they are called in a signal handler and may do only what
 * signal-safety(7) allows; with HPS_THREAD in the thread that waits. They must return: no exception, no longjmp().
 */
typedef struct hps_functions {
	size_t size; /* of this structure */
	/* Decides on a range. */
	int (*decide)(const hps_range *range, void *context);
	/* Moves hot objects out of a range, and is asked to return by `deadline_ns` (CLOCK_MONOTONIC), 0.5 ms after the call. */
	int (*compact)(const hps_range *range, uint64_t deadline_ns, void *context);
	void *context;
} hps_functions;

/*
 * Registers this process with the daemon and begins to track it. With HPS_THREAD the signal is blocked in the calling thread and those
 * that it starts later: call it before starting threads. EALREADY: it is tracked. ECONNREFUSED, ENOENT: no daemon runs.
 * EBUSY: the program uses the signal (SIGRTMIN+6) itself. Not inherited by fork(); a child may enable it for itself.
 */
int hps_enable_track(int style);

/* Ends tracking. What is huge stays huge. May be called in a function of the program: takes effect when that returns. */
int hps_disable_track(void);

/* Sets the program's functions; NULL for none. Not in a function of the program (EDEADLK). */
int hps_set_functions(const hps_functions *functions);

/*
 * Waits for a signal and handles it: returns how many active pages it was about, or 0 when `timeout_ms` has passed (below 0: never).
 * A signal that comes during handling is not lost. ENOTCONN: the daemon has ended, or tracking is not enabled.
 */
int hps_wait_signal(int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
