//! `libhiroma_quiet_preload.so`: an unmodified program's streaming reads and writes leave the file
//! cache as they found it.
//!
//! ```text
//!  read, write, pread, copy_file_range, ...
//!      └─▶ export ──▶ slots (what is known of a descriptor) ──▶ stream (what to do)
//!                        └─▶ cache: what is cached, drop, write back (sys: system calls)
//! ```
//!
//! A read is issued as `preadv2` with `RWF_DONTCACHE` (Linux 6.14; depends on the file system),
//! which drops the pages that it brought in itself; where the kernel refuses that, and for writes,
//! the part behind the stream is dropped window by window (`posix_fadvise`), except for what was
//! cached before. Only large files that are read or written sequentially from end to end are
//! affected: small files, largely cached files, files that are read twice and random access are
//! left alone. Calls return what the kernel returns: the program's data is never touched, and in
//! any doubtful case the call is passed to the C library unchanged.
//!
//! stdio reads and writes inside the C library, where the calls cannot be changed: what a stream
//! has passed through it is dropped afterwards.
//!
//! Not covered: memory mappings, `io_uring`.

// Unit tests exclude the exports, which would replace the test program's own functions.
#![cfg_attr(test, allow(dead_code))]

mod cache;
#[cfg(not(test))]
mod export;
#[cfg(not(test))]
mod next;
mod slots;
#[cfg(not(test))]
mod stdio;
mod stream;
mod sys;
