//! Memory that the program gives up: discards, unmappings, and the events of userfaultfd about
//! those that bypassed the pager.

use std::time::Duration;

use hiroma_sys::uffd::Message;
use hiroma_sys::vm;
use hiroma_units::{BlockId, EXTENT, ExtentNo, Loc, PAGE};

use crate::canary;
use crate::core::{Core, Phase};
use crate::extent::{ALL_PAGES, Copy, flag, next_used};
use crate::fatal;
use crate::live::Path;
use crate::mover::TakeOut;

/// What takes the pages away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The pager, for a call of the program.
    Us,
    /// The kernel, in a moment, or at any time from now on (`MADV_FREE`). Resident blocks stay
    /// resident in the state, with holes that read as zeros, and are not staged before the kernel
    /// has acted: see [`Coming`](crate::removal::Coming).
    Kernel,
    /// No removal is needed: the mapping itself is gone, or about to be.
    Unmapped,
}

/// At least this many resident small blocks in a row are taken out in one call.
const EVACUATED_RUN_MIN: usize = 4;

/// How long to wait for the kernel to drop pages whose event was read: 10 ms.
const DROPPING_NAP: Duration = Duration::from_micros(50);
const DROPPING_NAPS_MAX: u32 = 200;

impl Core {
    /// Forgets the content of `start..end`, which reads as zeros from now on. Returns the ranges
    /// that the caller must overwrite with zeros, without the lock: parts of blocks that stay
    /// mapped.
    pub fn forget(&mut self, start: usize, end: usize, by: By) -> Vec<(usize, usize)> {
        let mut to_zero = Vec::new();
        let mut freed = Vec::new();
        let base = self.arena.base();
        let mut at = start;
        while at < end {
            let extent = (at - base) / EXTENT;
            let extent_start = base + extent * EXTENT;
            let upto = end.min(extent_start + EXTENT);
            let is_whole = at == extent_start && upto == extent_start + EXTENT;
            // Parts that others discard are noted, though nothing is there.
            let is_noted = by == By::Kernel || by == By::Unmapped && !is_whole;
            if !is_noted && self.extents[extent].is_empty() && self.overlay.is_empty() {
                // Reservations are far larger than what is used of them.
                let used = base + self.extents.next_written(extent + 1) * EXTENT;
                at = used.min(end / EXTENT * EXTENT).max(upto);
                continue;
            } else if is_whole {
                self.forget_extent(extent, by, &mut to_zero, &mut freed);
            } else {
                self.forget_part(
                    extent,
                    at - extent_start,
                    upto - extent_start,
                    by,
                    &mut to_zero,
                    &mut freed,
                );
            }
            at = upto;
        }
        if !freed.is_empty() {
            self.store.free(&freed);
        }
        self.publish();
        to_zero
    }

    fn forget_extent(
        &mut self,
        extent: usize,
        by: By,
        to_zero: &mut Vec<(usize, usize)>,
        freed: &mut Vec<Loc>,
    ) {
        self.recorder.note("forget_extent", extent as u64 * 512, by as usize, 0);
        let whole = BlockId::extent(ExtentNo(extent as u32));
        let addr = self.arena.base() + extent * EXTENT;
        if by == By::Kernel {
            self.expect_kernel(extent, addr, addr + EXTENT);
        }
        let used = self.extents[extent].used_sectors();
        if self.extents[extent].has(flag::RESIDENT) {
            match by {
                By::Us => self.evacuate(whole, to_zero),
                By::Unmapped => self.set_resident(whole, false),
                By::Kernel => {}
            }
        }
        self.forget_frames(extent, 0, self.sectors());
        if by == By::Us {
            self.evacuate_runs(extent, 0, self.sectors());
        }
        let mut at = 0;
        while let Some(sector) = next_used(&used, at, self.sectors()) {
            let piece = self.small_at(extent, sector);
            if self.is_resident(piece) {
                match by {
                    By::Us => self.evacuate(piece, to_zero),
                    By::Unmapped => self.set_resident(piece, false),
                    By::Kernel => {}
                }
            }
            let (first, count) = self.sector_range(piece);
            if !self.is_fetching(extent, first) {
                (first..first + count)
                    .for_each(|sector| self.set_copy(whole, sector, Copy::None, freed));
            }
            at = first + count;
        }
        if !self.overlay.is_empty() {
            self.overlay.retain(|block, _| block.extent_no() != whole.extent_no());
        }
        self.settle(extent);
    }

