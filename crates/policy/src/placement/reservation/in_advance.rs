//! Frames are requested before pages have to leave, and requested again as they are used.

use std::collections::VecDeque;

use crate::placement::placer::Leaving;
use crate::placement::view::Peer;

/// Frames reserved at peers, requests under way, and pages for which no frame was ready.
#[derive(Clone, Debug, Default)]
pub struct InAdvance {
    ready: VecDeque<Peer>,
    asked: u32,
    waiting: VecDeque<Leaving>,
}

impl InAdvance {
    /// A peer with a reserved frame, for a page that leaves now.
    pub fn take(&mut self) -> Option<Peer> {
        self.ready.pop_front()
    }

    /// `page` waits until a frame is ready.
    pub fn wait(&mut self, page: Leaving) {
        self.waiting.push_back(page);
    }

    /// Requests to be sent so that `wanted` frames are ready in addition to those for waiting
    /// pages.
    pub fn missing(&self, wanted: u32) -> u32 {
        (wanted + self.waiting.len() as u32).saturating_sub(self.ready.len() as u32 + self.asked)
    }

    /// A request was sent.
    pub fn asked(&mut self) {
        self.asked += 1;
    }

    /// `peer` promised a frame. Returns the page that it is for; none if the frame stays reserved.
    pub fn granted(&mut self, peer: Peer) -> Option<Leaving> {
        self.asked = self.asked.saturating_sub(1);
        let page = self.waiting.pop_front();
        if page.is_none() {
            self.ready.push_back(peer);
        }
        page
    }

    /// A request was refused.
    pub fn refused(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// There is no peer to ask: returns a waiting page for which no request is under way.
    pub fn give_up(&mut self) -> Option<Leaving> {
        if self.waiting.len() as u32 > self.asked { self.waiting.pop_front() } else { None }
    }

    /// Pages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The peers with a reserved frame, once for each.
    pub fn ready(&self) -> impl Iterator<Item = Peer> + '_ {
        self.ready.iter().copied()
    }

    /// Removes all reserved frames, to be released.
    pub fn release(&mut self) -> impl Iterator<Item = Peer> + '_ {
        self.ready.drain(..)
    }
}
