//! `libhiroma_quiet_preload.so`: an unmodified program's streaming reads and writes leave the file
//! cache as they found it.
//!
//! ```text
//!  read, write, pread, copy_file_range, ...  export ──▶ slots (what is known of a descriptor) ──▶ stream (what to do)
//!                                                           └── cache: what is cached, drop, write back (sys: system calls)
//! ```
//!
//! A read is passed on as `preadv2` with `RWF_DONTCACHE` (Linux 6.14; by file system), which gives
//! back what it brought in itself; where that is refused, and for writes, what was passed is
//! dropped window by window (`posix_fadvise`), except for what was cached before. Only large files
//! that are read or written from one end to the other are meant: small files, files that are
//! largely cached, files that are read twice and random access stay as they are. What a call
//! returns is what the kernel returns: the program's data is never touched, and where anything is
//! in doubt the call goes to the C library as it came.
//!
//! stdio reads and writes inside the C library, where nothing can be passed on otherwise: what went
//! through it is dropped behind.
//!
//! Out of reach: memory mappings, `io_uring`.

// Unit tests leave the exports out, which would replace the test program's own.
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
