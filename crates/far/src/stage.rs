//! Evicts blocks from the program: victims are moved into frames and stay there (*staged*) until
//! they are touched or written back.

use hiroma_policy::granularity::JUDGED_STAGINGS;
use hiroma_sys::lock::Lock;
use hiroma_sys::vm;
use hiroma_units::{BlockId, EXTENT, PAGE};

use crate::canary;
use crate::content;
use crate::control::Counter;
use crate::core::{Block, Core, Phase};
use crate::extent::{Copy, Mode, flag};
use crate::frames::Frame;
use crate::live::Path;
use crate::mover::TakeOut;

/// Maximum of victims tried for each call of `stage_victims`, and of victims that cannot be
/// evicted.
const TRIES: usize = 4;
const HELD_MAX: usize = 256;
/// Maximum of blocks that leave in one move.
const STAGED_RUN_MAX: usize = 16;
/// Maximum of blocks dropped in one go because too much is staged.
const TRIMS_MAX: usize = 256;
/// Number of blocks that the fault thread stages and compares in one go, and of differing ones that
/// it collects before it wakes the evictor.
pub const HERE_MAX: usize = 3;
/// Number of victims that the fault thread moves in one go while the evictor sleeps.
const BURST: usize = 64;
const DIFFERING_MAX: usize = 64;

impl Core {
    /// Stages victims until enough is staged, or until enough memory is available or soon will be.
    pub fn stage_victims(&mut self, lock: &Lock<Core>) -> bool {
        let mut moved = false;
        let (mut tries, mut held) = (0, 0);
        while tries < TRIES && held < HELD_MAX {
            if moved && lock.is_wanted() {
                break;
            }
            let to_come = self.reserve() + (self.staged_bytes - self.clean_bytes) as isize;
            let is_left = self.is_left_to_fault_thread();
            let enough = if !is_left {
                2 * self.reserve_target()
            } else if self.live.yielding.has_several() {
                // One fault thread has not the time to move what several threads need.
                self.reserve_target() / 4
            } else {
                0
            };
            let scarce = to_come < enough as isize;
            let nearly_full = self.reserve() < (2 * self.reserve_target()) as isize;
            if !(scarce
                || nearly_full && !is_left && self.staged_bytes < self.stage_target()
                || self.evict_everything)
            {
                break;
            }
            let Some(block) = self.next_victim() else { break };
            let waiting_bytes = self.coming.waiting_bytes();
            let staged = self.stage_with_next(block);
            moved |= staged;
            let holds = self.held.contains(&block) || self.coming.waiting_bytes() > waiting_bytes;
            (tries, held) = (tries + usize::from(!holds), held + usize::from(holds));
        }
        if moved || held > 0 {
            self.publish();
        }
        // There are more victims behind those that cannot be evicted now.
        self.put_off |= held >= HELD_MAX;
        moved
    }

    /// The next resident block that the policy gives up. Blocks that are no longer resident may
    /// still be on the policy's lists, thousands in a row.
    fn next_victim(&mut self) -> Option<BlockId> {
        loop {
            if self.victims.is_empty() {
                self.replacement.next_victims(&mut self.victims);
            }
            let block = self.victims.pop()?;
            // Canary "stale entries": a block that is not resident is taken all the same.
            if self.is_resident(block) && !self.held.contains(&block)
                || canary::is_broken("stale entries")
            {
                return Some(block);
            }
        }
    }

    /// Drops clean staged blocks beyond the staging target: free room is available as quickly, and
    /// needs no faults to detect accesses.
    pub fn trim_staged(&mut self) {
        if self.replacement.gives_second_chances() {
            let target = self.stage_target();
            let mut trims = 0..TRIMS_MAX;
            while self.staged_bytes > target && trims.next().is_some() && self.drop_clean() {}
        }
    }

    /// Moves several victims in the fault thread while it is yielding and the evictor sleeps, and
    /// wakes the evictor for them. The fault thread runs on the processor of the program's only busy
    /// thread, so no other processor is interrupted for the pages that move. While the evictor runs,
    /// it would be: then it is done only if little is left, because a page that the evictor moves
    /// costs twice as much, and the fault thread waits for its lock meanwhile.
    pub fn stage_burst(&mut self) {
        let target = self.reserve_target() as isize;
        let enough = match self.live.yielding.does_evictor_run() {
            false => target,
            true if self.live.yielding.has_several() => return,
            true => target / 4,
        };
        if self.quiesce || self.reserve() >= enough {
            return;
        }
        let mut moved = false;
        for _ in 0..BURST {
            let to_come = self.reserve() + (self.staged_bytes - self.clean_bytes) as isize;
            if to_come >= 2 * target && self.staged_bytes >= self.stage_target() {
                break;
            }
            let Some(block) = self.next_victim() else { break };
            moved |= self.stage_with_next(block);
        }
        if moved {
            self.publish();
            self.live.evict_bell.ring();
        }
    }

