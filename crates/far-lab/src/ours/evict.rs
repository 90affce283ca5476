//! How memory is made free: `evict.rs`, `stage.rs` and `room.rs` of the pager.

use hiroma_policy::Mode;
use hiroma_policy::granularity::JUDGED_STAGINGS;
use hiroma_units::BlockId;

use super::{CAME, DIRTY, EXTENT, FAR, Ours, USED};

/// As in the pager, with bytes converted to pages.
const BATCH: usize = 8;
const TRIES: usize = 4;
const TRIMS_MAX: usize = 256;
/// Pages; the pager counts rows of blocks, while its evictor takes from them meanwhile.
const BURST: u64 = 64;
const STAGED_RUN_MAX: u64 = 16;
const CLEAN_BATCH: u64 = 32;
const SMALL_IN_A_ROW: u32 = 512;
const MIB: u64 = 256;

impl Ours<'_> {
    pub(super) fn local(&self) -> u64 {
        self.resident + self.staged
    }

    pub(super) fn reserve(&self) -> i64 {
        self.room as i64 - self.local() as i64 + self.clean_pages as i64
    }

    pub(super) fn reserve_target(&self) -> u64 {
        let usual = if self.small_since_huge < SMALL_IN_A_ROW {
            (self.room / 40).clamp((2 * EXTENT).min(self.room / 8), 64 * MIB)
        } else {
            (self.room / 128).clamp(64, 16 * MIB)
        };
        usual.max(self.wanted)
    }

    fn stage_target(&self) -> u64 {
        if self.replacement.gives_second_chances() {
            self.staging.target_bytes((self.room << 12) as usize) as u64 >> 12
        } else {
            self.reserve_target()
        }
    }

    /// Makes room for `pages` pages by what can leave immediately.
    pub(super) fn make_room(&mut self, pages: u64) -> bool {
        while self.local() + pages > self.room {
            if !self.drop_some_clean() {
                return false;
            }
        }
        true
    }

    /// A block of this size comes.
    pub(super) fn note_size(&mut self, block: BlockId) {
        self.small_since_huge =
            if block.is_huge() { 0 } else { self.small_since_huge.saturating_add(1) };
    }

    /// Makes room for a block that is being mapped.
    pub(super) fn take_room(&mut self, block: BlockId) -> bool {
        self.note_size(block);
        let pages = block.pages() as u64;
        self.keeping_mode(block, |ours| {
            while !ours.make_room(pages) {
                ours.wanted = pages;
                ours.evictor();
                ours.wanted = 0;
                if !ours.drop_some_clean() {
                    break;
                }
            }
        });
        self.local() + pages <= self.room
    }

    pub(super) fn drop_some_clean(&mut self) -> bool {
        let before = self.clean_pages;
        while before - self.clean_pages < CLEAN_BATCH && self.drop_clean() {}
        before > self.clean_pages
    }

    fn drop_clean(&mut self) -> bool {
        while let Some((block, stamp)) = self.clean.pop_front() {
            if !self.blocks.get(&block).is_some_and(|entry| entry.stamp == stamp && entry.clean) {
                continue;
            }
            let Some(entry) = self.leave(block) else { continue };
            if entry.prefetched {
                self.prefetcher.wasted(block.page());
            }
            let mut dropped = 0;
            for page in Self::pages(block) {
                self.count_wasted(page);
                let flags = &mut self.flags[page];
                let has_content = *flags & (FAR | USED) != 0;
                dropped += u64::from(has_content);
                self.outcome.zeros_wasted += u64::from(!has_content);
                *flags &= !(CAME | USED);
            }
            // Written pages were accounted for with their write.
            self.outcome.leave(self.costs, 0, dropped);
            self.gone_away(block);
            return true;
        }
        false
    }

    fn gone_away(&mut self, block: BlockId) {
        let number = block.extent_no().0 as usize;
        if block.is_huge() && self.options.fixed.is_none() {
            let far = (self.count(block, FAR) >> self.order) as u16;
            let extent = &mut self.extents[number];
            let region = self.regions.entry(self.trace.regions[number]).or_default();
            self.granularity.on_huge_evicted(
                &mut extent.history,
                region,
                extent.born_fresh,
                far,
                extent.rescues,
            );
        }
        self.settle(number);
    }

    fn next_victim(&mut self) -> Option<BlockId> {
        loop {
            if self.victims.is_empty() {
                self.replacement.next_victims(&mut self.victims);
            }
            let block = self.victims.pop()?;
            if self.is_resident(block) {
                return Some(block);
            }
        }
    }

    fn trim_staged(&mut self) {
        if self.replacement.gives_second_chances() {
            let target = self.stage_target();
            let mut trims = 0..TRIMS_MAX;
            while self.staged > target && trims.next().is_some() && self.drop_clean() {}
        }
    }

    /// The fault thread moves several victims; the evictor compares and writes them.
    pub(super) fn evict_here(&mut self) {
        self.trim_staged();
        let target = self.reserve_target() as i64;
        if self.reserve() >= target {
            return;
        }
        let mut moved = false;
        let before = self.staged;
        while self.staged < before + BURST {
            let to_come = self.reserve() + (self.staged - self.clean_pages) as i64;
            if to_come >= 2 * target && self.staged >= self.stage_target() {
                break;
            }
            let Some(block) = self.next_victim() else { break };
            self.stage_with_next(block);
            moved = true;
        }
        if moved {
            self.evictor();
        }
    }

    fn is_left_to_fault_thread(&self) -> bool {
        self.is_quiet() && self.wanted == 0 && self.local() <= self.room
    }

    pub(super) fn mind_reserve(&mut self) {
        let enough =
            if self.is_quiet() { self.reserve_target() / 2 } else { self.reserve_target() };
        if self.reserve() < enough as i64 {
            self.evictor();
        }
    }

    /// The evictor, until it has nothing more to do.
    fn evictor(&mut self) {
        loop {
            let mut moved = self.stage_victims();
            self.trim_staged();
            while self.local() > self.room && self.drop_clean() {
                moved = true;
            }
            for _ in 0..BATCH {
                if self.reserve() >= (2 * self.reserve_target()) as i64 {
                    break;
                }
                let Some((block, stamp)) = self.probation.pop_front() else { break };
                moved = true;
                if self.awaits_write(block, stamp) {
                    self.write(block);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn stage_victims(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..TRIES {
            let to_come = self.reserve() + (self.staged - self.clean_pages) as i64;
            let is_left = self.is_left_to_fault_thread();
            let enough =
                if is_left { self.reserve_target() / 4 } else { 2 * self.reserve_target() };
            let nearly_full = self.reserve() < 2 * self.reserve_target() as i64;
            if !(to_come < enough as i64
                || nearly_full && !is_left && self.staged < self.stage_target())
            {
                break;
            }
            let Some(block) = self.next_victim() else { break };
            self.stage_with_next(block);
            moved = true;
        }
        moved
    }

    fn awaits_write(&self, block: BlockId, stamp: u32) -> bool {
        self.blocks.get(&block).is_some_and(|entry| entry.stamp == stamp && !entry.clean)
    }

    /// Writes back what differs; if that is much, the whole block.
    fn write(&mut self, block: BlockId) {
        let sector = 1usize << self.order;
        let all = block.pages() > 1
            && self.options.fixed.is_none()
            && self.count(block, DIRTY) * 4 > block.pages() as u64;
        let mut written = 0;
        for flags in self.flags[Self::pages(block)].chunks_mut(sector) {
            let dirty = flags.iter().any(|&flags| flags & DIRTY != 0);
            let content = flags.iter().any(|&flags| flags & (DIRTY | FAR) != 0);
            if dirty || all && content {
                written += sector as u64;
                flags.iter_mut().for_each(|flags| *flags = *flags & !DIRTY | FAR);
            }
        }
        self.outcome.leave(self.costs, written, 0);
        self.mark_clean(block);
    }

    /// Stages a victim and those right behind it that are next.
    fn stage_with_next(&mut self, block: BlockId) {
        self.stage(block);
        for at in 1..STAGED_RUN_MAX {
            if block.order() != 0 || self.victims.is_empty() {
                return;
            }
            let Some(next) = self.next_victim() else { return };
            let is_behind = next.order() == 0
                && next.page() == block.page() + at
                && next.extent_no() == block.extent_no();
            if !is_behind {
                self.victims.push(next);
                return;
            }
            self.stage(next);
        }
    }

    fn stage(&mut self, block: BlockId) {
        let number = block.extent_no().0 as usize;
        if block.is_huge() && self.options.fixed.is_none() {
            let extent = &mut self.extents[number];
            let region = self.regions.entry(self.trace.regions[number]).or_default();
            let used = self.replacement.used_pages(block);
            if self.granularity.breaks_up(&mut extent.history, region, extent.rescues, used) {
                self.break_up(block);
                let extent = &mut self.extents[number];
                (extent.rescues, extent.broken_stagings) = (0, 1);
                return;
            }
        }
        self.set_resident(block, false);
        self.staged_since += block.pages() as u64;
        let stamp = self.enter(block, false);
        self.probation.push_back((block, stamp));
        self.judge_broken(number);
    }

    fn break_up(&mut self, block: BlockId) {
        self.set_resident(block, false);
        self.extent(block).mode = Some(Mode::Small);
        self.admit_pieces(block);
    }

    fn judge_broken(&mut self, number: usize) {
        let extent = &mut self.extents[number];
        if extent.broken_stagings == 0 {
            return;
        }
        extent.broken_stagings += 1;
        if extent.broken_stagings <= JUDGED_STAGINGS {
            return;
        }
        extent.broken_stagings = 0;
        let region = self.regions.entry(self.trace.regions[number]).or_default();
        self.granularity.on_broken_judged(region, extent.rescues);
    }
}