    fn forget_part(
        &mut self,
        extent: usize,
        from: usize,
        to: usize,
        by: By,
        to_zero: &mut Vec<(usize, usize)>,
        freed: &mut Vec<Loc>,
    ) {
        let base = self.arena.base() + extent * EXTENT;
        self.recorder.note(
            match by {
                By::Us => "forget us",
                By::Kernel => "forget kernel",
                By::Unmapped => "forget unmapped",
            },
            (extent * 512 + from / PAGE) as u64,
            from,
            to,
        );
        match by {
            By::Kernel => self.expect_kernel(extent, base + from, base + to),
            By::Unmapped => self.extents[extent].set(flag::HOLES, true),
            By::Us => {}
        }
        if self.extents[extent].has(flag::RESIDENT) {
            if by == By::Us {
                to_zero.push((base + from, base + to));
            }
            return;
        }
        let sector_bytes = self.sector_bytes();
        let whole = BlockId::extent(ExtentNo(extent as u32));
        let huge_framed = self.blocks.contains_key(&whole);
        let used =
            if self.overlay.is_empty() { self.extents[extent].used_sectors() } else { ALL_PAGES };
        if by == By::Us {
            self.evacuate_runs(extent, from.div_ceil(sector_bytes), to / sector_bytes);
        }
        let (mut at, end) = (from / sector_bytes, to.div_ceil(sector_bytes));
        while let Some(sector) = next_used(&used, at, end) {
            let piece = self.small_at(extent, sector);
            let (first, count) = self.sector_range(piece);
            let (start, stop) = (first * sector_bytes, (first + count) * sector_bytes);
            let part = (from.max(start), to.min(stop));
            let all = part == (start, stop);
            let resident = self.is_resident(piece);
            match by {
                By::Us if resident && all => self.evacuate(piece, to_zero),
                By::Us if resident => to_zero.push((base + part.0, base + part.1)),
                By::Unmapped if resident && all => self.set_resident(piece, false),
                _ => {}
            }
            let framed = self.blocks.contains_key(&piece);
            if all && framed && !huge_framed {
                self.forget_frame(piece);
            }
            for at in first.max(sector)..(first + count).min(end) {
                let start = at * sector_bytes;
                let part = (from.max(start) - start, to.min(start + sector_bytes) - start);
                let is_whole = part == (0, sector_bytes);
                let far = !matches!(self.extents[extent].copy(at), Copy::None);
                let key = self.sector_block(extent, at);
                if huge_framed || !all && !resident && (framed || !is_whole && far) {
                    self.overlay.entry(key).or_default().push(part);
                    self.recorder.note("overlay", key.page(), part.0, part.1);
                } else if all || !resident && is_whole {
                    self.overlay.remove(&key);
                    if !self.is_resident(piece) && !self.is_fetching(extent, at) {
                        self.set_copy(whole, at, Copy::None, freed);
                    }
                }
            }
            at = first + count;
        }
        self.settle(extent);
    }

    /// The kernel is about to discard a part of an extent, or may discard it from now on. Resident
    /// pages there stay in place until it has.
    fn expect_kernel(&mut self, extent: usize, from: usize, to: usize) {
        self.extents[extent].set(flag::HOLES, true);
        // Canary "kept for the kernel": they may be staged immediately.
        if self.live.path == Path::Full && !canary::is_broken("kept for the kernel") {
            self.coming.insert(from, to);
        }
    }

    /// A victim that the kernel has yet to discard, or has discarded already. If it has, the block
    /// is gone; returns false if the block stays.
    pub fn is_gone_for_kernel(&mut self, block: BlockId) -> bool {
        if !self.live.memory.is_empty(self.addr(block), block.bytes()) {
            self.coming.pass_over(block);
            return false;
        }
        self.set_resident(block, false);
        self.forget_copies(block);
        self.settle(block.extent_no().0 as usize);
        self.live.wake_fault_thread_if_waiting();
        true
    }

    /// Frees the far copies of a block: it reads as zeros, unless it is local.
    pub fn forget_copies(&mut self, block: BlockId) {
        let (first, count) = self.sector_range(block);
        let mut freed = Vec::new();
        (first..first + count)
            .for_each(|sector| self.set_copy(block, sector, Copy::None, &mut freed));
        self.store.free(&freed);
    }

    /// Whether a sector is being read from the store: its location must not be freed before the
    /// read has ended.
    fn is_fetching(&self, extent: usize, sector: usize) -> bool {
        let fetching = |block: BlockId| {
            self.blocks.get(&block).is_some_and(|entry| entry.phase == Phase::Fetching)
        };
        self.extents[extent].in_frames > 0
            && (fetching(BlockId::extent(ExtentNo(extent as u32)))
                || fetching(self.small_at(extent, sector)))
    }

