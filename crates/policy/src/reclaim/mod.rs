//! When file cache is reclaimed before the kernel has to: how much on which node, and when to leave
//! it to the kernel.
//!
//! Source: "Elimination of OS noises caused by page reclamation" (Ishiguro, Murakami, Oyama),
//! section 3: watch how much is read and how much memory is free; when large file reads are the
//! cause of little free memory, reclaim before kswapd wakes; otherwise leave it to the kernel. The
//! paper's two thresholds are fixed (free below 1 GB: reclaim 4 GB). Here the memory that must be
//! free follows from how fast the cache fills: twice what is needed until the next observation and
//! the reclaim after it are done.
//!
//! | Module | Question |
//! |---|---|
//! | [`observe`] | what is known about the machine: [`Zone`], [`Node`], [`Observation`] |
//! | [`settings`] | what users may set, and within which limits |
//! | [`controller`] | what to do now: [`Controller`] |
//! | [`reason`] | why |
//! | [`refusal`] | when to ask again after the kernel has refused |
//! | [`stream`] | which part of a file is behind the program that reads or writes it |

pub mod controller;
pub mod observe;
pub mod reason;
pub mod refusal;
pub mod settings;
pub mod stream;

pub use controller::{Batch, BatchEnd, Controller, Go, Next, Verdict};
pub use observe::{Node, ORDERS, Observation, Zone};
pub use reason::Reason;
pub use refusal::{Refusals, Refused};
pub use settings::{BEHIND_LARGE, BEHIND_NEEDED, BEHIND_NEVER, OutOfRange, Settings};
pub use stream::Stream;

/// Pages of 4 KiB in a number of bytes.
pub const fn pages(bytes: u64) -> u64 {
    bytes / PAGE_BYTES
}

/// The page size of all counts.
pub const PAGE_BYTES: u64 = 4096;
