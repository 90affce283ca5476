//! Ranges of the arena: mapped, unmapped, protected, advised.

use hiroma_policy::{Hint, PrefetchRequest};
use hiroma_sys::uffd::Watch;
use hiroma_sys::vm::Advise;
use hiroma_units::{EXTENT, PAGE};

use crate::addresses::IntervalSet;
use crate::core::Core;
use crate::discard::By;
use crate::error::PagerError;
use crate::extent::{Extent, Mode, flag};
use crate::pager::{Advice, PROT_RW};

impl Core {
    /// Makes unused extents usable.
    pub(crate) fn open_extents(
        &mut self,
        start: usize,
        len: usize,
        prot: i32,
    ) -> Result<(), PagerError> {
        self.arena.protect(start, len, prot).map_err(PagerError::io("mprotect"))?;
        let _ = self.arena.advise(start, len, Advise::DoDump);
        self.regions.insert(start, Default::default());
        Ok(())
    }

    /// Maps a range at addresses that the program chose.
    pub(crate) fn claim(&mut self, start: usize, end: usize) -> Result<(), PagerError> {
        for (from, to) in self.addresses.claim(start, end) {
            self.open_extents(from, to - from, PROT_RW)?;
        }
        Ok(())
    }

    /// Takes over a range that the program has used already. The protections stay.
    pub(crate) fn claim_as_is(&mut self, start: usize, end: usize) {
        for (from, to) in self.addresses.claim(start, end) {
            let _ = self.arena.advise(from, to - from, Advise::DoDump);
            self.regions.insert(from, Default::default());
        }
    }

    /// A new mapping has none of the old one's advice and is not locked.
    pub(crate) fn forget_advice(&mut self, start: usize, end: usize) {
        for (from, to) in self.addresses.wiped.overlaps(start, end) {
            let _ = self.arena.advise(from, to - from, Advise::Keep);
            self.addresses.wiped.remove(from, to);
        }
        self.addresses.unforked.remove(start, end);
        self.addresses.pinned.remove(start, end);
        self.addresses.code.remove(start, end);
    }

    /// What the program has advised for the page at `from`, and whether it is locked, holds for a range
    /// that was made from its mapping (`mremap`).
    pub(crate) fn inherit(
        &mut self,
        from: usize,
        start: usize,
        end: usize,
    ) -> Result<(), PagerError> {
        let addresses = &mut self.addresses;
        if addresses.pinned.touches(from, from + PAGE) {
            addresses.pinned.insert(start, end);
        }
        if addresses.unforked.touches(from, from + PAGE) {
            addresses.unforked.set(start, end, true);
        }
        if addresses.wiped.touches(from, from + PAGE) {
            self.wipe_on_fork(start, end, true)?;
        }
        Ok(())
    }

    /// Children that are forked from now on read zeros in a range, or its content again.
    pub(crate) fn wipe_on_fork(
        &mut self,
        start: usize,
        end: usize,
        on: bool,
    ) -> Result<(), PagerError> {
        self.mark_mixed(start, end);
        let advice = if on { Advise::Wipe } else { Advise::Keep };
        self.arena.advise(start, end - start, advice).map_err(PagerError::io("MADV_WIPEONFORK"))?;
        self.addresses.wiped.set(start, end, on);
        Ok(())
    }

    /// Makes the mapped parts of a range ours, readable and writable, so that they can be zeroed
    /// and reused.
    pub(crate) fn make_plain(&mut self, start: usize, end: usize) -> Result<(), PagerError> {
        for (from, to) in self.addresses.mapped.overlaps(start, end) {
            for (from, to) in self.addresses.foreign.overlaps(from, to) {
                self.addresses.foreign.remove(from, to);
                self.addresses.special.insert(from, to);
                self.reclaim(from, to)?;
            }
            for (from, to) in self.addresses.special.overlaps(from, to) {
                self.addresses.special.remove(from, to);
                self.arena.protect(from, to - from, PROT_RW).map_err(PagerError::io("mprotect"))?;
            }
            self.unmark_mixed(from, to);
        }
        Ok(())
    }

