//! A laboratory for policies of local memory: page traces of real programs, policies that decide on
//! them, and their results.
//!
//! - [`filter`], [`space`], [`record`]: from all accesses and system calls of a program to a
//!   compact trace.
//! - [`trace`]: the file, and the trace in memory.
//! - [`policies`]: which page is evicted: Belady's optimum and seven known policies.
//! - [`blocks`]: how much is fetched at a time, and what is prefetched, under LRU.
//! - [`ours`]: `hiroma-policy`, driven as the pager drives it.
//!
//! Pure: no IO, no clock; the same trace gives the same numbers.

pub mod blocks;
pub mod costs;
pub mod filter;
mod links;
pub mod ours;
pub mod policies;
pub mod record;
pub mod space;
pub mod trace;

pub use costs::{Costs, PolicyOutcome, Reason};
pub use trace::{Header, Step, StepKind, Trace, TraceError};
