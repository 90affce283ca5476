//! Least frequently used since arrival; ties are broken by the oldest last use. Counts saturate at
//! [`USES_MAX`].

use super::Ranking;
use super::list::{Links, Queue};

/// Maximum count of uses.
pub const USES_MAX: u32 = 255;

/// One queue per number of uses.
#[derive(Clone, Debug)]
pub struct Lfu {
    links: Links,
    queues: [Queue; USES_MAX as usize + 1],
    /// All queues below this one are empty.
    least: u32,
}

impl Default for Lfu {
    fn default() -> Self {
        Lfu {
            links: Links::default(),
            queues: [Queue::default(); USES_MAX as usize + 1],
            least: USES_MAX,
        }
    }
}

impl Ranking for Lfu {
    fn insert(&mut self, frame: u32) {
        self.queues[0].push(&mut self.links, frame, 0);
        self.least = 0;
    }

    #[inline]
    fn touch(&mut self, frame: u32) {
        let uses = self.links.mark(frame);
        self.queues[uses as usize].remove(&mut self.links, frame);
        let uses = (uses + 1).min(USES_MAX);
        self.queues[uses as usize].push(&mut self.links, frame, uses);
    }

    fn remove(&mut self, frame: u32) {
        let uses = self.links.mark(frame);
        self.queues[uses as usize].remove(&mut self.links, frame);
    }

    fn victim(&mut self) -> Option<u32> {
        let least =
            (self.least..=USES_MAX).find(|&uses| self.queues[uses as usize].first().is_some())?;
        self.least = least;
        let frame = self.queues[least as usize].first()?;
        self.remove(frame);
        Some(frame)
    }

    fn heap_bytes(&self) -> usize {
        self.links.heap_bytes()
    }
}
