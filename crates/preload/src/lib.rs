//! `libhiroma_preload.so`: gives an unmodified program a managed `malloc` and a managed `mmap`.
//!
//! ```text
//!  malloc, free, ...  export_malloc ──▶ heap ──┬── small: mimalloc ── mmap ──┐
//!                                              └── large: one mapping each   │
//!  mmap, mprotect...  export_mmap ──▶ classify ── inside the arena, or new ──┴──▶ pager
//!                                              └── everything else ─────────────▶ kernel
//! ```
//!
//! There are two heaps. The program's heap is in managed memory. The pager's own allocations must
//! never wait for the pager, so Rust's global allocator here ([`internal`]) has separate memory;
//! for a thread that works for the pager ([`scope`]) even `malloc` (which glibc calls in
//! `pthread_create`, `getaddrinfo`...) uses that memory. Without `HIROMA_CONFIG` in the environment
//! all calls are passed to glibc and the kernel unchanged.

// Unit tests omit the exports, which would replace the test program's own `malloc`, and the code
// that only they use.
#![cfg_attr(test, allow(dead_code))]

mod classify;
mod early;
#[cfg(not(test))]
mod errors;
#[cfg(not(test))]
mod export_brk;
#[cfg(not(test))]
mod export_exec;
#[cfg(not(test))]
mod export_fork;
#[cfg(not(test))]
mod export_kill;
#[cfg(not(test))]
mod export_limits;
#[cfg(all(not(test), target_arch = "x86_64"))]
mod export_link;
#[cfg(not(test))]
mod export_lock;
#[cfg(not(test))]
mod export_malloc;
#[cfg(not(test))]
mod export_memfile;
#[cfg(not(test))]
mod export_mmap;
#[cfg(not(test))]
mod export_rights;
#[cfg(not(test))]
mod export_shm;
#[cfg(not(test))]
mod export_syscall;
#[cfg(not(test))]
mod export_thread;
#[cfg(not(test))]
mod export_uffd;
#[cfg(not(test))]
mod export_wait;
#[cfg(not(test))]
mod heap;
mod internal;
#[cfg(not(test))]
mod large;
#[cfg(not(test))]
mod libc_state;
#[cfg(not(test))]
mod mimalloc;
#[cfg(not(test))]
mod nursery;
mod program;
#[cfg(not(test))]
mod remap;
#[cfg(not(test))]
mod runtime;
#[cfg(all(not(test), target_arch = "x86_64"))]
mod sanitizer;
mod scope;
mod small;
mod sys;
