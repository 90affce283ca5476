//! The allocator of the program's small objects: mimalloc with options that suit far memory.
//!
//! Contract: the option numbers are those of mimalloc 2.3.2 as bundled by the exact version in
//! `Cargo.toml`. mimalloc gets its memory through `mmap` of this library, so all its blocks are in
//! the arena.
#![allow(unsafe_code)]

use libmimalloc_sys as mi;

const EAGER_COMMIT: mi::mi_option_t = 3;
const ARENA_EAGER_COMMIT: mi::mi_option_t = 4;
const PURGE_DECOMMITS: mi::mi_option_t = 5;
const PURGE_DELAY: mi::mi_option_t = 15;
const DESTROY_ON_EXIT: mi::mi_option_t = 22;
const ARENA_RESERVE: mi::mi_option_t = 23;
const ARENA_PURGE_MULT: mi::mi_option_t = 24;
const ALLOW_THP: mi::mi_option_t = 37;

const OPTIONS: [(mi::mi_option_t, libc::c_long); 17] = [
    // Standard error belongs to the program.
    (mi::mi_option_show_errors, 0),
    (mi::mi_option_show_stats, 0),
    (mi::mi_option_verbose, 0),
    (mi::mi_option_max_errors, 0),
    (mi::mi_option_max_warnings, 0),
    // Untouched memory costs nothing, so commit it eagerly and avoid the calls to `mprotect`.
    (EAGER_COMMIT, 1),
    (ARENA_EAGER_COMMIT, 1),
    (mi::mi_option_eager_commit_delay, 0),
    // 1 GiB at a time (in KiB); mimalloc doubles it as it grows.
    (ARENA_RESERVE, 1 << 20),
    // The pager decides how pages are arranged; 1 only means: leave the process's setting alone.
    (mi::mi_option_large_os_pages, 0),
    (mi::mi_option_reserve_huge_os_pages, 0),
    (mi::mi_option_reserve_os_memory, 0),
    (ALLOW_THP, 1),
    // Freed memory that is not reused within a second is discarded, or it would be written back
    // like data. A shorter delay would cost programs that free and allocate alternately a fault
    // each time.
    (PURGE_DECOMMITS, 1),
    (PURGE_DELAY, 1000),
    (ARENA_PURGE_MULT, 1),
    // 2: do nothing at exit. Cleanup would fetch the far parts of a heap that is about to
    // disappear.
    (DESTROY_ON_EXIT, 2),
];

/// Sets the options. Called before the first allocation; options that are set here are not read
/// from the environment any more.
pub fn configure() {
    for (option, value) in OPTIONS {
        // SAFETY: writes to mimalloc's table of options, before any other thread exists.
        unsafe { mi::mi_option_set(option, value) };
    }
}
