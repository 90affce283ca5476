//! A queue of blocks: four bytes an entry, in chunks of 4 KiB, so that it never moves its content to grow and gives memory back.
//! When entries came is kept for runs of them, as one mark for each tick of the owner's clock in which any came.

use std::collections::VecDeque;

use hiroma_units::BlockId;
use rustc_hash::FxHashSet;

const CHUNK: usize = 1024;
/// Emptied chunks that are kept: a queue that turns over in steady state does not allocate.
const SPARES: usize = 2;

/// The tick in which the entries from `first` (counted since the queue was made) to the next mark came.
struct Mark {
    first: u64,
    tick: u32,
}

/// First in, first out; knows how many bytes its blocks have, and when the oldest came.
#[derive(Default)]
pub(super) struct Queue {
    chunks: VecDeque<Box<[BlockId; CHUNK]>>,
    spares: Vec<Box<[BlockId; CHUNK]>>,
    head: usize,
    len: usize,
    pages: u64,
    /// Entries that have left.
    popped: u64,
    marks: VecDeque<Mark>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Pages of all blocks in the queue.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// The tick in which the oldest entry came.
    pub(super) fn oldest_tick(&self) -> Option<u32> {
        self.marks.front().map(|mark| mark.tick)
    }

    /// Appends an entry that came in the tick `tick`.
    pub(super) fn push(&mut self, block: BlockId, tick: u32) {
        if self.marks.back().is_none_or(|mark| mark.tick != tick) {
            self.marks.push_back(Mark { first: self.popped + self.len as u64, tick });
        }
        let at = self.head + self.len;
        if at == self.chunks.len() * CHUNK {
            let chunk = self.spares.pop().unwrap_or_else(|| Box::new([BlockId::new(0, 0); CHUNK]));
            self.chunks.push_back(chunk);
        }
        self.chunks[at / CHUNK][at % CHUNK] = block;
        self.len += 1;
        self.pages += block.pages() as u64;
    }

    pub(super) fn pop(&mut self) -> Option<BlockId> {
        if self.len == 0 {
            return None;
        }
        let block = self.chunks[0][self.head];
        self.head += 1;
        self.len -= 1;
        self.popped += 1;
        self.pages -= block.pages() as u64;
        let next_mark = self.marks.get(1).map_or(u64::MAX, |mark| mark.first);
        if self.len == 0 || self.popped >= next_mark {
            self.marks.pop_front();
        }
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

    /// Keeps the newest entry of each block that `keep` wants and that is not in `seen` yet. Order stays.
    pub(super) fn retain(&mut self, seen: &mut FxHashSet<BlockId>, keep: &mut dyn FnMut(BlockId) -> bool) {
        let entries = std::mem::take(self).into_entries();
        let newest_first = entries.iter().rev();
        let kept: Vec<_> = newest_first.filter(|(block, _)| !seen.contains(block) && keep(*block) && seen.insert(*block)).collect();
        for &&(block, tick) in kept.iter().rev() {
            self.push(block, tick);
        }
    }

    /// Entries with their ticks, oldest first.
    fn into_entries(mut self) -> Vec<(BlockId, u32)> {
        let mut entries = Vec::with_capacity(self.len);
        while let Some(tick) = self.oldest_tick() {
            entries.extend(self.pop().map(|block| (block, tick)));
        }
        entries
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        (self.chunks.len() + self.spares.len()) * CHUNK * size_of::<BlockId>()
            + (self.chunks.capacity() + self.spares.capacity()) * size_of::<usize>()
            + self.marks.capacity() * size_of::<Mark>()
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
    fn blocks_come_out_as_they_went_in() {
        let mut queue = Queue::default();
        let blocks: Vec<BlockId> = (0..2000).map(|i| BlockId::new(i * 512, (i % 10) as u8)).collect();
        blocks.iter().for_each(|&block| queue.push(block, 0));
        assert_eq!(queue.pages(), blocks.iter().map(|block| block.pages() as u64).sum::<u64>());
        let out: Vec<BlockId> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(out, blocks);
        assert_eq!((queue.len(), queue.pages()), (0, 0));
    }

    #[test]
    fn a_queue_that_turns_over_does_not_grow() {
        let mut queue = Queue::default();
        (0..1000).for_each(|page| queue.push(BlockId::new(page, 0), 0));
        let before = queue.metadata_bytes();
        for page in 1000..1_000_000 {
            queue.push(BlockId::new(page, 0), page as u32 / 8);
            assert_eq!(queue.pop(), Some(BlockId::new(page - 1000, 0)));
        }
        assert!(queue.metadata_bytes() <= before + 4 * 4096 + 64, "{} after {before}", queue.metadata_bytes());
    }

    #[test]
    fn retaining_keeps_the_newest_entry_of_each_wanted_block_in_order() {
        let mut queue = Queue::default();
        [1, 2, 3, 1, 4, 2].iter().for_each(|&page| queue.push(BlockId::new(page, 0), 0));
        queue.retain(&mut FxHashSet::default(), &mut |block| block.page() != 4);
        let out: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(BlockId::page).collect();
        assert_eq!(out, [3, 1, 2]);
    }

    #[test]
    fn the_oldest_tick_is_that_of_the_next_entry_also_after_retaining() {
        let mut queue = Queue::default();
        let entries = [(1, 5), (2, 5), (3, 7), (1, 7), (4, 9)];
        entries.iter().for_each(|&(page, tick)| queue.push(BlockId::new(page, 0), tick));
        let ticks = |queue: &mut Queue| -> Vec<_> { std::iter::from_fn(|| queue.oldest_tick().zip(queue.pop())).collect() };
        queue.retain(&mut FxHashSet::default(), &mut |block| block.page() != 3);
        assert_eq!(ticks(&mut queue), [(5, 2), (7, 1), (9, 4)].map(|(tick, page)| (tick, BlockId::new(page, 0))));
        assert_eq!(queue.oldest_tick(), None);
        queue.push(BlockId::new(6, 0), 11);
        assert_eq!(ticks(&mut queue), [(11, BlockId::new(6, 0))]);
    }
}
