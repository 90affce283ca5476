//! First touches of small blocks, and touches of blocks that were evicted as zeros: several are mapped
//! at a time where they follow each other, because waking two threads costs as much as mapping a
//! hundred pages.

use hiroma_policy::Origin;
use hiroma_policy::run_ahead::Run;
use hiroma_units::BlockId;

use crate::core::Core;
use crate::extent::Copy;
use crate::live::Path;

/// As many blocks as were touched before it are mapped by a first touch, up to this number.
const RUN_MAX: usize = 64;
/// The least while what is local is less than this part of the room: what stays unused is missed by
/// nobody.
const RUNS_LEAST: [(usize, usize); 3] = [(8, 128), (4, 64), (2, 16)];

impl Core {
    /// Maps zeros for `block` and for those beside it that will probably be touched next. Returns
    /// false if the block itself was not mapped.
    pub fn map_zeros_run(&mut self, block: BlockId, origin: Origin) -> bool {
        if self.fixed.is_some()
            || block.order() != self.sector_order
            || self.live.path != Path::Full
        {
            return false;
        }
        let run = self.zero_runs.on_fault(block.page());
        let room = self.reserve().max(0) as usize / 2 / block.bytes();
        let (first, count) = self.zeros_beside(block, run, room);
        self.zero_runs.fetched(first.page(), first.page() + count as u64, count, run.down);
        if count < 2 || !self.keeping_mode(block, |core| core.make_room(count * block.bytes())) {
            return false;
        }
        let addr = self.addr(first);
        self.recorder.note("put_zeros run", first.page(), count * block.bytes(), 0);
        let done = self.live.memory.copy_in(addr, self.zeros.base(), count * block.bytes()).done;
        // The rest of a block that is mapped in part is left to the faults on it.
        let mapped = done / block.bytes();
        if mapped > 0 {
            self.wakes.push((addr, mapped * block.bytes()));
            self.admit_fresh(first, mapped, origin);
        }
        // It may be a part of a cluster now.
        first.page() + mapped as u64 > block.page()
    }

    /// The blocks to map with `block`, at most `room`: the first one, and how many.
    fn zeros_beside(&self, block: BlockId, run: Run, room: usize) -> (BlockId, usize) {
        let (at, _) = self.sector_range(block);
        if run.down && run.sectors > 1 {
            let below = (0..at).rev().take(run.sectors.min(room.max(1)) - 1);
            let count = below.take_while(|&sector| self.is_zero(block, at, sector)).count();
            return (BlockId::new(block.page() - count as u64, block.order()), count + 1);
        }
        let is_new = self.extent(block).copy(at) == Copy::None;
        let wanted = if is_new { self.touched_before(block).max(run.sectors) } else { run.sectors };
        let is_next = |&sector: &usize| {
            // Zeros that were evicted were touched once, or mapped ahead in vain.
            let may_be_far = sector - at < run.sectors;
            (may_be_far || self.extent(block).copy(sector) == Copy::None)
                && self.is_zero(block, at, sector)
        };
        let count = (at..self.sectors()).take(wanted.min(room)).take_while(is_next).count();
        (block, count)
    }

    /// How many blocks right before `block` were touched, or more if there is plenty of room.
    fn touched_before(&self, block: BlockId) -> usize {
        let (at, _) = self.sector_range(block);
        let extent = self.extent(block);
        // They may have left already.
        let was_touched = |&sector: &usize| {
            extent.is_resident(sector)
                || extent.copy(sector) != Copy::None
                || self.is_framed(block, at, sector)
        };
        let before = (0..at).rev().take(RUN_MAX).take_while(was_touched);
        let (local, room) = (self.local(), self.room());
        let at_least = RUNS_LEAST.iter().find(|(part, _)| local < room / part);
        before.count().max(at_least.map_or(1, |&(_, sectors)| sectors))
    }

    /// Whether a sector of the extent of `block`, which is its sector `at`, is away and all zero.
    fn is_zero(&self, block: BlockId, at: usize, sector: usize) -> bool {
        let extent = self.extent(block);
        let addr = self.addr(block) + sector * block.bytes() - at * block.bytes();
        let single = BlockId::new(block.page() + sector as u64 - at as u64, block.order());
        !extent.is_resident(sector)
            && matches!(extent.copy(sector), Copy::None | Copy::Pattern(0))
            && !self.is_framed(block, at, sector)
            // Parts of its cluster may be local.
            && self.fits(single)
            && self.addresses.is_plain(addr, addr + block.bytes())
    }

    /// Whether a sector of the extent of `block`, which is its sector `at`, is in a frame.
    fn is_framed(&self, block: BlockId, at: usize, sector: usize) -> bool {
        let page = block.page() + sector as u64 - at as u64;
        self.extent(block).in_frames > 0 && self.blocks.contains_key(&self.small_block(page))
    }
}
