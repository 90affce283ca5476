//! Moves blocks out of compressed memory that exceeds its share, to the store behind it; and out of
//! servers that are to be emptied, or that have too few copies of them, to others or to that store.
//!
//! They take the path of every other block: fetched into a frame as if prefetched, and written as
//! if they differed from their far copy. So faults, discards and forks in between need no special
//! handling.

use hiroma_units::{BlockId, EXTENT, Loc, PAGES_PER_EXTENT};

use crate::core::{Ahead, Core};
use crate::extent::{Copy, Mode, flag};

/// Blocks in transit at a time, and extents that are scanned for them under one hold of the lock.
const BLOCKS_MAX: usize = 64;
const EXTENTS_MAX: usize = 128;

/// Progress of a drain.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    /// The next extent to scan, while there is work.
    hand: Option<usize>,
    /// Number of starts to skip, because the store behind had no room.
    pause: u32,
    /// Consecutive blocks that compressed memory did not accept.
    untaken: u32,
    /// Some block could not be read.
    has_failed: bool,
}

/// The number of starts to skip, at twenty a second.
const PAUSE: u32 = 100;

/// After this many, few blocks are offered: the program's data does not compress.
const UNTAKEN_MAX: u32 = 16;
const OFFERED_EVERY: u32 = 64;

impl Drain {
    /// A block was offered to compressed memory.
    pub fn offered(&mut self, taken: bool) {
        self.untaken = if taken { 0 } else { self.untaken.saturating_add(1) };
    }

    /// Whether the store behind recently had no room.
    pub fn is_refused(&self) -> bool {
        self.pause > 0
    }

    /// A block could not be read. Those behind it are moved first.
    pub fn failed(&mut self) {
        self.has_failed = true;
    }

    /// The store behind has no room.
    pub fn refused(&mut self) {
        (self.hand, self.pause) = (None, PAUSE);
    }
}

impl Core {
    /// Starts a drain if compressed memory exceeds its share, or servers have something to move.
    pub fn begin_drain(&mut self) {
        if self.drain.pause > 0 {
            self.drain.pause -= 1;
        } else if self.drain.hand.is_none() && self.store.begin_drain() {
            self.drain.hand = Some(0);
        }
    }

    /// Whether blocks are being moved out of their stores.
    pub fn is_draining(&self) -> bool {
        self.drain.hand.is_some()
    }

    /// Requests some more blocks. Returns false if there is nothing to do now.
    pub fn drain_some(&mut self) -> bool {
        let Some(hand) = self.drain.hand else { return false };
        if !self.may_move_behind() {
            return false;
        }
        let base = self.arena.base();
        let (mut looked_at, mut next) = (0, None);
        let mapped = self.addresses.mapped.overlaps(base + hand * EXTENT, base + self.arena.len());
        let extents = mapped
            .iter()
            .flat_map(|&(from, to)| (from - base) / EXTENT..(to - base).div_ceil(EXTENT));
        for extent in extents {
            if looked_at >= EXTENTS_MAX || self.fetch_queue.len() >= BLOCKS_MAX {
                next = Some(extent);
                break;
            }
            looked_at += 1;
            self.drain_extent(extent);
        }
        // Blocks that could not be moved this time are found the next time, if there is still too
        // much.
        let again = || (!self.fetch_queue.is_empty() && self.store.begin_drain()).then_some(0);
        let is_over = next.is_none();
        self.drain.hand = next.or_else(again);
        if is_over && std::mem::take(&mut self.drain.has_failed) {
            (self.drain.hand, self.drain.pause) = (None, PAUSE);
        }
        if !self.fetch_queue.is_empty() {
            self.live.fetch_bell.ring();
            return true;
        }
        self.drain.hand.is_some()
    }

    /// Whether a block that is being evicted is written to compressed memory although its far copy,
    /// in the store behind, may be identical: a block that was fetched from there is in use, and
    /// will be fetched again.
    pub fn promotes(&self, block: BlockId) -> bool {
        let offered = self.drain.untaken < UNTAKEN_MAX || self.stamp % OFFERED_EVERY == 0;
        // Slabs that are in use have room too: blocks are overwritten, discarded and demoted.
        let has_room = self.store.takes_near();
        if !offered || block.is_huge() || self.is_draining() || !has_room {
            return false;
        }
        matches!(self.extent(block).copy(self.sector_range(block).0), Copy::Stored { loc, .. } if self.store.is_behind(loc))
    }