    /// Whether the evictor does not keep up with what the fault thread moves.
    pub fn is_evictor_behind(&self) -> bool {
        self.live.yielding.is_crowd() || self.reserve() < (self.reserve_target() / 16) as isize
    }

    /// Does the evictor's work on small blocks in the fault thread while it is yielding. Returns
    /// false if enough is available; at most [`HERE_MAX`] calls in a row.
    pub fn stage_here(&mut self) -> bool {
        // While the evictor runs, each page that is moved interrupts its processor.
        let quarters = if self.live.yielding.does_evictor_run() { 3 } else { 6 };
        let enough = (self.reserve_target() * quarters / 4) as isize;
        if self.quiesce || self.reserve() >= enough {
            return false;
        }
        let to_come = self.reserve() + (self.staged_bytes - self.clean_bytes) as isize;
        if to_come < 2 * enough || self.staged_bytes < self.stage_target() {
            if let Some(block) = self.next_victim() {
                self.stage_with_next(block);
            }
        }
        true
    }

    /// Compares a staged block; one that must be written is left to the evictor.
    pub fn compare_here(&mut self) {
        while let Some((block, stamp)) = self.probation.pop_front() {
            if self.awaiting_write(block, stamp).is_none() {
                continue;
            }
            if !block.is_huge() && !self.promotes(block) && self.is_unchanged(block) {
                self.note_compared(block, false);
                self.mark_clean(block);
            } else {
                self.differing.push_back((block, stamp));
                if self.differing.len() >= DIFFERING_MAX || block.is_huge() {
                    self.live.evict_bell.ring();
                }
            }
            return;
        }
    }

    /// Whether victims are moved by the fault thread, as long as it keeps up: it interrupts fewer
    /// processors than the evictor.
    fn is_left_to_fault_thread(&self) -> bool {
        self.live.yielding.is_on()
            && self.wanted_bytes == 0
            && !self.evict_everything
            && self.local() <= self.room()
    }

    /// A staged block that has not yet been compared with its far copy.
    pub fn awaiting_write(&mut self, block: BlockId, stamp: u32) -> Option<&mut Block> {
        self.blocks
            .get_mut(&block)
            .filter(|entry| entry.stamp == stamp && entry.phase == Phase::Staged && !entry.clean)
    }

    /// Whether a staged block is identical to its far copy.
    fn is_unchanged(&self, block: BlockId) -> bool {
        let buf = vm::lend(self.frames.addr(self.blocks[&block].frame), block.bytes());
        let (first, count) = self.sector_range(block);
        let extent = self.extent(block);
        buf.bytes().chunks_exact(block.bytes() / count).enumerate().all(|(at, bytes)| match extent
            .copy(first + at)
        {
            Copy::Stored { sum, .. } => content::checksum_cold(&self.key, bytes) == sum,
            Copy::Pattern(word) => content::repeated_word(bytes) == Some(word),
            Copy::None => false,
        })
    }

    /// Stages a victim, together with the next victims if they lie behind it: one move of many pages
    /// interrupts the other processors once. Returns false if the victim stays mapped or has become
    /// unmapped.
    fn stage_with_next(&mut self, block: BlockId) -> bool {
        let may_be_more = block.order() == 0 && self.live.path == Path::Full;
        let count = if may_be_more { self.count_in_row(block) } else { 1 };
        if count == 1 {
            return self.stage(block);
        }
        let staged = self.stage_run(block, count);
        // What did not move is tried alone, for the reason.
        (staged..count).fold(staged > 0, |any, at| {
            let block = BlockId::new(block.page() + at as u64, block.order());
            any | self.stage(block)
        })
    }

    /// How many of the next victims lie behind `block` in a row, which is included. They are taken.
    fn count_in_row(&mut self, block: BlockId) -> usize {
        let mut count = 1;
        while count < STAGED_RUN_MAX && !self.victims.is_empty() {
            let Some(next) = self.next_victim() else { break };
            let is_behind = next.order() == block.order()
                && next.page() == block.page() + count as u64
                && next.extent_no() == block.extent_no();
            if !is_behind {
                self.victims.push(next);
                break;
            }
            count += 1;
        }
        count
    }

    /// Moves `count` small blocks from `block` on into frames by one call. Returns how many moved.
    fn stage_run(&mut self, block: BlockId, count: usize) -> usize {
        let (addr, len) = (self.addr(block), count * PAGE);
        let blocks = (0..count).map(|at| BlockId::new(block.page() + at as u64, block.order()));
        if self.coming.touches(addr, addr + len)
            || self.addresses.holds(addr, addr + len)
            || self.has_unsettled(addr, len)
            || blocks.clone().any(|block| self.blocks.contains_key(&block))
        {
            return 0;
        }
        let Some(frame) = self.frames.take_empty_run(block.order(), count) else { return 0 };
        self.recorder.note("move_out run", block.page(), self.frames.addr(frame), count);
        let moved = self.move_pages_out(self.frames.addr(frame), addr, len).done / PAGE;
        for (at, block) in blocks.enumerate() {
            if at >= moved {
                self.frames.put_empty(frame.at(at));
                continue;
            }
            self.frames.moved_in(frame.at(at));
            self.has_moved_out(block, frame.at(at));
        }
        moved
    }

