//! Far memory in several servers of which none matters: which server gets a piece of a block, which
//! pieces are read, when a server counts as lost, and what is made again.
//!
//! Everything here is a state machine: events and the time go in, answers and commands come out.
//! The process whose memory it is, is the only writer of every block, and [`Table`] is the only
//! record of which version of it lies where, so there is nothing for the servers to agree on
//! (`docs/internals/consistency.md`).
//!
//! | Part | Decides |
//! |---|---|
//! | [`Scheme`] | of how many pieces a block consists, and how many of them give it back |
//! | [`Table`] | which pieces of a block are current |
//! | [`Pool`] | which servers are well, which of them gets a block, and which is asked for it |
//! | [`Pacer`] | how fast blocks are made again beside the program's own requests |
//! | [`Bans`] | when a server that returned wrong bytes may be used again |

mod bans;
mod pacer;
mod pool;
mod quantile;
mod scheme;
mod table;
#[cfg(test)]
mod tests;

pub use bans::Bans;
pub use pacer::Pacer;
pub use pool::{Change, Health, LOST_AFTER_NS, Pool, SUSPECT_AFTER_NS};
pub use scheme::{COPIES_MAX, Indices, PIECES_MAX, Scheme, SchemeError};
pub use table::{Census, NoRoom, Refused, Row, Table};

/// Maximum number of members: servers, with every restart of one counted.
pub const MEMBERS_MAX: usize = 64;

/// One incarnation of a server: one that restarted is another member. A number is used again only
/// when no block refers to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member(pub u8);

impl Member {
    /// Its number, as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of members.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Members(pub u64);

impl Members {
    /// Adds a member.
    pub fn insert(&mut self, member: Member) {
        self.0 |= 1 << member.0;
    }

    /// Whether it is in the set.
    pub fn contains(self, member: Member) -> bool {
        self.0 >> member.0 & 1 == 1
    }

    /// Number of members.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Member> + Clone {
        (0..MEMBERS_MAX as u8).map(Member).filter(move |&member| self.contains(member))
    }
}

impl FromIterator<Member> for Members {
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Members {
        let mut set = Members::default();
        members.into_iter().for_each(|member| set.insert(member));
        set
    }
}

/// Where one piece of a block is: a member, and the place there, which only the member interprets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The member.
    pub member: Member,
    /// The place.
    pub place: u32,
}
