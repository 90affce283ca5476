//! Least recently used.

use super::{Fifo, Ranking};

/// The frame whose last use is longest ago leaves: first in, first out, where a use counts as
/// coming in anew.
#[derive(Clone, Debug, Default)]
pub struct Lru(Fifo);

impl Ranking for Lru {
    fn insert(&mut self, frame: u32) {
        self.0.insert(frame);
    }

    #[inline]
    fn touch(&mut self, frame: u32) {
        self.0.move_to_end(frame);
    }

    fn remove(&mut self, frame: u32) {
        self.0.remove(frame);
    }

    fn victim(&mut self) -> Option<u32> {
        self.0.victim()
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}