    /// The block of one sector, by which its discarded parts are known.
    fn sector_block(&self, extent: usize, sector: usize) -> BlockId {
        BlockId::new(
            (extent * EXTENT / PAGE) as u64 + ((sector as u64) << self.sector_order),
            self.sector_order,
        )
    }

    /// Moves a block's pages out of the program, so that their memory can be reused.
    fn evacuate(&mut self, block: BlockId, to_zero: &mut Vec<(usize, usize)>) {
        let addr = self.addr(block);
        if self.live.path == Path::Fallback {
            if self.drop_pages(addr, block.bytes()).is_ok() {
                self.set_resident(block, false);
            } else {
                to_zero.push((addr, addr + block.bytes()));
            }
            return;
        }
        let Some(frame) = self.frames.take_empty(block.order()) else {
            to_zero.push((addr, addr + block.bytes()));
            return;
        };
        match self.take_out(block, frame) {
            TakeOut::Done => {
                self.set_resident(block, false);
                self.frames.put_full(frame);
            }
            TakeOut::Gone => {
                self.set_resident(block, false);
                self.frames.put_empty(frame);
            }
            TakeOut::Unmovable | TakeOut::Mixed | TakeOut::Later => {
                self.frames.put_empty(frame);
                to_zero.push((addr, addr + block.bytes()));
            }
        }
    }

    /// Takes resident small blocks of `from..to` (sectors of an extent) out of the program, many in
    /// one call. Some may be left, for `evacuate`.
    fn evacuate_runs(&mut self, extent: usize, from: usize, to: usize) {
        let mut first = from;
        while self.extents[extent].resident_sectors > 0 && first < to {
            let count = self.count_resident(extent, first, to);
            if count >= EVACUATED_RUN_MIN {
                self.evacuate_run(extent, first, count);
            }
            first += count.max(1);
        }
    }

    /// How many sectors from `first` on, up to `to`, are those of whole blocks that are resident.
    fn count_resident(&self, extent: usize, first: usize, to: usize) -> usize {
        let mut at = first;
        while at < to {
            let block = self.small_at(extent, at);
            let (start, count) = self.sector_range(block);
            if start < at || start + count > to || !self.is_resident(block) {
                break;
            }
            at += count;
        }
        at - first
    }

    fn evacuate_run(&mut self, extent: usize, first: usize, count: usize) {
        let bytes = self.sector_bytes();
        let start = self.arena.base() + extent * EXTENT + first * bytes;
        let done = if self.live.path == Path::Fallback {
            if self.drop_pages(start, count * bytes).is_ok() { count } else { 0 }
        } else if self.has_unsettled(start, count * bytes) {
            0
        } else {
            let scratch = self.frames.scratch();
            let moved = self.move_pages_out(scratch, start, count * bytes).done;
            self.frames.empty_scratch(moved);
            if moved % bytes != 0 {
                self.extents[extent].set(flag::HOLES, true);
            }
            moved / bytes
        };
        self.recorder.note(
            "evacuate run",
            ((start - self.arena.base()) / PAGE) as u64,
            count,
            done,
        );
        let mut sector = first;
        while sector < first + done {
            let block = self.small_at(extent, sector);
            sector += self.sector_range(block).1;
            if sector <= first + done {
                self.set_resident(block, false);
            } else {
                // A part of it was taken out, and reads as zeros.
                self.extents[extent].set(flag::HOLES, true);
            }
        }
    }

    fn forget_frames(&mut self, extent: usize, from: usize, to: usize) {
        if self.extents[extent].in_frames == 0 {
            return;
        }
        let whole = BlockId::extent(ExtentNo(extent as u32));
        if self.blocks.contains_key(&whole) {
            self.forget_frame(whole);
        }
        for sector in from..to {
            let piece = self.small_at(extent, sector);
            if piece != whole && self.blocks.contains_key(&piece) {
                self.forget_frame(piece);
            }
        }
    }

    fn forget_frame(&mut self, block: BlockId) {
        let entry = self.blocks.get_mut(&block).expect("the caller has looked");
        match entry.phase {
            // Faults on it wait until the request has ended, and then find it fresh.
            Phase::Fetching | Phase::Writing => {
                entry.doomed = true;
                self.recorder.note("doomed", block.page(), 0, 0);
            }
            Phase::Staged => {
                let entry = self.leave(block);
                self.frames.put_full(entry.frame);
            }
        }
    }

