//! Which word of a peer is the latest: messages may be repeated, reordered and lost, and a peer may
//! have restarted.

use super::view::Peer;

/// What identifies a report: the incarnation of its sender, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp {
    /// Grows with each restart of the sender; never 0 for a node that was heard.
    pub epoch: u32,
    /// Grows with each report.
    pub sequence: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    told: Stamp,
    at_ns: u64,
}

/// The last word of each peer.
#[derive(Clone, Debug, Default)]
pub struct Hearing(Vec<Last>);

impl Hearing {
    fn last(&mut self, peer: Peer) -> &mut Last {
        let place = usize::from(peer.0);
        if place >= self.0.len() {
            self.0.resize(place + 1, Last::default());
        }
        &mut self.0[place]
    }

    /// A report arrived. Returns whether it is newer than all before.
    pub fn told(&mut self, peer: Peer, stamp: Stamp, now_ns: u64) -> bool {
        let last = self.last(peer);
        let is_news = stamp > last.told;
        if is_news {
            (last.told, last.at_ns) = (stamp, now_ns);
        }
        is_news
    }

    /// Any message of incarnation `epoch` arrived. Returns whether the peer has restarted since the
    /// last one: what it told before is void.
    pub fn heard(&mut self, peer: Peer, epoch: u32, now_ns: u64) -> bool {
        let last = self.last(peer);
        if epoch < last.told.epoch {
            return false;
        }
        last.at_ns = now_ns;
        let restarted = epoch > last.told.epoch && last.told.epoch > 0;
        if restarted {
            last.told = Stamp { epoch, sequence: 0 };
        }
        restarted
    }

    /// The incarnation of a peer; 0 if it was never heard.
    pub fn epoch(&self, peer: Peer) -> u32 {
        self.0.get(usize::from(peer.0)).map_or(0, |last| last.told.epoch)
    }

    /// Peers without a word since `since_ns`.
    pub fn silent(&self, since_ns: u64) -> impl Iterator<Item = Peer> + '_ {
        let peers = (0..).zip(&self.0);
        peers.filter(move |(_, last)| last.at_ns < since_ns).map(|(peer, _)| Peer(peer))
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Last>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: u32, sequence: u32) -> Stamp {
        Stamp { epoch, sequence }
    }

    #[test]
    fn only_newer_reports_count() {
        let (mut hearing, peer) = (Hearing::default(), Peer(3));
        let reports = [(1, 1), (1, 3), (1, 2), (1, 3), (2, 1), (1, 9), (2, 2)];
        let news = reports.map(|(epoch, seq)| hearing.told(peer, stamp(epoch, seq), 5));
        assert_eq!(news, [true, true, false, false, true, false, true]);
    }

    #[test]
    fn restart_is_noticed_once_and_old_words_are_ignored() {
        let (mut hearing, peer) = (Hearing::default(), Peer(0));
        assert!(hearing.told(peer, stamp(4, 9), 1));
        assert!(!hearing.heard(peer, 4, 2));
        assert!(hearing.heard(peer, 5, 3));
        assert!(!hearing.heard(peer, 5, 4) && !hearing.heard(peer, 4, 9));
        assert_eq!(hearing.silent(5).count(), 1, "an old word is no sign of life");
        assert!(hearing.told(peer, stamp(5, 1), 6));
        assert_eq!(hearing.silent(5).count(), 0);
    }
}
