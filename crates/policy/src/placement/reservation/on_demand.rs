//! A frame is requested when a page has to leave; the page waits for the answer.

use crate::placement::placer::Leaving;
use crate::placement::view::Peer;

/// One request without an answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u64,
    peer: Peer,
    page: Leaving,
    deadline_ns: u64,
}

/// Pages that wait for an answer, each with the peer that was asked.
#[derive(Clone, Debug, Default)]
pub struct OnDemand {
    waiting: Vec<Asked>,
}

impl OnDemand {
    /// `page` waits until `deadline_ns` for the answer of `peer` to request `id`.
    pub fn wait(&mut self, id: u64, peer: Peer, page: Leaving, deadline_ns: u64) {
        self.waiting.push(Asked { id, peer, page, deadline_ns });
    }

    /// Request `id` was answered. Returns the page that waits for it.
    pub fn answered(&mut self, id: u64) -> Option<Leaving> {
        let place = self.waiting.iter().position(|asked| asked.id == id)?;
        Some(self.waiting.remove(place).page)
    }

    /// A request whose deadline has passed: its number, its peer, the page.
    pub fn expired(&mut self, now_ns: u64) -> Option<(u64, Peer, Leaving)> {
        let place = self.waiting.iter().position(|asked| asked.deadline_ns <= now_ns)?;
        let Asked { id, peer, page, .. } = self.waiting.remove(place);
        Some((id, peer, page))
    }

    /// The page is no longer to be placed. Returns the request to be released.
    pub fn cancel(&mut self, page: u64) -> Option<(u64, Peer)> {
        let place = self.waiting.iter().position(|asked| asked.page.page == page)?;
        let Asked { id, peer, .. } = self.waiting.remove(place);
        Some((id, peer))
    }

    /// The earliest deadline, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.waiting.iter().map(|asked| asked.deadline_ns).min()
    }

    /// Pages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