    /// A block is in a frame now instead of the program.
    fn has_moved_out(&mut self, block: BlockId, frame: Frame) {
        let addr = self.addr(block);
        if self.extent(block).has(flag::HOLES) {
            // A page that was freed lazily (MADV_FREE) and not written since could be dropped in
            // its frame too.
            vm::touch(self.frames.addr(frame), block.bytes());
            self.coming.renew(addr, addr + block.bytes());
        }
        self.set_resident(block, false);
        self.accessed.staged(block.pages());
        let stamp = self.enter(block, frame, Phase::Staged);
        self.probation.push_back((block, stamp));
        self.judge_broken(block);
    }

    /// Moves one block out of the program into a frame. Returns false if it stays mapped or has
    /// become unmapped.
    pub fn stage(&mut self, block: BlockId) -> bool {
        let addr = self.addr(block);
        if self.blocks.contains_key(&block) {
            self.replacement.put_back(block);
            return false;
        }
        let end = addr + block.bytes();
        if self.coming.touches(addr, end) {
            return self.is_gone_for_kernel(block);
        }
        if self.addresses.holds(addr, end) {
            // One locked page is no reason to hold 2 MiB.
            if self.is_divisible(block) && !self.addresses.holds_all(addr, end) {
                self.break_up(block, flag::PAGE_TABLE);
                return true;
            }
            self.hold(block);
            return false;
        }
        if block.is_huge() && self.fixed.is_none() {
            let region = self.region_of(addr);
            let used_pages = self.replacement.used_pages(block);
            let extent = &mut self.extents[block.extent_no().0 as usize];
            if self.granularity.breaks_up(
                &mut extent.history,
                self.regions.entry(region).or_default(),
                extent.rescues,
                used_pages,
            ) {
                self.break_up(block, flag::PAGE_TABLE);
                let extent = self.extent_mut(block);
                (extent.rescues, extent.broken_stagings) = (0, 1);
                return true;
            }
        }
        let Some(frame) = self.frames.take_empty(block.order()) else {
            self.replacement.put_back(block);
            return false;
        };
        match self.take_out(block, frame) {
            TakeOut::Done => {
                self.has_moved_out(block, frame);
                return true;
            }
            TakeOut::Unmovable => self.hold(block),
            TakeOut::Mixed if self.is_divisible(block) => self.break_up(block, flag::MIXED),
            TakeOut::Mixed => self.hold(block),
            TakeOut::Later => {
                self.put_off = true;
                self.replacement.put_back(block);
            }
            TakeOut::Gone => {
                self.set_resident(block, false);
                self.settle(block.extent_no().0 as usize);
            }
        }
        self.frames.put_empty(frame);
        false
    }

    /// Whether a block consists of smaller ones.
    fn is_divisible(&self, block: BlockId) -> bool {
        block.order() > self.sector_order
    }

    /// A resident block that can no longer move as one, or should not: its sectors move one by one.
    /// `why` is the flag that is set as the reason for an extent.
    pub fn break_up(&mut self, block: BlockId, why: u8) {
        if !block.is_huge() {
            return self.break_cluster(block);
        }
        let number = block.extent_no().0 as usize;
        self.set_resident(block, false);
        let extent = &mut self.extents[number];
        extent.mode = Mode::Small;
        extent.set(why, true);
        self.count(Counter::ModeChanges, 1);
        self.admit_pieces(block);
    }

    /// A piece was staged. For an extent that was broken up, the number of its first pieces that
    /// were touched meanwhile shows whether breaking it up was worthwhile.
    fn judge_broken(&mut self, block: BlockId) {
        let extent = self.extent_mut(block);
        if extent.broken_stagings == 0 {
            return;
        }
        extent.broken_stagings += 1;
        if extent.broken_stagings <= JUDGED_STAGINGS {
            return;
        }
        extent.broken_stagings = 0;
        let rescues = extent.rescues;
        let region = self.region_of(self.addr(block));
        self.granularity.on_broken_judged(self.regions.entry(region).or_default(), rescues);
    }

    /// Prepares a zeroed frame for the next first touch while there is nothing else to do.
    pub fn zero_frame_ahead(&mut self) -> bool {
        if self.fresh_demand == 0
            || self.live.path != Path::Full
            || self.frames.zeroed_extents() >= 4
        {
            self.fresh_demand = 0;
            return false;
        }
        if self.room() < self.local() + 4 * EXTENT + self.reserve_target() {
            return false;
        }
        self.fresh_demand -= 1;
        let Some(frame) = self.frames.take_empty(9) else { return false };
        self.frames.gained(frame);
        vm::zero(self.frames.addr(frame), PAGE);
        self.frames.put_zeroed(frame);
        self.publish();
        true
    }
}
