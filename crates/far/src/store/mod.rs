//! Where far blocks are stored: the interface that every store implements.
//!
//! A store contains *sectors* (a power of two from 4 KiB to 2 MiB, fixed when it is opened). The
//! location of a sector is a [`Loc`], which the store assigns and which only the store can
//! interpret. The pager remembers it, together with a checksum of the content, and verifies that
//! checksum whenever a sector is fetched; stores need not do that.
//!
//! Requests go through a [`Channel`], one per thread, with many in flight at a time. A channel
//! never blocks in `read`, `write` or `poll`. A store that answers immediately (compressed memory)
//! completes inside the call.

mod background;
pub(crate) mod bit_set;
pub mod chain;
mod clerk;
pub mod compressed;
pub mod faulty;
pub mod file;
mod file_io;
#[cfg(test)]
mod model;
mod open;
mod packer;
pub mod redis;
pub mod replicated;
pub mod sealed;
pub mod slab;
pub mod space;
mod spares;
pub mod tcp;

pub use open::open;

use std::os::fd::RawFd;
use std::time::Duration;

use hiroma_sys::frame::FrameBuf;
use hiroma_units::{Bytes, Loc};

/// Identifies one request on a channel; chosen by the caller. No two that are under way have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// The result of a request. The buffer is always returned.
#[derive(Debug)]
pub struct Completion {
    /// The request.
    pub token: Token,
    /// The buffer that was lent: filled, if it was a successful read.
    pub buf: FrameBuf,
    /// Whether the request succeeded.
    pub result: Result<(), StoreError>,
}

/// Why a store failed. Every message says what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No room for another sector.
    #[error(
        "{store} is full ({used} of {capacity} in use): give it more room, or add another store behind it with --store A,B"
    )]
    Full { store: String, used: Bytes, capacity: Bytes },
    /// It has room, but not for this content: another store is the better place.
    #[error(
        "{store} does not take what does not compress: add another store behind it with --store A,B"
    )]
    Rejected { store: String },
    /// Input or output failed, and a retry does not help.
    #[error("{store}: {doing} failed: {source_text}")]
    Io { store: String, doing: &'static str, source_text: String },
    /// A server answered a request with an error.
    #[error("{store}: {doing} failed: {source_text}")]
    Answered { store: String, doing: &'static str, source_text: String },
    /// A server did not answer within the timeout.
    #[error(
        "{store} has not answered for {waited:?}: is `hiroma serve` still running there? (--store-timeout sets how long to wait)"
    )]
    Unreachable { store: String, waited: Duration },
    /// All servers that had a block are gone.
    #[error("{store}: no copy of a needed block is left ({reason})")]
    NoCopy { store: String, reason: String },
    /// More servers than is borne that had pieces of a block are gone.
    #[error("{store}: too few pieces of a needed block are left ({reason})")]
    TooFewPieces { store: String, reason: String },
    /// What came back was not what was stored.
    #[error(
        "{store} returned a block that is not the one that was stored there: it was changed, or it is an older one. Check the server and who has access to it"
    )]
    Changed { store: String },
    /// The server could not be connected to when the store was opened.
    #[error("{store} refused the connection: {reason}")]
    Absent { store: String, reason: String },
    /// The server refused us, or uses another protocol.
    #[error("{store} refused the connection: {reason}")]
    Refused { store: String, reason: String },
    /// The request is invalid for this store: its address or its options are wrong.
    #[error("{store}: {reason}")]
    Config { store: String, reason: String },
}

/// Whether a channel can reach its store now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// As far as known.
    Up,
    /// The connection is down; requests wait until it is restored.
    CutOff,
    /// What is stored is lost.
    Dead,
}

/// What is known of a store without asking it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// Whether it can be reached.
    pub condition: Condition,
    /// How long ago it last gave a sign of life.
    pub silent: Duration,
    /// Why it cannot be reached.
    pub reason: String,
    /// It is to be emptied.
    pub is_draining: bool,
}

/// How full a store is, and how much memory it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of sectors in it, as the program sees them.
    pub far_bytes: u64,
    /// Bytes that they occupy in the store (less, if it compresses).
    pub stored_bytes: u64,
    /// Maximum of `stored_bytes`.
    pub capacity_bytes: u64,
    /// Bytes of this process's memory spent on tables (not on content).
    pub metadata_bytes: u64,
    /// Bytes of this process's memory spent on content (compressed memory; 0 for files and
    /// servers).
    pub local_bytes: u64,
    /// Of `stored_bytes`: in servers.
    pub server_bytes: u64,
    /// Connections for content that were made to servers so far, over TCP and in shared memory.
    pub tcp_connections: u64,
    pub shared_connections: u64,
    /// Bytes that are in fewer servers than they should be, and have not been copied again yet.
    pub short_bytes: u64,
    /// Bytes that were copied again so far, because a server was lost.
    pub recopied_bytes: u64,
}

/// Compressed memory, and the stores behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Bytes of the program in compressed memory, and bytes that they occupy there.
    pub near_bytes: u64,
    pub packed_bytes: u64,
    /// Compressed memory accepts no more.
    pub is_full: bool,
}

/// A store for sectors. It is shared by all threads; each thread uses it through a [`Channel`] of
/// its own.
pub trait Store: Send + Sync {
    /// Its name in messages, as the user gave it: `compressed`, `file:/var/tmp`,
    /// `tcp://127.0.0.1:7070`.
    fn name(&self) -> String;