    /// The program discarded memory with a system call of its own. The kernel removes the pages
    /// once this event has been read.
    pub fn on_removed(&mut self, start: usize, end: usize) {
        // Canary "own removals": the pager's own event counts as the program's.
        let known = !canary::is_broken("own removals");
        if let Some(own) =
            self.own_removals.iter_mut().find(|own| known && own.start <= start && end <= own.end)
        {
            return own.saw(start, end);
        }
        let _ = self.forget(start, end, By::Kernel);
    }

    /// Reads queued messages of the kernel.
    ///
    /// A thread that maps something over managed memory continues when its event is read. That must
    /// not happen while the kernel drops pages there for the pager: it would drop those that the
    /// thread writes. So events are read one by one then, and none after the pager's own until the
    /// kernel is done.
    pub fn read_pending(&mut self) {
        let most = if self.own_removals.is_empty() { usize::MAX } else { 1 };
        let from = self.pending.len();
        if self.live.memory.read(&mut self.pending, most).is_err() {
            fatal::die("reading from userfaultfd failed; please report this");
        }
        if most > 1 || fatal::is_model() {
            return;
        }
        let Some(&Message::Remove { start, end }) = self.pending.get(from) else { return };
        let Some(own) = self.own_removals.iter().find(|own| own.is_dropping(start, end)) else {
            return;
        };
        // The event can be the program's, with its thread still to come.
        for _ in 0..DROPPING_NAPS_MAX {
            if !own.is_dropping(start, end) {
                break;
            }
            std::thread::sleep(DROPPING_NAP);
        }
    }

    /// Acts on the messages that were read from userfaultfd in the middle of an operation. Faults
    /// are left to the fault thread.
    pub fn catch_up(&mut self) {
        // Canary "event before unlock": most of the time it is left for later.
        if canary::is_broken("event before unlock") && self.stamp % 8 != 0 {
            return;
        }
        while let Some(at) =
            self.pending.iter().position(|message| !matches!(message, Message::Fault { .. }))
        {
            match self.pending.remove(at) {
                Message::Remove { start, end } => self.on_removed(start, end),
                Message::Unmap { start, end } => self.on_unmapped(start, end),
                Message::Remap { from, len, .. } => self.on_remapped(from, len),
                Message::Fork { .. } | Message::Fault { .. } => {}
            }
        }
    }

    /// The program unmapped memory with a system call of its own, or mapped something else over it.
    pub fn on_unmapped(&mut self, start: usize, end: usize) {
        for (from, to) in self.addresses.mapped.overlaps(start, end) {
            // Ranges that were released before are already covered by a foreign mapping.
            if self.addresses.foreign.covers(from, to) {
                continue;
            }
            let _ = self.forget(from, to, By::Unmapped);
            self.addresses.foreign.insert(from, to);
            self.is_mapped_over = true;
            self.mark_mixed(from, to);
        }
    }

    /// The program moved memory with a system call of its own: its far part cannot follow.
    pub fn on_remapped(&mut self, from: usize, len: usize) {
        // Canary "moved memory ends the program": the program continues.
        if canary::is_broken("moved memory ends the program") {
            return;
        }
        fatal::die(&format!(
            "the program moved managed memory ({from:#x}, {len} bytes) by a raw mremap system call, past the C library; that cannot \
             be followed, so it was ended rather than given wrong data. Exclude this program, or build it to call mremap() of the C library"
        ));
    }

    /// Extents that `start..end` only partly covers have several mappings from now on.
    pub fn mark_mixed(&mut self, start: usize, end: usize) {
        let base = self.arena.base();
        for edge in [start, end] {
            if edge % EXTENT != 0 {
                self.extents[(edge - base) / EXTENT].set(flag::MIXED, true);
            }
        }
    }

    /// Drops the overlay of a block (its discarded parts).
    pub fn forget_overlay(&mut self, block: BlockId) {
        let (first, count) = self.sector_range(block);
        let extent = block.extent_no().0 as usize;
        for sector in first..first + count {
            let piece = self.sector_block(extent, sector);
            self.overlay.remove(&piece);
        }
    }

