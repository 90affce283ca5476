//! Least recently used.

use super::Ranking;
use super::list::{Links, Queue};

/// The frame whose last use is longest ago leaves.
#[derive(Clone, Debug, Default)]
pub struct Lru {
    links: Links,
    queue: Queue,
}

impl Ranking for Lru {
    fn insert(&mut self, frame: u32) {
        self.queue.push(&mut self.links, frame, 0);
    }

    #[inline]
    fn touch(&mut self, frame: u32) {
        self.queue.move_to_end(&mut self.links, frame);
    }

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
