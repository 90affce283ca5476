//! What a placer hears, and what it wants done.

use crate::placement::hearing::Stamp;
use crate::placement::view::{Avoid, Peer};

/// A page on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// The shell's number for it.
    pub page: u64,
    /// How often it was sent already.
    pub attempts: u32,
    /// Peers that it must not go to.
    pub avoid: Avoid,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// This node has this many free frames, without promised ones ([`Placer::promised`]).
    Free(u32),
    /// A page has to leave: from a frame, or on arrival because it cannot stay.
    PageLeaves(Leaving),
    /// A peer reported its free frames, or its proximity (gradient).
    Told {
        /// The peer.
        peer: Peer,
        /// Which of its reports; only looked at with `confirm`.
        stamp: Stamp,
        /// Frames; hops.
        value: u32,
    },
    /// A message of any kind arrived from a peer (with `confirm`).
    Heard {
        /// The peer.
        peer: Peer,
        /// Its incarnation.
        epoch: u32,
    },
    /// A peer is believed not to work: it gets no pages until it reports again.
    Suspected(Peer),
    /// A peer has left for good: what it sent before and arrives late is ignored.
    Left(Peer),
    /// A page that waits here is no longer to be placed.
    Cancelled(u64),
    /// Whether this node is to be emptied: it reports no free frames and promises none.
    Draining(bool),
    /// A node, named `node` by the shell, has lost its memory.
    Restarted {
        /// The node.
        node: u32,
    },
    /// A page was returned because the peer had no frame, or cannot be reached.
    Refused {
        /// The peer that returned it.
        peer: Peer,
        /// The page; `attempts` counts all attempts so far.
        page: Leaving,
    },
    /// A node requests a bid.
    BidAsked {
        /// The shell's name for the node.
        node: u32,
        /// Its round of bids.
        id: u64,
    },
    /// A bid.
    Bid {
        /// The bidder.
        peer: Peer,
        /// The round that it answers.
        id: u64,
        /// Free frames; 0 also for a peer that cannot be reached.
        free: u32,
    },
    /// A node requests the reservation of a frame.
    ReservationAsked {
        /// The shell's name for the node.
        node: u32,
        /// Its request: a repeated one has the same number.
        id: u64,
    },
    /// The answer to a reservation.
    ReservationAnswered {
        /// The peer that answered.
        peer: Peer,
        /// The request.
        id: u64,
        /// Whether a frame is reserved; false also for a peer that cannot be reached.
        granted: bool,
    },
    /// A reservation is released.
    ReservationReleased {
        /// The shell's name for the node.
        node: u32,
        /// The request.
        id: u64,
    },
    /// The time that [`Placer::deadline_ns`] returned may have come.
    Tick,
}

/// What the shell is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Tell all peers.
    Tell {
        /// The number of the report.
        sequence: u32,
        /// Free frames, or proximity.
        value: u32,
    },
    /// Request bids from all peers.
    AskBids {
        /// The round.
        id: u64,
    },
    /// Answer a node that requested a bid.
    AnswerBid {
        /// The shell's name for the node.
        node: u32,
        /// Its round.
        id: u64,
        /// Free frames.
        free: u32,
    },
    /// Request a reservation from a peer.
    AskReservation {
        /// The peer.
        peer: Peer,
        /// The request.
        id: u64,
    },
    /// Answer a node that requested a reservation; with a grant the shell has one free frame less.
    AnswerReservation {
        /// The shell's name for the node.
        node: u32,
        /// Its request.
        id: u64,
        /// Whether a frame is reserved.
        granted: bool,
    },
    /// Release a reservation.
    ReleaseReservation {
        /// The peer.
        peer: Peer,
        /// The request.
        id: u64,
    },
    /// Send a page.
    Send {
        /// The page; `attempts` includes this one.
        page: Leaving,
        /// The destination.
        to: Peer,
        /// The request by which a frame is reserved for it there, if one is.
        reserved: Option<u64>,
    },
    /// Send a page to disk.
    SendToDisk(Leaving),
}
