//! The decisions, and nothing else: which block is evicted, what is prefetched, how much moves at a
//! time, which server is filled next, where huge pages pay.
//!
//! Everything here is pure: an event goes in, the object changes itself, and the answer is returned
//! or appended to a buffer that the caller owns. No IO, no clock, no threads, no floats, no
//! randomness; time is counted in events. The same events give the same answers, so that a
//! recording can be replayed and a simulator can run the very objects of the live system.
//!
//! The pager calls these under a lock on the fault path: a call takes well under 200 ns and does
//! not allocate in steady state ([`Replacement::compact`] is the exception, and runs outside of
//! faults).
//!
//! | Module | Question |
//! |---|---|
//! | [`replacement`] | which block is evicted from local memory |
//! | [`prefetch`] | what is fetched ahead of need |
//! | [`granularity`] | whether an extent moves whole or in sectors |
//! | [`reuse`] | how much more local memory would have kept a block |
//! | [`working_set`] | how many more fetches less local memory would need |
//! | [`loss`] | what waiting has cost, and how much of it more local memory would save |
//! | [`sharing`] | how much of local memory holds compressed blocks |
//! | [`duplication`] | whether local blocks keep their compressed copies |
//! | [`allocation`] | which server gets the next 2 MiB |
//! | [`redundancy`] | which servers have a block, which is asked, and when one counts as lost |
//! | [`lending`] | how much memory a machine lends, and how much of it a tenant gets |
//! | [`huge`] | which 2 MiB of a process become a huge page |
//! | [`reclaim`] | when file cache is reclaimed before the kernel has to |
//! | [`budget`] | how the local memory of a run is divided among its processes |
//! | [`pace`] | when work may continue that is limited to a share of a processor |
//! | [`placement`] | which node of a cluster keeps a page, and how nodes learn about free memory |

pub mod allocation;
pub mod budget;
pub mod clusters;
pub mod crowd;
pub mod duplication;
pub mod granularity;
pub mod huge;
pub mod lending;
pub mod loss;
pub mod neighbours;
pub mod pace;
pub mod placement;
pub mod prefetch;
pub mod reclaim;
pub mod redundancy;
pub mod replacement;
pub mod reuse;
pub mod run_ahead;
pub mod samples;
pub mod sharing;
pub mod working_set;

pub use allocation::{AllocationKind, Allocator};
pub use granularity::{ExtentHistory, Granularity, Mode, RegionHistory};
pub use prefetch::{PrefetchRequest, Prefetcher};
pub use replacement::{Fifo, Hint, Lru, Origin, PageBits, Replacement, Staging};
