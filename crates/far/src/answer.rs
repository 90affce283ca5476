//! The answer to a fault: map zeros, map a staged frame, fetch the block, or wait for something.

use hiroma_policy::{Origin, PrefetchRequest};
use hiroma_sys::vm;
use hiroma_units::{BlockId, EXTENT, PAGE};

use crate::canary;
use crate::control::{Counter, Waited};
use crate::core::{Core, Phase};
use crate::extent::{Copy, Mode, flag};
use crate::fatal;
use crate::live::Path;
use crate::lost::Began;
use crate::mover::PutIn;
use crate::watchdog::Waits;

/// A fault that has not been answered yet.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub addr: usize,
    pub since: Began,
    /// What it waits for, as far as known.
    pub kind: Waited,
    /// It could not be answered immediately.
    pub has_waited: bool,
    /// It has been counted and reported to the policies.
    pub known: bool,
    pub waits: Waits,
}

/// The answer to a fault.
pub enum Answer {
    /// The thread has been woken, or will be as soon as the lock is released.
    Done,
    /// The thread will be woken when the block, which is being fetched, has arrived.
    Coming(BlockId),
    /// The block must be fetched.
    Fetch { block: BlockId, stream: bool },
    /// Retry when something has changed.
    Wait,
    /// Retry when there is room.
    NoRoom,
}

/// This many faults in a row on one mapped page cannot be late messages of threads that faulted
/// together.
const STUCK_AFTER: u32 = 10_000;
/// How far the copy of a block that is being written may exceed the limit.
const OVER_LIMIT_MAX: usize = 256 << 10;

impl Fault {
    /// It could not be answered immediately. A first touch then counts as a wait for far memory.
    pub fn must_wait(&mut self) {
        self.has_waited = true;
        if self.kind == Waited::FirstTouch {
            self.kind = Waited::Room;
        }
    }
}

impl Core {
    /// Decides how to answer a fault, and does what can be done immediately.
    pub fn on_fault(&mut self, fault: &mut Fault, requests: &mut Vec<PrefetchRequest>) -> Answer {
        let offset = fault.addr - self.arena.base();
        let (page, extent) = ((offset / PAGE) as u64, offset / EXTENT);
        self.recorder.note("fault", page, fault.known as usize, self.extents[extent].mode as usize);
        if self.extents[extent].has(flag::RECLAIMING) {
            return Answer::Wait;
        }
        if !fault.known {
            self.count(Counter::Faults, 1);
        }
        let mode = match self.extents[extent].mode {
            Mode::Away => match self.choose_mode(extent, page) {
                Some(mode) => mode,
                None => return Answer::Wait,
            },
            mode => mode,
        };
        let block = match mode {
            Mode::Small => self.choose_small(page, fault.known),
            _ => self.block_of(page, mode),
        };
        if self.is_resident(block) {
            return self.on_resident(block, fault.addr);
        }
        let known = std::mem::replace(&mut fault.known, true);
        if let Some(entry) = self.blocks.get(&block).copied() {
            fault.kind = Waited::Staged;
            return self.on_framed(block, entry.phase, known, requests);
        }
        let (first, count) = self.sector_range(block);
        let far = (first..first + count).any(|sector| {
            !matches!(self.extents[extent].copy(sector), Copy::None | Copy::Pattern(0))
        });
        let stream = self.prefetcher.is_stream(page);
        if !known {
            self.consult(block, page, requests);
            self.count(if far { Counter::FaultsFetched } else { Counter::FaultsFresh }, 1);
            if far {
                let local_bytes = self.resident_bytes + self.staged_bytes;
                self.count(Counter::LocalBytesAtFetches, local_bytes);
            }
            let may_buy =
                far && mode == Mode::Small && self.fixed.is_none() && !self.is_packed(block);
            if may_buy && self.rents_no_longer(extent) {
                self.buy_rest(block, requests);
            }
        }
        if far {
            return Answer::Fetch { block, stream };
        }
        self.note_zeros(block);
        self.map_zeros(block, stream)
    }

    /// Consults the prefetch policy about a fault.
    fn consult(&mut self, block: BlockId, page: u64, requests: &mut Vec<PrefetchRequest>) {
        if !self.prefetch {
            return;
        }
        let room = self.reserve().max(0) as usize / 2;
        let budget = (room / block.bytes()).min(64);
        self.prefetcher.on_fault(page, block.pages() as u16, budget, requests);
    }

    /// Whether the first sector of a block is in compressed memory.
    fn is_packed(&self, block: BlockId) -> bool {
        let (first, _) = self.sector_range(block);
        matches!(self.extent(block).copy(first), Copy::Stored { loc, .. } if self.store.is_packed(loc))
    }