    /// Opens a channel. `Purpose` lets a store use separate connections for reads and write-backs.
    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError>;

    /// Opens a channel to its compressed memory alone, if it has any. Requests to it are completed
    /// by the time that they return.
    fn open_near(&self) -> Option<Box<dyn Channel>> {
        None
    }

    /// Whether its compressed memory, if it has any, accepts more. Cheap.
    fn takes_now(&self) -> bool {
        false
    }

    /// Frees sectors. They must not have a request in flight.
    fn free(&self, locs: &[Loc]);

    /// Descriptors that the store of a forked child needs under the same numbers.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Whether a forked child reads what its parent preserves for it, so that the parent has to
    /// know of the child.
    fn keeps_for_children(&self) -> bool {
        !self.descriptors().is_empty()
    }

    /// Bytes of this machine's memory that it currently uses within the local limit. Cheap.
    fn local_bytes(&self) -> u64 {
        0
    }

    /// Sets a new local limit.
    fn set_local_limit(&self, _bytes: u64) {}

    /// The current balance, if compressed memory within the local limit is followed by another
    /// store.
    fn balance(&self) -> Option<Balance> {
        None
    }

    /// Whether a sector uses memory within the local limit.
    fn is_within_limit(&self, _loc: Loc) -> bool {
        false
    }

    /// Whether a sector is in compressed memory of this machine.
    fn is_packed(&self, _loc: Loc) -> bool {
        false
    }

    /// Whether a sector is in a store behind compressed memory.
    fn is_behind(&self, _loc: Loc) -> bool {
        false
    }

    /// If compressed memory exceeds its share, selects the sectors to move out of it. Returns false
    /// if there are none.
    fn begin_drain(&self) -> bool {
        false
    }

    /// Whether compressed memory within the local limit, with another store behind it, accepts
    /// more, in slabs in use or in new ones. Cheap.
    fn takes_near(&self) -> bool {
        false
    }

    /// Whether a sector was selected to be moved out of compressed memory.
    fn is_to_leave(&self, _loc: Loc) -> bool {
        false
    }

    /// Sets how much of the local limit compressed memory may use, in parts of
    /// `hiroma_policy::sharing::PARTS`.
    fn set_share(&self, _parts: u64) {}

    /// What is known of a store on another machine. Does not wait.
    fn pulse(&self) -> Option<Pulse> {
        None
    }

    /// Notes for a store on another machine how many blocks have fewer pieces than they should, at all
    /// stores together: it tells the server.
    fn tell_short(&self, _blocks: u64) {}

    /// Why it may not store more although servers have room: whose quota is used up.
    fn full_because(&self) -> Option<String> {
        None
    }

    /// Whether it was asked for more room and has not answered: a write that it refused as full may
    /// succeed soon.
    fn awaits_room(&self) -> bool {
        false
    }

    /// How long it is worth waiting for room when it is full, if it knows.
    fn room_patience(&self) -> Option<Duration> {
        None
    }

    /// The program has ended: what is stored elsewhere for it can be freed.
    fn leave(&self) {}

    /// How full it is.
    fn usage(&self) -> StoreUsage;

    /// Prepares a fork. Called in the parent before the process forks, with no request in flight
    /// and no other call running until the fork is over. From now on sectors that exist must retain
    /// their content (neither overwritten nor reused) until every `ForkGuard` of this fork is
    /// dropped.
    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError>;
}

/// What a store passes across a fork. The parent keeps its guard until the child has ended; the
/// child calls `adopt`.
pub trait ForkGuard: Send {
    /// Makes the store usable in the child. Called there before anything else. Sectors from before
    /// the fork stay readable; the child's writes go to locations of its own.
    fn adopt(&self) -> Result<(), StoreError>;
}

/// Compressed memory within the local limit, or the stores that follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Compressed memory.
    Near,
    /// The stores that follow it.
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

/// One thread's access to a store. Requests start at the next `poll` at the latest; those between
/// two polls may be submitted together.
pub trait Channel: Send {
    /// Starts to read the sectors at `locs`, in order, into `buf`, whose length is that many
    /// sectors.
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf);

    /// Starts to write `buf` (one or more whole sectors) to locations that the store chooses and
    /// returns in `locs`. On failure nothing was started, and the buffer is returned with the
    /// reason. `locs` has one entry for each sector. A sector must not be read before its write has
    /// completed.
    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)>;

    /// Like `write`, but to one tier only, if there are two.
    fn write_to(
        &mut self,
        _tier: Tier,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        self.write(token, buf, locs)
    }

    /// Advances requests without blocking, and appends the finished ones to `out`.
    fn poll(&mut self, out: &mut Vec<Completion>);

    /// Descriptors to wait on (for reading) while requests are in flight; empty if `poll` alone
    /// suffices. Poll first: a request that completed immediately makes no descriptor readable.
    fn wait_fds(&self) -> Vec<RawFd>;

    /// Number of requests in flight.
    fn in_flight(&self) -> usize;

    /// Takes the buffer of a request in flight back, which is never read or written from then on.
    /// The request completes as usual, with an empty buffer; what a write stored is worthless.
    /// `None` if that is not possible.
    fn abandon(&mut self, _token: Token) -> Option<FrameBuf> {
        None
    }

    /// Whether the store can be reached.
    fn condition(&self) -> Condition {
        Condition::Up
    }
}
