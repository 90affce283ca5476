//! Second chance: a page that was used since the hand last passed is skipped once.

use super::Ranking;
use super::list::{Links, Queue};

/// A ring of frames; the hand is at the front of the queue, and frames that it passes move to the
/// end.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    links: Links,
    queue: Queue,
}

impl Ranking for Clock {
    fn insert(&mut self, frame: u32) {
        self.queue.push(&mut self.links, frame, 0);
    }

    #[inline]
    fn touch(&mut self, frame: u32) {
        self.links.set_mark(frame, 1);
    }

    fn remove(&mut self, frame: u32) {
        self.queue.remove(&mut self.links, frame);
    }

    fn victim(&mut self) -> Option<u32> {
        loop {
            let frame = self.queue.first()?;
            self.queue.remove(&mut self.links, frame);
            if self.links.mark(frame) == 0 {
                return Some(frame);
            }
            self.queue.push(&mut self.links, frame, 0);
        }
    }

    fn heap_bytes(&self) -> usize {
        self.links.heap_bytes()
    }
}