    /// A fault on an extent in small mode. Whether the rest of it is to be fetched.
    fn rents_no_longer(&mut self, extent: usize) -> bool {
        let region = self.region_of(self.arena.base() + extent * EXTENT);
        let region = self.regions.entry(region).or_default();
        self.granularity.on_small_fault(&mut self.extents[extent].history, region)
    }

    /// The whole extent is worth fetching: requests its missing sectors.
    fn buy_rest(&mut self, block: BlockId, requests: &mut Vec<PrefetchRequest>) {
        let start = block.page() - block.page_in_extent() as u64;
        self.count(Counter::ModeChanges, 1);
        for sector in 0..self.sectors() {
            if matches!(self.extent(block).copy(sector), Copy::Stored { .. }) {
                let page = start + ((sector as u64) << self.sector_order);
                requests.push(PrefetchRequest {
                    page,
                    unit: 1 << self.sector_order,
                    leave_unmapped: false,
                });
            }
        }
    }

    /// Chooses the mode in which an extent that is away is faulted in. Returns None if its page
    /// table must be freed first.
    fn choose_mode(&mut self, extent: usize, page: u64) -> Option<Mode> {
        let stream = self.prefetcher.is_stream(page);
        let fresh = self.extents[extent].far_sectors() == 0;
        let region = self.region_of(self.arena.base() + extent * EXTENT);
        let beside = [extent.saturating_sub(1), (extent + 1).min(self.extents.len() - 1)];
        let is_beside = beside.iter().any(|&beside| !self.extents[beside].is_away());
        let begins_small = self.begins_small(extent);
        let is_packed = self.is_packed(BlockId::new(page, 0));
        let history = &mut self.extents[extent].history;
        let region = self.regions.entry(region).or_default();
        let wanted = match (self.fixed, fresh) {
            (Some(_), _) => Mode::Huge,
            (None, true) if begins_small || !stream => Mode::Small,
            (None, true) => self.granularity.on_fresh_fault(history, region, stream).into(),
            (None, false) if is_packed => self.granularity.on_near_fault(history, stream).into(),
            (None, false) => {
                self.granularity.on_far_fault(history, region, stream, is_beside).into()
            }
        };
        let mode = self.possible_mode(extent, wanted);
        if mode == Mode::Huge && self.needs_reclaim(extent) {
            self.extents[extent].set(flag::RECLAIMING, true);
            self.reclaim_queue.push(extent as u32);
            self.live.evict_bell.ring();
            return None;
        }
        if mode == Mode::Huge && fresh {
            self.extents[extent].set(flag::BORN_FRESH, true);
        }
        self.recorder.note("mode", extent as u64 * 512, mode as usize, 0);
        self.extents[extent].mode = mode;
        Some(mode)
    }

    /// Whether a fresh extent is touched in small blocks even by a stream: in a model, which has
    /// little room and is to see both.
    fn begins_small(&self, _extent: usize) -> bool {
        #[cfg(any(test, feature = "model"))]
        return self.room_of_test.is_some() && _extent % 2 == 1;
        #[cfg(not(any(test, feature = "model")))]
        false
    }

    /// A fault on memory that is resident according to the state: another thread's fault mapped it
    /// meanwhile, or the program discarded it by a system call that the pager did not see.
    fn on_resident(&mut self, block: BlockId, addr: usize) -> Answer {
        let page = addr / PAGE * PAGE;
        // Canary "holes": a page that the program dropped by its own system call is not put back.
        if self.extent(block).has(flag::HOLES) && !canary::is_broken("holes") {
            let _ = self.put_zeros(page, PAGE);
        } else {
            self.stuck = if self.stuck.0 == page { (page, self.stuck.1 + 1) } else { (page, 0) };
            if self.stuck.1 > STUCK_AFTER {
                self.recorder
                    .save_extent(block.page() + (page - self.addr(block)) as u64 / PAGE as u64);
                fatal::die(&format!(
                    "the page at {page:#x} should be there and is not: the program (or a library) changed its memory behind the back of hiroma. It was ended rather than given wrong data"
                ));
            }
            self.wakes.push((page, PAGE));
        }
        Answer::Done
    }

