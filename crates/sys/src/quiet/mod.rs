//! What the kernel reports about memory, reclaim and stolen time, and the few ways to make it
//! reclaim: `/proc`, `/sys`, affinity.
//!
//! No unsafe code except in [`noise`]. Parsers take text, readers take a root directory, so that
//! tests can present other machines.

pub mod affinity;
pub mod files;
pub mod memory;
pub mod mounts;
pub mod noise;
pub mod reclaim;
pub mod tasks;
pub mod watch;
