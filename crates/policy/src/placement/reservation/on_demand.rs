//! A frame is requested when a page has to leave; the page waits for the answer.

use crate::placement::placer::Leaving;
use crate::placement::view::Peer;

/// Pages that wait for an answer, each with the peer that was asked.
#[derive(Clone, Debug, Default)]
pub struct OnDemand {
    waiting: Vec<(Peer, Leaving)>,
}

impl OnDemand {
    /// `page` waits for `peer`.
    pub fn wait(&mut self, peer: Peer, page: Leaving) {
        self.waiting.push((peer, page));
    }

    /// `peer` answered. Returns the page that has waited longest for it.
    pub fn answered(&mut self, peer: Peer) -> Option<Leaving> {
        let place = self.waiting.iter().position(|&(asked, _)| asked == peer)?;
        Some(self.waiting.remove(place).1)
    }

    /// Pages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
