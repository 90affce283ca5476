//! What members tell each other.

/// A piece of a page, by a name that is unique in the cluster for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    /// The node whose page it is.
    pub owner: u32,
    /// The owner's incarnation.
    pub epoch: u32,
    /// The owner's number for the page.
    pub page: u64,
    /// The piece; a copy is a piece that is enough by itself.
    pub piece: u8,
}

/// The owner's number for one attempt to place a piece. Numbers grow, and none is used twice.
pub type Number = u64;

/// A piece to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Store {
    /// The piece.
    pub name: Name,
    /// The attempt.
    pub number: Number,
    /// Identifies the content: pieces of one page-out have the same.
    pub version: Number,
    /// How often it was sent to a node, this time included.
    pub attempts: u32,
    /// The incarnation of the receiver: a later one does not keep the piece, because its owner may
    /// have learned already that the receiver lost it.
    pub to_epoch: u32,
    /// The node and its request by which a frame is promised, if one is.
    pub reserved: Option<(u32, u64)>,
}

/// A message. Every message also carries its sender and the sender's incarnation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// Free frames, or proximity.
    Told {
        /// The number of the report.
        sequence: u32,
        /// Frames, or hops.
        value: u32,
    },
    /// Request for a bid.
    BidAsked {
        /// The round.
        id: u64,
    },
    /// A bid.
    Bid {
        /// The round.
        id: u64,
        /// Free frames.
        free: u32,
    },
    /// Request to reserve a frame.
    ReservationAsked {
        /// The request.
        id: u64,
    },
    /// The answer to it.
    ReservationAnswered {
        /// The request.
        id: u64,
        /// Whether a frame is promised.
        granted: bool,
    },
    /// The promised frame is not needed.
    ReservationReleased {
        /// The request.
        id: u64,
    },
    /// A piece to be kept, with its content - owner, or another host, to host.
    Store(Store),
    /// The piece is kept here - host to owner.
    Stored(Name, Number),
    /// The piece is not kept - host to owner.
    Refused {
        /// The piece.
        name: Name,
        /// The attempt.
        number: Number,
        /// Whether no other node is to be tried.
        to_disk: bool,
    },
    /// Request for a piece - owner to host.
    Fetch {
        /// The piece.
        name: Name,
        /// The attempt by which it was placed.
        number: Number,
        /// The request.
        id: u64,
    },
    /// The piece, with its content - host to owner.
    Page {
        /// The piece.
        name: Name,
        /// The attempt by which it was placed.
        number: Number,
        /// The request.
        id: u64,
    },
    /// No such piece is here - host to owner.
    NotHere(Name, Number),
    /// Is this piece still there? - owner to host.
    Probe(Name, Number),
    /// The piece, if it was placed by this attempt or an earlier one, is not needed - owner to host.
    Discard(Name, Number),
    /// The host needs the frame - host to owner.
    Displace {
        /// The piece.
        name: Name,
        /// The attempt by which it was placed.
        number: Number,
        /// Whether the host cannot keep it on its disk either.
        leaves: bool,
    },
    /// The piece may move: send a copy to another node - owner to host.
    SendOn {
        /// The piece.
        name: Name,
        /// The attempt by which it was placed.
        number: Number,
        /// The other node.
        to: u32,
        /// The attempt that this begins.
        next: Number,
        /// How often the piece was sent to a node, this time included.
        attempts: u32,
        /// The incarnation of the other node.
        to_epoch: u32,
        /// The owner's request by which a frame is promised there.
        reserved: Option<u64>,
    },
    /// There is no room elsewhere: keep it on your disk - owner to host.
    Spill(Name, Number),
    /// Are these pieces of your incarnation still needed? - host to owner.
    Renew(u32, Vec<(u64, u8, Number)>),
    /// Those of them that are, and those that are not - owner to host.
    Renewed {
        /// The owner's incarnation that was asked for.
        epoch: u32,
        /// Needed.
        keep: Vec<(u64, u8, Number)>,
        /// Not needed.
        drop: Vec<(u64, u8, Number)>,
    },
}

impl Note {
    /// Whether the message carries the content of a page.
    pub fn has_page(&self) -> bool {
        matches!(self, Note::Store(_) | Note::Page { .. })
    }
}