    /// Zeros the parts of a frame that were discarded while its block was not resident. Returns
    /// true if there were any.
    pub fn apply_overlay(&mut self, block: BlockId, frame_addr: usize) -> bool {
        // Canary "discarded while away": the old content is faulted in.
        if self.overlay.is_empty() || canary::is_broken("discarded while away") {
            return false;
        }
        let mut any = false;
        let (first, count) = self.sector_range(block);
        let extent = block.extent_no().0 as usize;
        for sector in first..first + count {
            let piece = self.sector_block(extent, sector);
            for (from, to) in self.overlay.remove(&piece).unwrap_or_default() {
                self.recorder.note("overlay applied", piece.page(), from, to);
                vm::zero(frame_addr + (sector - first) * self.sector_bytes() + from, to - from);
                any = true;
            }
        }
        any
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hiroma_sys::uffd::Message;
    use hiroma_sys::vm::{self, Advise};
    use hiroma_units::{EXTENT, PAGE};

    use crate::config::parse_stores;
    use crate::extent::flag;
    use crate::removal::OwnRemoval;
    use crate::{Advice, Config, Pager};

    fn word(page: usize) -> u64 {
        0x0101_0101_0000_0000 + page as u64
    }

    /// Fills an extent. Two words a page, so that no page is a pattern that needs no store.
    pub(crate) fn fill(addr: usize) {
        for page in 0..EXTENT / PAGE {
            vm::fill(addr + page * PAGE, PAGE / 2, word(page));
            vm::fill(addr + page * PAGE + PAGE / 2, PAGE / 2, !word(page));
        }
    }

    pub(crate) fn expect_filled(addr: usize) {
        for page in 0..EXTENT / PAGE {
            let bytes = vm::lend(addr + page * PAGE, PAGE);
            assert_eq!(bytes.bytes()[..8], word(page).to_ne_bytes(), "page {page}");
            assert_eq!(bytes.bytes()[PAGE - 8..], (!word(page)).to_ne_bytes(), "page {page}");
        }
    }

    #[test]
    fn partial_page_table_release_keeps_content() {
        let stores = parse_stores("compressed:64M").unwrap();
        let pager =
            Pager::start(Config { local_limit_bytes: 16 << 20, stores, ..Config::default() })
                .unwrap();
        let addr = pager.map(EXTENT, EXTENT).unwrap();
        let extent = (addr - pager.arena().0) / EXTENT;
        fill(addr);
        // What looks like one mapping to the pager is three to the kernel, as after a fork.
        pager.arena.advise(addr + PAGE, PAGE, Advise::DoFork).unwrap();
        pager.evict_all().unwrap();
        pager.advise(addr, EXTENT, Advice::Random).unwrap();
        (0..512).step_by(64).for_each(|page| vm::touch(addr + page * PAGE, 1));
        assert!(
            pager.core.lock().extents[extent].has(flag::PAGE_TABLE),
            "single pages came as such"
        );
        pager.evict_all().unwrap();
        let mut core = pager.core.lock();
        core.unmark_mixed(addr, addr + EXTENT);
        core.extents[extent].set(flag::RECLAIMING, true);
        core.reclaim_queue.push(extent as u32);
        core.live.evict_bell.ring();
        drop(core);
        // Faults wait for it.
        expect_filled(addr);
        assert!(pager.core.lock().own_removals.is_empty());
        pager.stop();
    }

    #[test]
    fn page_tables_stay_during_kernel_discard() {
        let stores = parse_stores("compressed:64M").unwrap();
        let pager =
            Pager::start(Config { local_limit_bytes: 16 << 20, stores, ..Config::default() })
                .unwrap();
        let base = pager.arena().0;
        let mut core = pager.core.lock();
        core.reclaim_queue.extend([7, 8]);
        core.discarding.push((base + 9 * EXTENT - PAGE, base + 9 * EXTENT));
        assert_eq!(core.next_reclaim(), Some(7));
        assert_eq!(core.next_reclaim(), None);
        core.discarding.clear();
        assert_eq!(core.next_reclaim(), Some(8));
        drop(core);
        pager.stop();
    }

    #[test]
    fn own_remove_event_during_other_work_keeps_content() {
        let stores = parse_stores("compressed:64M").unwrap();
        let pager =
            Pager::start(Config { local_limit_bytes: 16 << 20, stores, ..Config::default() })
                .unwrap();
        let addr = pager.map(EXTENT, EXTENT).unwrap();
        let extent = (addr - pager.arena().0) / EXTENT;
        fill(addr);
        pager.evict_all().unwrap();
        let mut core = pager.core.lock();
        // A thread reads the event and continues with something else: the event is acted on before
        // the lock is released.
        core.own_removals.push(OwnRemoval::new(addr, addr + EXTENT));
        core.pending.push(Message::Remove { start: addr, end: addr + EXTENT });
        drop(core);
        let mut core = pager.core.lock();
        assert!(core.pending.is_empty());
        let own = core.own_removals.pop().unwrap();
        assert_eq!(own.of_the_program(), []);
        assert!(core.extents[extent].far_sectors() > 0);
        drop(core);
        expect_filled(addr);
        pager.stop();
    }
}
