//! Keeps the most recently evicted blocks in compressed memory, and moves those that have been
//! there longest to the store behind it (*demotes* them).
//!
//! The blocks that are evicted when memory first runs short are those that the program uses least.
//! Without demotion they would stay in compressed memory forever, and the blocks that are used
//! repeatedly would be fetched from the store behind.

use std::collections::VecDeque;

use hiroma_units::BlockId;
use rustc_hash::FxHashMap;

use crate::core::{Ahead, Core};
use crate::extent::Copy;
use crate::store::Store;

/// Blocks in transit at a time.
const BLOCKS_MAX: usize = 64;
/// Minimum number of entries that are kept.
const KEPT_MIN: usize = 1024;
/// Stale entries of the queue are removed when there are this many times more of them than of
/// others.
const STALE_FACTOR: usize = 2;

/// Blocks in compressed memory in the order in which they were evicted.
#[derive(Clone, Debug, Default)]
pub struct Departures {
    queue: VecDeque<(BlockId, u32)>,
    /// The number of each block's valid entry.
    latest: FxHashMap<BlockId, u32>,
    number: u32,
    /// Compressed memory within the limit has another store behind it.
    has_tiers: bool,
}

impl Departures {
    /// For an empty store.
    pub fn new(store: &dyn Store) -> Departures {
        Departures { has_tiers: store.takes_near(), ..Departures::default() }
    }

    /// A block has been evicted.
    pub fn left(&mut self, block: BlockId) {
        self.number = self.number.wrapping_add(1);
        self.queue.push_back((block, self.number));
        self.latest.insert(block, self.number);
        if self.queue.len() > STALE_FACTOR * self.latest.len() + BLOCKS_MAX {
            let latest = &self.latest;
            self.queue.retain(|(block, number)| latest.get(block) == Some(number));
        }
    }

    /// Takes the block that was evicted first.
    pub fn take_oldest(&mut self) -> Option<BlockId> {
        while let Some((block, number)) = self.queue.pop_front() {
            if self.latest.get(&block) == Some(&number) {
                self.latest.remove(&block);
                return Some(block);
            }
        }
        None
    }

    /// Keeps only blocks that are in compressed memory.
    fn keep(&mut self, is_near: impl Fn(BlockId) -> bool) {
        self.latest.retain(|&block, _| is_near(block));
        let latest = &self.latest;
        self.queue.retain(|(block, number)| latest.get(block) == Some(number));
        self.queue.shrink_to_fit();
        self.latest.shrink_to_fit();
    }

    /// Bytes of its tables.
    pub fn metadata_bytes(&self) -> usize {
        self.queue.capacity() * size_of::<(BlockId, u32)>()
            + self.latest.capacity() * (size_of::<(BlockId, u32)>() + 1)
    }
}

impl Core {
    /// A block has been evicted; its copy in compressed memory becomes the last to be demoted.
    pub fn note_departure(&mut self, block: BlockId) {
        if self.departures.has_tiers && self.is_near(block) {
            self.departures.left(block);
        }
    }

    fn is_near(&self, block: BlockId) -> bool {
        let (first, count) = self.sector_range(block);
        let is_near =
            |copy| matches!(copy, Copy::Stored { loc, .. } if self.store.is_within_limit(loc));
        (first..first + count).any(|sector| is_near(self.extent(block).copy(sector)))
    }

    /// Removes the entries of discarded blocks, if there are many. `near_bytes`: content of
    /// compressed memory.
    pub fn tend_departures(&mut self, near_bytes: u64) {
        let most = 2 * (near_bytes as usize / self.sector_bytes()) + KEPT_MIN;
        if self.departures.latest.len() > most {
            let mut departures = std::mem::take(&mut self.departures);
            departures.keep(|block| self.is_near(block));
            self.departures = departures;
        }
    }

    /// Requests some of the blocks that have been in compressed memory longest, if that is full.
    /// Returns false if there is nothing to do now.
    pub fn demote_some(&mut self) -> bool {
        if !self.sharing.demotes()
            || self.is_draining()
            || self.drain.is_refused()
            || self.store.takes_near()
        {
            return false;
        }
        if !self.may_move_behind() {
            return false;
        }
        while self.fetch_queue.len() < BLOCKS_MAX {
            let Some(block) = self.departures.take_oldest() else { break };
            self.demote(block);
        }
        if self.fetch_queue.is_empty() {
            return false;
        }
        self.live.fetch_bell.ring();
        true
    }

    /// Moves the sectors of a block that are in compressed memory to the store behind; frees the
    /// copies of resident ones.
    fn demote(&mut self, block: BlockId) {
        let extent = block.extent_no().0 as usize;
        let (first, count) = self.sector_range(block);
        let mut freed = Vec::new();
        for sector in first..first + count {
            let Copy::Stored { loc, .. } = self.extents[extent].copy(sector) else { continue };
            if self.store.is_within_limit(loc) {
                self.move_behind(extent, sector, &mut freed);
            }
        }
        self.store.free(&freed);
    }

    /// Drops the queued prefetch requests; blocks that were to be demoted remain so.
    pub fn forget_ahead(&mut self) {
        while let Some(Ahead { block, drains, .. }) = self.fetch_queue.pop_front() {
            if drains {
                self.note_departure(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_age_counts_from_last_eviction() {
        let block = |page| BlockId::new(page, 0);
        let mut departures = Departures::default();
        [1, 2, 1, 3].into_iter().for_each(|page| departures.left(block(page)));
        let order: Vec<_> = std::iter::from_fn(|| departures.take_oldest()).collect();
        assert_eq!(order, [2, 1, 3].map(block));
    }

    #[test]
    fn repeated_evictions_use_bounded_memory() {
        let mut departures = Departures::default();
        (0..100_000).for_each(|time| departures.left(BlockId::new(time % 10, 0)));
        assert!(departures.queue.len() <= 10 * STALE_FACTOR + BLOCKS_MAX);
        assert_eq!(std::iter::from_fn(|| departures.take_oldest()).count(), 10);
    }
}
