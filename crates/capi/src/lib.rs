//! `libhiroma.so`: far memory for programs that use it explicitly (`include/hiroma.h`).
//!
//! A thin layer over the pager: options become a [`hiroma_far::config::Config`], regions become
//! stretches of the arena, and each region is divided by a [`heap::Heap`]. [`hot`] is the part for
//! huge pages (`include/hps.h`). Unsafe code is in the exports and in the state that a signal
//! handler uses; nothing unwinds out of it.

pub mod error;
pub mod export;
pub mod heap;
pub mod hot;
pub mod options;
pub mod runs;
pub mod session;
