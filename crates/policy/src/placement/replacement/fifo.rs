//! First in, first out: uses do not count.

use super::Ranking;
use super::list::{Links, Queue};

/// The frame that was filled first is the victim.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    links: Links,
    queue: Queue,
}

impl Fifo {
    /// Treats `frame` as if it had been filled just now.
    #[inline]
    pub(super) fn move_to_end(&mut self, frame: u32) {
        self.queue.move_to_end(&mut self.links, frame);
    }
}

impl Ranking for Fifo {
    fn insert(&mut self, frame: u32) {
        self.queue.push(&mut self.links, frame, 0);
    }

    #[inline]
    fn touch(&mut self, _: u32) {}

    fn remove(&mut self, frame: u32) {
        self.queue.remove(&mut self.links, frame);
    }

    fn victim(&mut self) -> Option<u32> {
        let frame = self.queue.first()?;
        self.remove(frame);
        Some(frame)
    }

    fn heap_bytes(&self) -> usize {
        self.links.heap_bytes()
    }
}
