//! First in, first out.

use hiroma_units::BlockId;
use rustc_hash::FxHashSet;

use super::queue::Queue;
use super::{Hint, Origin, Replacement};

/// Blocks are evicted strictly in the order in which they were admitted, used or not.
///
/// This policy gives no second chances. A block that is touched while it waits for its write-back
/// has to become resident again all the same, and it goes to the end of the queue only because it
/// must be somewhere: at the front it would be staged and touched for ever, and nothing would be
/// evicted. Hints have no effect.
#[derive(Default)]
pub struct Fifo {
    queue: Queue,
}

impl Fifo {
    /// A policy without blocks.
    pub fn new() -> Self {
        Fifo::default()
    }
}

impl Replacement for Fifo {
    fn admitted(&mut self, block: BlockId, _origin: Origin) {
        self.queue.push(block);
    }

    fn hinted(&mut self, _block: BlockId, _hint: Hint) {}

    fn next_victim(&mut self) -> Option<BlockId> {
        self.queue.pop()
    }

    fn put_back(&mut self, block: BlockId) {
        self.queue.push(block);
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn compact(&mut self, resident: &mut dyn FnMut(BlockId) -> bool) {
        self.queue.retain(&mut FxHashSet::default(), resident);
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>() + self.queue.metadata_bytes()
    }

    fn gives_second_chances(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_in_admission_order() {
        let mut fifo = Fifo::new();
        let origins =
            [Origin::Fresh, Origin::Rescued, Origin::Stream, Origin::Prefetch, Origin::Demand];
        for (page, origin) in origins.into_iter().enumerate() {
            fifo.admitted(BlockId::new(page as u64, 0), origin);
        }
        fifo.hinted(BlockId::new(0, 0), Hint::Hot);
        let out: Vec<u64> = std::iter::from_fn(|| fifo.next_victim()).map(BlockId::page).collect();
        assert_eq!(out, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn unstaged_block_is_offered_again_last() {
        let mut fifo = Fifo::new();
        (0..3).for_each(|page| fifo.admitted(BlockId::new(page, 0), Origin::Fresh));
        let pinned = fifo.next_victim().unwrap();
        fifo.put_back(pinned);
        let out: Vec<u64> = std::iter::from_fn(|| fifo.next_victim()).map(BlockId::page).collect();
        assert_eq!(out, [1, 2, 0]);
    }
}
