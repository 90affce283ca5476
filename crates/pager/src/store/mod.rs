//! Where blocks go when they leave local memory: the seam that every store stands behind.
//!
//! A store keeps *sectors* (a power of two from 4 KiB to 2 MiB, fixed when it is opened). Where a
//! sector lies is a [`Loc`], which the store hands out and alone understands. The pager remembers
//! it, together with a checksum of the content, and verifies that checksum whenever a sector comes
//! back; stores do not need to.
//!
//! Requests go through a [`Channel`], one per thread, with many under way at a time. A channel
//! never blocks in `read`, `write` or `poll`; a store that answers at once (compressed memory)
//! completes inside the call.

pub mod chain;
mod clerk;
pub mod compressed;
pub mod faulty;
pub mod file;
mod file_io;
#[cfg(test)]
mod model;
mod open;
pub mod slab;
pub mod space;
pub mod tcp;

pub use open::open;

use std::os::fd::RawFd;
use std::time::Duration;

use hiroma_kernel::frame::FrameBuf;
use hiroma_units::{Bytes, Loc};

/// Names one request on a channel; chosen by the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// What became of a request. The buffer always comes back.
#[derive(Debug)]
pub struct Completion {
    /// The request.
    pub token: Token,
    /// The buffer that was lent: filled, if it was a read that succeeded.
    pub buf: FrameBuf,
    /// Whether it worked.
    pub result: Result<(), StoreError>,
}

/// Why a store could not do what it was asked. Every message says what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No room for another sector.
    #[error(
        "{store} is full ({used} of {capacity} in use): give it more room, or add another store behind it with --store A,B"
    )]
    Full { store: String, used: Bytes, capacity: Bytes },
    /// It has room, but not for this: another store is the better place.
    #[error(
        "{store} does not take what does not compress: add another store behind it with --store A,B"
    )]
    Rejected { store: String },
    /// Input or output failed and trying again does not help.
    #[error("{store}: {doing} failed: {source_text}")]
    Io { store: String, doing: &'static str, source_text: String },
    /// A server did not answer within the time allowed.
    #[error(
        "{store} has not answered for {waited:?}: is `hiroma serve` still running there? (--store-timeout sets how long to wait)"
    )]
    Unreachable { store: String, waited: Duration },
    /// The far end refused us, or speaks another language.
    #[error("{store} refused the connection: {reason}")]
    Refused { store: String, reason: String },
    /// What was asked makes no sense for this store: its address or its options are wrong.
    #[error("{store}: {reason}")]
    Config { store: String, reason: String },
}

/// How full a store is, and what it costs to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of sectors it holds, as the program sees them.
    pub far_bytes: u64,
    /// Bytes that they take up in the store (less, where it compresses).
    pub stored_bytes: u64,
    /// The most `stored_bytes` may be.
    pub capacity_bytes: u64,
    /// Bytes of this process's memory spent on tables (not on content).
    pub metadata_bytes: u64,
    /// Bytes of this process's memory spent on content (compressed memory; 0 for files and
    /// servers).
    pub local_bytes: u64,
}

/// Compressed memory, and what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Bytes of the program in compressed memory, and what they take there.
    pub near_bytes: u64,
    pub packed_bytes: u64,
    /// Bytes of the program behind it.
    pub behind_bytes: u64,
    /// It takes no more.
    pub is_full: bool,
}

/// A place for sectors. Shared by all threads; what a thread does with it goes through a
/// [`Channel`] of its own.
pub trait Store: Send + Sync {
    /// What the user called it, for messages: `compressed`, `file:/var/tmp`,
    /// `tcp://127.0.0.1:7070`.
    fn name(&self) -> String;

    /// Opens a channel. `Purpose` lets a store keep reads and write-backs on connections of their
    /// own.
    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError>;

    /// Gives sectors back. They must not have a request under way.
    fn free(&self, locs: &[Loc]);

    /// Descriptors that the store of a forked child needs under the same numbers.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Whether a forked child reads what its parent keeps for it, so that it cannot do without the
    /// parent's knowledge.
    fn keeps_for_children(&self) -> bool {
        !self.descriptors().is_empty()
    }

    /// Bytes of this machine's memory that it takes of the local limit now. Cheap.
    fn local_bytes(&self) -> u64 {
        0
    }

    /// The local limit is another one from now on.
    fn set_local_limit(&self, _bytes: u64) {}

    /// Where compressed memory within the local limit is followed by another store: how the two
    /// stand.
    fn balance(&self) -> Option<Balance> {
        None
    }

    /// Whether a sector takes some of the local limit.
    fn is_within_limit(&self, _loc: Loc) -> bool {
        false
    }

    /// Whether a sector lies behind compressed memory.
    fn is_behind(&self, _loc: Loc) -> bool {
        false
    }

    /// Where compressed memory takes more than its share: chooses what is to leave it. False if
    /// there is nothing.
    fn begin_drain(&self) -> bool {
        false
    }

    /// Whether compressed memory within the local limit, with another store behind it, has room for
    /// more. Cheap.
    fn has_room_near(&self) -> bool {
        false
    }

    /// Whether compressed memory within the local limit, with another store behind it, takes more,
    /// in slabs in use or in new ones. Cheap.
    fn takes_near(&self) -> bool {
        false
    }

    /// Whether a sector was chosen to leave compressed memory.
    fn is_to_leave(&self, _loc: Loc) -> bool {
        false
    }

    /// Compressed memory may take so much of the local limit, in parts of
    /// `hiroma_policy::sharing::PARTS`.
    fn set_share(&self, _parts: u64) {}

    /// The program has ended: what is kept elsewhere for it can go.
    fn leave(&self) {}

    /// How full it is.
    fn usage(&self) -> StoreUsage;

    /// Called in the parent, with no request under way and no other call running until the fork is
    /// over, before the process forks: from now on sectors that exist must keep their content
    /// (neither overwritten nor reused) until every `ForkGuard` of this fork is dropped.
    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError>;
}

/// What a store hands across a fork. The parent keeps its guard until the child is gone; the child
/// calls `adopt`.
pub trait ForkGuard: Send {
    /// In the child, before anything else: makes the store usable there. Sectors of before the fork
    /// stay readable; what the child writes goes to places of its own.
    fn adopt(&self) -> Result<(), StoreError>;
}

/// Compressed memory within the local limit, or what follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Compressed memory.
    Near,
    /// What follows it.
    Behind,
}

/// What a channel will be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Faults and prefetches.
    Read,
    /// Write-backs.
    Write,
}

/// One thread's way to a store. Requests start at the next `poll` at the latest: those between two
/// of them may go out together.
pub trait Channel: Send {
    /// Starts to read the sectors at `locs`, in order, into `buf` (whose length is as many
    /// sectors).
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf);

    /// Starts to write `buf` (one or more whole sectors) to places that the store chooses; they are
    /// in `locs` on return, or nothing was started and the buffer comes back with the reason.
    /// `locs` is as long as there are sectors. A sector's place must not be read before the write
    /// has completed.
    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)>;

    /// Like `write`, but to one tier only, where there are two.
    fn write_to(
        &mut self,
        _tier: Tier,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        self.write(token, buf, locs)
    }

    /// Moves things on without blocking and appends what has finished to `out`.
    fn poll(&mut self, out: &mut Vec<Completion>);

    /// Descriptors to wait on (for reading) while requests are under way; empty where `poll` alone
    /// suffices. Poll first: what was done at once rings no bell.
    fn wait_fds(&self) -> Vec<RawFd>;

    /// Requests under way.
    fn in_flight(&self) -> usize;
}
