//! Least recently used.

use super::{Fifo, Ranking};

/// The victim is the frame whose last use is longest ago: first in, first out, where a use moves
/// the frame to the end.
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
