//! First touches, and touches of zeros that were evicted: `fresh.rs` of the pager.

use hiroma_policy::Origin;
use hiroma_policy::run_ahead::Run;
use hiroma_units::BlockId;

use super::{EXTENT, FAR, MAPPED, Ours};

/// As in the pager.
const RUN_MAX: usize = 64;
const RUNS_LEAST: [(u64, usize); 3] = [(8, 128), (4, 64), (2, 16)];

impl Ours<'_> {
    /// A fault on a block without content.
    pub(super) fn map_zeros(&mut self, block: BlockId, stream: bool) {
        let origin = if stream { Origin::Stream } else { Origin::Fresh };
        if self.map_zeros_run(block, origin) {
            return;
        }
        self.take_room(block);
        self.outcome.fresh(self.costs, block.pages() as u64);
        self.admit(block, origin);
        self.merge(block);
    }

    /// Maps zeros for `block` and for those beside it that will probably be touched next. Returns
    /// false if nothing was mapped.
    fn map_zeros_run(&mut self, block: BlockId, origin: Origin) -> bool {
        if self.options.fixed.is_some() || block.order() != 0 || !self.options.rules.zeros {
            return false;
        }
        let run = self.zero_runs.on_fault(block.page());
        let room = self.reserve().max(0) as usize / 2;
        let (first, count) = self.zeros_beside(block.page(), run, room);
        self.zero_runs.fetched(first, first + count, count as usize, run.down);
        if count < 2 || !self.keeping_mode(block, |ours| ours.make_room(count)) {
            return false;
        }
        self.outcome.fresh(self.costs, count);
        self.admit_fresh(first, count, origin);
        true
    }

    /// The pages to map with `page`, at most `room`: the first one, and how many.
    fn zeros_beside(&self, page: u64, run: Run, room: usize) -> (u64, u64) {
        let extent_start = page / EXTENT * EXTENT;
        if run.down && run.sectors > 1 {
            let below = (extent_start..page).rev().take(run.sectors.min(room.max(1)) - 1);
            let count = below.take_while(|&at| self.is_zero(at)).count() as u64;
            return (page - count, count + 1);
        }
        let wanted = self.touched_before(page).max(run.sectors).min(room);
        let pages = (page..extent_start + EXTENT).take(wanted);
        (page, pages.take_while(|&at| self.is_zero(at)).count() as u64)
    }

    /// How many pages right before `page` were touched, or more if there is plenty of room.
    fn touched_before(&self, page: u64) -> usize {
        let extent_start = page / EXTENT * EXTENT;
        let was_touched = |&at: &u64| {
            self.flags[at as usize] & (MAPPED | FAR) != 0
                || self.blocks.contains_key(&self.small_block(at))
        };
        let before = (extent_start..page).rev().take(RUN_MAX).take_while(was_touched);
        let local = self.local();
        let at_least = RUNS_LEAST.iter().find(|(part, _)| local < self.room / part);
        before.count().max(at_least.map_or(1, |&(_, pages)| pages))
    }

    /// Whether a page is away and all zero.
    fn is_zero(&self, page: u64) -> bool {
        let single = BlockId::new(page, 0);
        self.flags[page as usize] & (MAPPED | FAR) == 0
            && !self.blocks.contains_key(&self.small_block(page))
            // Parts of its cluster may be local.
            && self.fits(single)
            && self.is_plain(single)
    }
}