    /// Frees addresses whose content has been forgotten.
    pub(crate) fn unmap(&mut self, start: usize, end: usize) -> Result<(), PagerError> {
        self.recorder.note("unmap", ((start - self.arena.base()) / PAGE) as u64, end - start, 0);
        for (from, to) in self.addresses.wiped.overlaps(start, end) {
            let _ = self.arena.advise(from, to - from, Advise::Keep);
        }
        let gone = self.addresses.mapped.overlaps(start, end);
        let closed = self.addresses.unmap(start, end);
        self.close_parts(&gone, &closed)?;
        for &(from, to) in &closed {
            let _ = self.forget(from, to, By::Us);
            self.arena
                .protect(from, to - from, libc::PROT_NONE)
                .map_err(PagerError::io("mprotect"))?;
            let _ = self.arena.advise(from, to - from, Advise::DontDump);
            let base = self.arena.base();
            self.extents.for_each_written(
                (from - base) / EXTENT..(to - base) / EXTENT,
                |_, entry| entry.has(flag::MIXED) || entry.history != Default::default(),
                |entry| {
                    entry.set(flag::MIXED, false);
                    entry.history = Default::default();
                },
            );
            let old: Vec<usize> = self.regions.range(from..to).map(|(&start, _)| start).collect();
            old.iter().for_each(|start| {
                self.regions.remove(start);
            });
        }
        Ok(())
    }

    /// Makes the unmapped parts of shared extents inaccessible until they are mapped again.
    fn close_parts(
        &mut self,
        gone: &[(usize, usize)],
        closed: &[(usize, usize)],
    ) -> Result<(), PagerError> {
        let mut whole = IntervalSet::default();
        closed.iter().for_each(|&(from, to)| whole.insert(from, to));
        for &(from, to) in gone {
            for (from, to) in whole.gaps(from, to) {
                self.mark_mixed(from, to);
                self.addresses.special.insert(from, to);
                self.arena
                    .protect(from, to - from, libc::PROT_NONE)
                    .map_err(PagerError::io("mprotect"))?;
            }
        }
        Ok(())
    }

    /// Makes a part managed again over which something else had been mapped.
    fn reclaim(&mut self, from: usize, to: usize) -> Result<(), PagerError> {
        self.arena.reclaim(from, to - from).map_err(PagerError::io("mapping a hole anew"))?;
        self.live
            .uffd
            .register(from, to - from, Watch::MissingAndWriteProtect)
            .map_err(PagerError::io("registering a hole anew"))?;
        let _ = self.arena.advise(from, to - from, self.live.path.advice());
        let _ = self.arena.advise(from, to - from, Advise::DontFork);
        Ok(())
    }

    /// Lets extents that are entirely readable and writable move as a whole again.
    pub(crate) fn unmark_mixed(&mut self, start: usize, end: usize) {
        let base = self.arena.base();
        let (special, foreign) = (&self.addresses.special, &self.addresses.foreign);
        let extents = (start - base) / EXTENT..(end - base).div_ceil(EXTENT);
        let is_plain_again = |extent: usize, entry: &Extent| {
            let from = base + extent * EXTENT;
            entry.has(flag::MIXED)
                && !special.touches(from, from + EXTENT)
                && !foreign.touches(from, from + EXTENT)
        };
        self.extents
            .for_each_written(extents, is_plain_again, |entry| entry.set(flag::MIXED, false));
    }

    pub(crate) fn advise(&mut self, start: usize, end: usize, advice: Advice) {
        let base = self.arena.base();
        for extent in (start - base) / EXTENT..(end - base).div_ceil(EXTENT) {
            let page = (extent * EXTENT / PAGE) as u64;
            match advice {
                Advice::Cold => self.hint_extent(extent, Hint::Cold),
                Advice::WillNeed if self.reserve() > self.reserve_target() as isize => {
                    self.hint_extent(extent, Hint::Hot);
                    self.prefetch(&[PrefetchRequest {
                        page,
                        unit: (EXTENT / PAGE) as u16,
                        leave_unmapped: false,
                    }]);
                }
                Advice::Sequential => self.extents[extent].history.hint_dense(),
                Advice::Random => self.extents[extent].history.hint_sparse(),
                _ => {}
            }
        }
        if advice == Advice::Cold {
            self.live.evict_bell.ring();
        }
    }

    fn hint_extent(&mut self, extent: usize, hint: Hint) {
        let page = (extent * EXTENT / PAGE) as u64;
        match self.extents[extent].mode {
            Mode::Away => {}
            Mode::Huge => self.replacement.hinted(self.block_of(page, Mode::Huge), hint),
            Mode::Small => {
                let mut at = 0;
                while let Some(block) = self.next_small(extent, &mut at) {
                    if self.is_resident(block) {
                        self.replacement.hinted(block, hint);
                    }
                }
            }
        }
    }
}
