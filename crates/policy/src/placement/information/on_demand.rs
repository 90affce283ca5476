//! Bidding: a node that has a page to place asks all peers, and chooses when all have answered, or
//! when the deadline has passed.

use crate::placement::view::Peer;

/// The bids that one node waits for. Pages that have to leave meanwhile share the answers.
#[derive(Clone, Debug, Default)]
pub struct Bids {
    round: u64,
    /// By peer: whether its answer is missing.
    missing: Vec<bool>,
    left: u32,
    deadline_ns: Option<u64>,
}

impl Bids {
    /// Whether answers are missing.
    pub fn under_way(&self) -> bool {
        self.left > 0
    }

    /// Requests are being sent as round `round`; `peers` tells of each peer whether it can answer.
    pub fn ask(&mut self, round: u64, peers: impl Iterator<Item = bool>, deadline_ns: Option<u64>) {
        debug_assert_eq!(self.left, 0, "one round of bids at a time");
        self.missing.clear();
        self.missing.extend(peers);
        let left = self.missing.iter().filter(|missing| **missing).count() as u32;
        (self.round, self.left, self.deadline_ns) = (round, left, deadline_ns);
    }

    /// The last round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whether the answer of `peer` in round `round` is missing.
    pub fn expects(&self, round: u64, peer: Peer) -> bool {
        let is_missing = self.missing.get(usize::from(peer.0)).copied();
        round == self.round && self.left > 0 && is_missing == Some(true)
    }

    /// A peer answered in round `round`, or cannot be reached. Returns whether that was the last
    /// one. A repeated answer, or one of an earlier round, does not count.
    pub fn answered(&mut self, round: u64, peer: Peer) -> bool {
        if round != self.round || self.left == 0 {
            return false;
        }
        let missing = self.missing.get_mut(usize::from(peer.0)).map(std::mem::take);
        self.left -= u32::from(missing == Some(true));
        missing == Some(true) && self.left == 0
    }

    /// When the round ends without the missing answers, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns.filter(|_| self.left > 0)
    }

    /// Ends the round if its deadline has passed. Returns the peers that did not answer.
    pub fn expire(&mut self, now_ns: u64) -> Option<Vec<Peer>> {
        self.deadline_ns().filter(|&deadline_ns| deadline_ns <= now_ns)?;
        self.left = 0;
        let peers = (0..).zip(&self.missing).filter(|(_, missing)| **missing);
        Some(peers.map(|(peer, _)| Peer(peer)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_ends_once_at_last_answer() {
        let mut bids = Bids::default();
        bids.ask(4, [true; 3].into_iter(), None);
        let ends: Vec<bool> = (0..5).map(|peer| bids.answered(4, Peer(peer))).collect();
        assert_eq!(ends, [false, false, true, false, false]);
        assert!(!bids.under_way());
    }

    #[test]
    fn repeated_bid_and_bid_of_an_earlier_round_do_not_count() {
        let mut bids = Bids::default();
        bids.ask(4, [true; 2].into_iter(), None);
        assert!(!bids.answered(4, Peer(0)) && !bids.answered(4, Peer(0)));
        assert!(!bids.answered(3, Peer(1)) && bids.under_way());
        assert!(bids.answered(4, Peer(1)));
    }

    #[test]
    fn nobody_waits_for_peers_that_have_left() {
        let mut bids = Bids::default();
        bids.ask(1, [true, false, true].into_iter(), Some(70));
        assert!(!bids.expects(1, Peer(1)) && !bids.answered(1, Peer(1)));
        assert!(!bids.answered(1, Peer(0)) && bids.answered(1, Peer(2)));
        bids.ask(2, [false].into_iter(), Some(90));
        assert!(!bids.under_way());
    }

    #[test]
    fn round_ends_at_its_deadline_without_lost_bids() {
        let mut bids = Bids::default();
        bids.ask(1, [true; 3].into_iter(), Some(70));
        bids.answered(1, Peer(1));
        assert_eq!((bids.expire(69), bids.deadline_ns()), (None, Some(70)));
        assert_eq!(bids.expire(70), Some(vec![Peer(0), Peer(2)]));
        assert!(!bids.under_way() && !bids.answered(1, Peer(0)));
        assert_eq!(bids.deadline_ns(), None);
    }
}
