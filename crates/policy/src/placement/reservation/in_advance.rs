//! Frames are requested before pages have to leave, and requested again as they are used.

use std::collections::VecDeque;

use crate::placement::placer::Leaving;
use crate::placement::view::{Avoid, Peer};

/// A request under way, or the frame that it brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// The request.
    pub id: u64,
    /// The peer that was asked.
    pub peer: Peer,
    /// When the request is given up, or the lease of the frame ends, ns.
    pub until_ns: u64,
}

/// Frames reserved at peers, requests under way, and pages for which no frame was ready.
#[derive(Clone, Debug, Default)]
pub struct InAdvance {
    ready: VecDeque<Reserved>,
    asked: Vec<Reserved>,
    /// Pages, and until when they wait, ns.
    waiting: VecDeque<(Leaving, u64)>,
}

impl InAdvance {
    /// A reserved frame, for a page that leaves now and avoids some peers.
    pub fn take(&mut self, avoid: Avoid) -> Option<Reserved> {
        let place = self.ready.iter().position(|ready| !avoid.has(ready.peer))?;
        self.ready.remove(place)
    }

    /// `page` waits until a frame is ready, but not longer than `until_ns`.
    pub fn wait(&mut self, page: Leaving, until_ns: u64) {
        self.waiting.push_back((page, until_ns));
    }

    /// A page that has waited too long.
    pub fn overdue(&mut self, now_ns: u64) -> Option<Leaving> {
        let place = self.waiting.iter().position(|&(_, until_ns)| until_ns <= now_ns)?;
        self.waiting.remove(place).map(|(page, _)| page)
    }

    /// Requests to be sent so that `wanted` frames are ready in addition to those for waiting
    /// pages.
    pub fn missing(&self, wanted: u32) -> u32 {
        (wanted + self.waiting.len() as u32)
            .saturating_sub(self.ready.len() as u32 + self.asked.len() as u32)
    }

    /// A request was sent.
    pub fn asked(&mut self, request: Reserved) {
        self.asked.push(request);
    }

    fn end(&mut self, id: u64) -> Option<Reserved> {
        let place = self.asked.iter().position(|asked| asked.id == id)?;
        Some(self.asked.swap_remove(place))
    }

    /// Request `id` brought a frame, whose lease ends `more_ns` after the deadline of the request.
    /// Returns the page that the frame is for, or that it stays reserved; none if the request was
    /// not under way.
    pub fn granted(&mut self, id: u64, more_ns: u64) -> Option<Option<Leaving>> {
        let asked = self.end(id)?;
        let page = self.waiting.pop_front().map(|(page, _)| page);
        if page.is_none() {
            let until_ns = asked.until_ns.saturating_add(more_ns);
            self.ready.push_back(Reserved { until_ns, ..asked });
        }
        Some(page)
    }

    /// Whether the frame of request `id` is ready.
    pub fn has(&self, id: u64) -> bool {
        self.ready.iter().any(|ready| ready.id == id)
    }

    /// A request was refused. Returns whether it was under way.
    pub fn refused(&mut self, id: u64) -> bool {
        self.end(id).is_some()
    }

    /// There is no peer to ask: returns a waiting page for which no request is under way.
    pub fn give_up(&mut self) -> Option<Leaving> {
        if self.waiting.len() <= self.asked.len() {
            return None;
        }
        self.waiting.pop_front().map(|(page, _)| page)
    }

    /// A request whose deadline has passed, or a frame whose lease has ended.
    pub fn expired(&mut self, now_ns: u64) -> Option<Reserved> {
        if let Some(place) = self.asked.iter().position(|asked| asked.until_ns <= now_ns) {
            return Some(self.asked.swap_remove(place));
        }
        let place = self.ready.iter().position(|ready| ready.until_ns <= now_ns)?;
        self.ready.remove(place)
    }

    /// The peer has lost its memory: frames that it promised are gone.
    pub fn forget(&mut self, peer: Peer) {
        self.ready.retain(|ready| ready.peer != peer);
    }

    /// The page is no longer to be placed.
    pub fn cancel(&mut self, page: u64) {
        self.waiting.retain(|(waiting, _)| waiting.page != page);
    }

    /// The earliest deadline, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        let requests = self.asked.iter().chain(&self.ready).map(|request| request.until_ns);
        requests.chain(self.waiting.iter().map(|&(_, until_ns)| until_ns)).min()
    }

    /// Pages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The peers with a reserved frame, once for each.
    pub fn ready(&self) -> impl Iterator<Item = Peer> + '_ {
        self.ready.iter().map(|ready| ready.peer)
    }

    /// Removes all reserved frames, to be released.
    pub fn release(&mut self) -> impl Iterator<Item = Reserved> + '_ {
        self.ready.drain(..)
    }
}
