//! What the kernel says of memory, reclaim and stolen time, and the few ways to tell it to reclaim:
//! `/proc`, `/sys`, affinity.
//!
//! No unsafe here but in [`noise`]. Parsers take text, readers take a root directory, so that tests
//! can show them other machines.

pub mod affinity;
pub mod files;
pub mod memory;
pub mod mounts;
pub mod noise;
pub mod reclaim;
pub mod tasks;
pub mod watch;