    fn drain_extent(&mut self, extent: usize) {
        if self.extents[extent].far_sectors() == 0 || self.extents[extent].has(flag::RECLAIMING) {
            return;
        }
        let mut freed = Vec::new();
        for sector in 0..self.sectors() {
            let Copy::Stored { loc, .. } = self.extents[extent].copy(sector) else { continue };
            if self.store.is_to_leave(loc) {
                self.move_behind(extent, sector, &mut freed);
            }
        }
        self.store.free(&freed);
    }

    /// Whether blocks can be requested now that are to be moved to the store behind.
    pub fn may_move_behind(&self) -> bool {
        // Below that, prefetch requests are dropped: an immediate retry would keep two threads busy
        // with nothing else.
        let has_room = self.reserve() >= (self.reserve_target() / 2 + self.sector_bytes()) as isize;
        !self.quiesce && self.fetch_queue.is_empty() && has_room
    }

    /// Requests that a sector be moved from compressed memory to the store behind. `freed`:
    /// receives its location if no move is needed.
    pub fn move_behind(&mut self, extent: usize, sector: usize, freed: &mut Vec<Loc>) {
        let mode = match self.extents[extent].mode {
            Mode::Away => self.possible_mode(extent, Mode::Small),
            mode => mode,
        };
        let first = (extent * PAGES_PER_EXTENT) as u64;
        let page = first + ((sector as u64) << self.sector_order);
        let block = match mode {
            Mode::Small => self.least_block(page),
            _ => self.block_of(page, mode),
        };
        if self.blocks.contains_key(&block) {
            // It is in transit, and will be evicted again.
            return;
        }
        if self.is_resident(block) {
            // It is resident: the copy can simply be freed.
            self.set_copy(block, sector, Copy::None, freed);
        } else {
            self.fetch_queue.push_back(Ahead { block, map: false, stream: false, drains: true });
        }
    }

    /// A block that was fetched to be moved out of compressed memory is in its frame.
    pub fn drain_fetched(&mut self, block: BlockId, stamp: u32) {
        self.drained.push_back((block, stamp));
        self.live.evict_bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use hiroma_policy::sharing::BEGIN;
    use hiroma_sys::vm;
    use hiroma_units::{EXTENT, PAGE};

    use crate::config::{BlockSize, parse_stores};
    use crate::{Config, Pager};

    fn content(page: u64, index: u64) -> [u8; 8] {
        let mixed = (page << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_ne_bytes()
    }

    #[test]
    fn smaller_share_drains_compressed_memory_without_loss() {
        let stores = parse_stores("compressed,file:/dev/shm").unwrap();
        let block = BlockSize::Fixed(4096);
        let pager = Pager::start(Config {
            local_limit_bytes: 64 << 20,
            stores,
            block,
            ..Config::default()
        })
        .unwrap();
        let store = pager.core.lock().store.clone();
        let addr = pager.map(32 * EXTENT, EXTENT).unwrap();
        store.set_share(6 * BEGIN);
        let pages = || (0..32 * EXTENT / PAGE).map(|page| (page as u64, addr + page * PAGE));
        for (page, at) in pages() {
            // A quarter of it compresses badly.
            for (index, word) in vm::lend(at, PAGE / 4).bytes_mut().chunks_exact_mut(8).enumerate()
            {
                word.copy_from_slice(&content(page, index as u64));
            }
        }
        pager.evict_all().unwrap();
        let near_bytes = || store.balance().unwrap().packed_bytes;
        let before = near_bytes();
        assert!(before > 4 << 20, "{before}");

        store.set_share(1);
        let began = Instant::now();
        while near_bytes() > 3 << 20 && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(near_bytes() <= 3 << 20, "{} of {before}", near_bytes());
        for (page, at) in pages() {
            let buf = vm::lend(at, PAGE);
            let (random, rest) = buf.bytes().split_at(PAGE / 4);
            assert!(
                random
                    .chunks_exact(8)
                    .enumerate()
                    .all(|(index, word)| word == content(page, index as u64)),
                "page {page}"
            );
            assert!(rest.iter().all(|&byte| byte == 0), "page {page}");
        }
        pager.stop();
    }
}
