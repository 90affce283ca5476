//! A queue of blocks: four bytes per entry, in chunks of 4 KiB, so that it never moves its content
//! to grow and frees memory as it shrinks.

use std::collections::VecDeque;

use hiroma_units::BlockId;
use rustc_hash::FxHashSet;

const CHUNK: usize = 1024;
/// Empty chunks that are kept: a queue that turns over in steady state does not allocate.
const SPARES: usize = 2;

/// First in, first out; tracks the size of its blocks.
#[derive(Default)]
pub(super) struct Queue {
    chunks: VecDeque<Box<[BlockId; CHUNK]>>,
    spares: Vec<Box<[BlockId; CHUNK]>>,
    head: usize,
    len: usize,
    pages: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Pages of all blocks in the queue.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    pub(super) fn push(&mut self, block: BlockId) {
        let at = self.head + self.len;
        if at == self.chunks.len() * CHUNK {
            let chunk = self.spares.pop().unwrap_or_else(|| Box::new([BlockId::new(0, 0); CHUNK]));
            self.chunks.push_back(chunk);
        }
        self.chunks[at / CHUNK][at % CHUNK] = block;
        self.len += 1;
        self.pages += block.pages() as u64;
    }

    /// The block that [`Queue::pop`] would return.
    pub(super) fn peek(&self) -> Option<BlockId> {
        (self.len > 0).then(|| self.chunks[0][self.head])
    }

    pub(super) fn pop(&mut self) -> Option<BlockId> {
        if self.len == 0 {
            return None;
        }
        let block = self.chunks[0][self.head];
        self.head += 1;
        self.len -= 1;
        self.pages -= block.pages() as u64;
        if self.head == CHUNK {
            self.head = 0;
            if let Some(chunk) = self.chunks.pop_front() {
                if self.spares.len() < SPARES {
                    self.spares.push(chunk);
                }
            }
        }
        Some(block)
    }

    /// Keeps the newest entry of each block that `keep` accepts and that is not in `seen` yet.
    /// Preserves the order.
    pub(super) fn retain(
        &mut self,
        seen: &mut FxHashSet<BlockId>,
        keep: &mut dyn FnMut(BlockId) -> bool,
    ) {
        let newest_first =
            (self.head..self.head + self.len).rev().map(|at| self.chunks[at / CHUNK][at % CHUNK]);
        let kept: Vec<BlockId> = newest_first
            .filter(|&block| !seen.contains(&block) && keep(block) && seen.insert(block))
            .collect();
        *self = Queue::default();
        for &block in kept.iter().rev() {
            self.push(block);
        }
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        (self.chunks.len() + self.spares.len()) * CHUNK * size_of::<BlockId>()
            + (self.chunks.capacity() + self.spares.capacity()) * size_of::<usize>()
    }
}

/// The share `numerator / 256` of `pages`.
pub(super) fn share(pages: u64, numerator: u8) -> u64 {
    pages * u64::from(numerator) / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_in_insertion_order() {
        let mut queue = Queue::default();
        let blocks: Vec<BlockId> =
            (0..2000).map(|i| BlockId::new(i * 512, (i % 10) as u8)).collect();
        blocks.iter().for_each(|&block| queue.push(block));
        assert_eq!(queue.pages(), blocks.iter().map(|block| block.pages() as u64).sum::<u64>());
        let out: Vec<BlockId> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(out, blocks);
        assert_eq!((queue.len(), queue.pages()), (0, 0));
    }

    #[test]
    fn steady_turnover_does_not_grow_the_queue() {
        let mut queue = Queue::default();
        (0..1000).for_each(|page| queue.push(BlockId::new(page, 0)));
        let before = queue.metadata_bytes();
        for page in 1000..1_000_000 {
            queue.push(BlockId::new(page, 0));
            assert_eq!(queue.pop(), Some(BlockId::new(page - 1000, 0)));
        }
        assert!(
            queue.metadata_bytes() <= before + 3 * 4096 + 64,
            "{} after {before}",
            queue.metadata_bytes()
        );
    }

    #[test]
    fn retain_keeps_newest_entry_per_block_in_order() {
        let mut queue = Queue::default();
        [1, 2, 3, 1, 4, 2].iter().for_each(|&page| queue.push(BlockId::new(page, 0)));
        queue.retain(&mut FxHashSet::default(), &mut |block| block.page() != 4);
        let out: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(BlockId::page).collect();
        assert_eq!(out, [3, 1, 2]);
    }
}