    /// A fault on a block that is in a frame.
    fn on_framed(
        &mut self,
        block: BlockId,
        phase: Phase,
        known: bool,
        requests: &mut Vec<PrefetchRequest>,
    ) -> Answer {
        let entry = self.blocks.get_mut(&block).expect("looked up just now");
        if entry.doomed || entry.left {
            return Answer::Wait;
        }
        let prefetched = entry.prefetched;
        match phase {
            Phase::Fetching => {
                entry.map_when_ready = true;
                if !known && prefetched {
                    self.used_prefetch(block, requests);
                }
                Answer::Coming(block)
            }
            Phase::Staged => {
                let origin = if prefetched { Origin::Stream } else { Origin::Rescued };
                if !known {
                    if prefetched {
                        self.used_prefetch(block, requests);
                    } else {
                        self.count(Counter::FaultsStaged, 1);
                    }
                }
                let extent = self.extent_mut(block);
                extent.rescues = extent.rescues.saturating_add(u8::from(!prefetched));
                self.map_in(block, origin);
                self.give_up_copies(block);
                self.merge(block);
                Answer::Done
            }
            // Canary "copy while written": the frame itself is mapped while the evictor reads it.
            Phase::Writing if canary::is_broken("copy while written") => {
                self.map_in(block, Origin::Rescued);
                Answer::Done
            }
            Phase::Writing => self.rescue_copy(block),
        }
    }

    fn used_prefetch(&mut self, block: BlockId, requests: &mut Vec<PrefetchRequest>) {
        if let Some(entry) = self.blocks.get_mut(&block) {
            entry.prefetched = false;
            entry.stream = true;
        }
        self.count(Counter::FaultsPrefetched, 1);
        self.prefetcher.used(block.page());
        if !block.is_huge() {
            let region = self.region_of(self.addr(block));
            let history = &mut self.extents[block.extent_no().0 as usize].history;
            self.granularity.on_streamed(history, self.regions.entry(region).or_default());
        }
        self.consult(block, block.page(), requests);
    }

    /// A fault on a block that the evictor is reading: the program gets a copy, and the evictor
    /// keeps the frame until its write ends.
    fn rescue_copy(&mut self, block: BlockId) -> Answer {
        // A copy may exceed the limit, but only by little; otherwise the fault waits for the
        // write-back.
        let taken = match self.take_frame_for(block, false) {
            Some((frame, _)) => Some(frame),
            None if self.local() + block.bytes() > self.room() + OVER_LIMIT_MAX => None,
            None => {
                self.frames.take_empty(block.order()).inspect(|&frame| self.frames.gained(frame))
            }
        };
        let Some(frame) = taken else {
            self.wants_room(block);
            return Answer::NoRoom;
        };
        let entry = self.blocks.get_mut(&block).expect("looked up just now");
        let from = entry.frame;
        let addr = self.frames.addr(frame);
        self.recorder.note("rescue copy", block.page(), block.pages(), 0);
        vm::copy(addr, self.frames.addr(from), block.bytes());
        self.apply_overlay(block, addr);
        if self.put_in(block, frame) == PutIn::Done {
            self.blocks.get_mut(&block).expect("still there").left = true;
            self.admit(block, Origin::Rescued);
            let extent = self.extent_mut(block);
            extent.rescues = extent.rescues.saturating_add(1);
        }
        self.count(Counter::FaultsStaged, 1);
        Answer::Done
    }

    /// A first touch: maps zeros.
    fn map_zeros(&mut self, block: BlockId, stream: bool) -> Answer {
        let addr = self.addr(block);
        let origin = if stream { Origin::Stream } else { Origin::Fresh };
        if block.is_huge() && self.live.path == Path::Full {
            let Some((frame, zero)) = self.take_frame_for(block, true) else {
                return self.no_room(block);
            };
            if !zero {
                vm::zero(self.frames.addr(frame), block.bytes());
            }
            self.fresh_demand += 1;
            match self.put_in(block, frame) {
                PutIn::Done => self.admit(block, origin),
                PutIn::Gone => self.settle(block.extent_no().0 as usize),
            }
            return Answer::Done;
        }
        if self.map_zeros_run(block, origin) {
            return Answer::Done;
        }
        if !self.keeping_mode(block, |core| core.make_room(block.bytes())) {
            return self.no_room(block);
        }
        match self.put_zeros(addr, block.bytes()) {
            PutIn::Done => {
                self.admit(block, origin);
                self.merge(block);
            }
            PutIn::Gone => self.settle(block.extent_no().0 as usize),
        }
        Answer::Done
    }

    fn no_room(&mut self, block: BlockId) -> Answer {
        self.settle(block.extent_no().0 as usize);
        self.wants_room(block);
        Answer::NoRoom
    }
}

impl From<hiroma_policy::Mode> for Mode {
    fn from(mode: hiroma_policy::Mode) -> Mode {
        match mode {
            hiroma_policy::Mode::Huge => Mode::Huge,
            hiroma_policy::Mode::Small => Mode::Small,
        }
    }
}
