//! The calls of the program, served by a thread of the pager. No thread of the program ever takes
//! the pager's lock, so none can wait for far memory while it has the lock, even if its stack is
//! managed memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hiroma_sys::helper;
use hiroma_sys::lock::Lock;
use hiroma_sys::mailbox::Mailbox;
use hiroma_sys::vm::Advise;
use hiroma_units::{Bytes, EXTENT, PAGE};

use crate::addresses::Owner;
use crate::canary;
use crate::core::Core;
use crate::discard::By;
use crate::error::PagerError;
use crate::host;
use crate::live::{Live, Path};
use crate::pager::{Advice, PROT_RW};

/// The calls of the program. Ranges are whole pages inside the arena.
#[derive(Clone, Copy)]
pub enum Call {
    /// New addresses; the answer is the first.
    Place {
        len: usize,
        align: usize,
        alone: bool,
        prot: i32,
    },
    /// Forgets the content of everything that is mapped in a range, and frees its addresses. The
    /// answer is 1 if they are free; if there is something to zero before, `Close` must follow.
    Unmap {
        start: usize,
        end: usize,
    },
    /// Frees addresses whose content has been forgotten.
    Close {
        start: usize,
        end: usize,
    },
    /// Makes a range usable, readable and writable, whatever was there.
    MakePlain {
        start: usize,
        end: usize,
    },
    Protect {
        start: usize,
        end: usize,
        prot: i32,
    },
    Discard {
        start: usize,
        end: usize,
    },
    /// Grows a mapping in place; the answer is 1 if that was possible.
    Extend {
        start: usize,
        end: usize,
        new_end: usize,
    },
    /// Something else is about to be mapped over a range.
    Release {
        start: usize,
        end: usize,
    },
    /// The answer is 1 if the range is plain memory, to be touched by the caller.
    Pin {
        start: usize,
        end: usize,
    },
    Unpin {
        start: usize,
        end: usize,
    },
    /// Pins all that is mapped.
    PinAll,
    /// Undoes `Pin` for all of the arena.
    UnpinAll,
    /// Fails if a part of the range is not mapped.
    AllMapped {
        start: usize,
        end: usize,
    },
    /// The maximum of mapped bytes.
    MappedMax(usize),
    /// Whether forked children inherit a range.
    DontFork {
        start: usize,
        end: usize,
        on: bool,
    },
    /// A range has been made from the mapping at `from`: what was advised for that holds for it.
    Inherit {
        from: usize,
        start: usize,
        end: usize,
    },
    /// Whether a range is zeros in forked children.
    WipeOnFork {
        start: usize,
        end: usize,
        on: bool,
    },
    /// The answer is 1 if nothing is mapped in a range.
    IsFree {
        start: usize,
        end: usize,
    },
    /// Whose a range is: the answer is the number of an [`Owner`].
    OwnerOf {
        start: usize,
        end: usize,
    },
    /// The kernel's mapping at an address: the answer is the mapping's end, with its protection in
    /// the lowest bits.
    AreaAt(usize),
    Advise {
        start: usize,
        end: usize,
        advice: Advice,
    },
    Limit(usize),
    /// The answer is the number of local bytes.
    EvictEverything(bool),
    /// Writes all statistics to the control page.
    Publish,
    /// The answer is 1 if everything has stopped and these addresses are in memory; if 0, the
    /// caller touches them and tries again.
    BeforeFork(&'static [AtomicUsize]),
    /// More of the ranges that did not fit into an answer.
    MoreToZero(usize),
}

/// Maximum number of ranges in one answer.
const RANGES: usize = 32;

/// The answer to a call.
pub struct Answer {
    pub result: Result<usize, PagerError>,
    /// Ranges that the caller must overwrite with zeros.
    zero: [(usize, usize); RANGES],
    count: usize,
    /// Identifies the remaining ranges, if not all fitted.
    more: Option<usize>,
}

impl Answer {
    /// The ranges of this answer.
    pub fn to_zero(&self) -> &[(usize, usize)] {
        &self.zero[..self.count]
    }

    /// The call that returns the remaining ranges.
    pub fn rest(&self) -> Option<Call> {
        self.more.map(Call::MoreToZero)
    }
}

/// The mailbox for the calls of the program's threads.
pub type Calls = Mailbox<Call, Answer>;

/// The parent's thread signals here that a fork has happened.
#[derive(Default)]
pub struct ForkGate {
    /// Number of forks that are over.
    over: AtomicUsize,
}

impl ForkGate {
    /// In the parent: the fork is over.
    pub fn open(&self) {
        self.over.fetch_add(1, Ordering::Release);
    }
}

/// Whether the program still lives is checked at this interval while it forks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether a thread has the program's memory. `None`: that cannot be found out.
fn lives_here(thread: u32, mark: &AtomicU64) -> Option<bool> {
    helper::shares_memory(thread, mark).ok().map(|shares| shares == Some(true))
}

/// The thread that serves calls.
pub struct Serving {
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    calls: Arc<Calls>,
    gate: Arc<ForkGate>,
    /// Ranges that did not fit into answers, by identifier.
    rest: Vec<(usize, Vec<(usize, usize)>)>,
    names: usize,
    fork_is_due: bool,
}

impl Serving {
    pub fn new(
        core: Arc<Lock<Core>>,
        live: Arc<Live>,
        calls: Arc<Calls>,
        gate: Arc<ForkGate>,
    ) -> Serving {
        Serving { core, live, calls, gate, rest: Vec::new(), names: 0, fork_is_due: false }
    }

    pub fn run(mut self) {
        while !self.live.stopping() {
            let calls = self.calls.clone();
            let forks = self.gate.over.load(Ordering::Acquire);
            let live = self.live.clone();
            let lives = |thread| lives_here(thread, &live.mark);
            let any = calls.serve_one(|call| self.answer(call), lives);
            if std::mem::take(&mut self.fork_is_due) {
                self.stand_still(forks);
            } else if !any {
                calls.wait(Duration::from_millis(500));
            }
        }
    }

    /// Keeps the lock until the program's thread has forked.
    fn stand_still(&mut self, forks: usize) {
        let mut looked = Instant::now();
        while self.gate.over.load(Ordering::Acquire) == forks {
            self.calls.wait(Duration::from_millis(1));
            if self.live.stopping() {
                return;
            }
            if looked.elapsed() > LOOK_EVERY {
                looked = Instant::now();
                // The thread that would notice its end, or that it executes another program, waits for
                // the lock.
                let is_other = || crate::life::shares_memory(&self.live.mark).is_ok_and(|it| !it);
                if host::has_program_ended() || is_other() {
                    break;
                }
            }
        }
        crate::fork::go_on_in_parent(&self.core, &self.live);
    }

    pub(crate) fn answer(&mut self, call: Call) -> Answer {
        let mut zero = Vec::new();
        let result = self.act(call, &mut zero);
        if zero.len() <= RANGES {
            return answer(result, &zero, None);
        }
        let rest = zero.split_off(RANGES);
        self.names += 1;
        self.rest.push((self.names, rest));
        answer(result, &zero, Some(self.names))
    }

    fn act(&mut self, call: Call, zero: &mut Vec<(usize, usize)>) -> Result<usize, PagerError> {
        let core = || self.core.lock();
        match call {
            Call::Place { len, align, alone, prot } => {
                return core().place(len, align, alone, prot);
            }
            Call::Unmap { start, end } => return core().forget_and_unmap(start, end, zero),
            Call::Close { start, end } => core().unmap(start, end)?,
            Call::MakePlain { start, end } => {
                let mut core = core();
                core.claim(start, end)?;
                core.forget_advice(start, end);
                core.make_plain(start, end)?;
            }
            Call::Protect { start, end, prot } => core().protect(start, end, prot)?,
            Call::Discard { start, end } => return self.discard(start, end, zero),
            Call::Extend { start, end, new_end } => {
                let mut core = core();
                let is_longer = core.extend(start, end, new_end)?;
                if is_longer {
                    core.inherit(end - PAGE, end, new_end)?;
                }
                return Ok(usize::from(is_longer));
            }
            Call::Release { start, end } => core().release(start, end)?,
            Call::AllMapped { start, end } => core().all_mapped(start, end)?,
            Call::MappedMax(bytes) => core().addresses.mapped_max = bytes,
            Call::DontFork { start, end, on } => {
                let mut core = core();
                core.all_mapped(start, end)?;
                core.addresses.unforked.set(start, end, on);
            }
            Call::WipeOnFork { start, end, on } => {
                let mut core = core();
                core.all_mapped(start, end)?;
                core.wipe_on_fork(start, end, on)?;
            }
            Call::Inherit { from, start, end } => core().inherit(from, start, end)?,
            Call::IsFree { start, end } => {
                let core = core();
                return Ok(usize::from(
                    !core.addresses.mapped.touches(start, end)
                        && !core.addresses.foreign.touches(start, end),
                ));
            }
            Call::OwnerOf { start, end } => {
                return Ok(core().addresses.owner(start, end) as usize);
            }
            Call::AreaAt(addr) => {
                // What is about to leave has another protection for a moment.
                let _core = core();
                let area = hiroma_sys::maps::area_at(addr)
                    .ok_or(PagerError::BadRange { addr, len: PAGE })?;
                return Ok(area.end | area.prot as usize);
            }
            Call::Advise { start, end, advice } => {
                let mut core = core();
                core.advise(start, end, advice);
                core.all_mapped(start, end)?;
            }
            Call::Limit(bytes) => core().set_limit(bytes),
            Call::EvictEverything(on) => {
                let mut core = core();
                core.evict_everything = on;
                self.live.evict_bell.ring();
                return Ok(core.local());
            }
            Call::Publish => {
                let mut core = core();
                core.publish();
                core.publish_slow();
            }
            Call::BeforeFork(keep) => {
                self.fork_is_due = crate::fork::prepare(&self.core, keep);
                return Ok(usize::from(self.fork_is_due));
            }
            Call::MoreToZero(name) => {
                let place = self.rest.iter().position(|&(known, _)| known == name);
                *zero = place.map(|place| self.rest.swap_remove(place).1).unwrap_or_default();
            }
            Call::Pin { .. } | Call::Unpin { .. } | Call::UnpinAll | Call::PinAll => {
                return core().act_on_pins(call);
            }
        }
        Ok(0)
    }

    /// Discards the content of a range: it reads as zeros and takes no memory, near or far. Like the
    /// kernel's advice, it acts on what is mapped, and fails if that is not all.
    fn discard(
        &mut self,
        start: usize,
        end: usize,
        zero: &mut Vec<(usize, usize)>,
    ) -> Result<usize, PagerError> {
        let mut core = self.core.lock();
        if !core.addresses.special.touches(start, end)
            && !core.addresses.foreign.touches(start, end)
        {
            *zero = core.forget(start, end, By::Us);
            return core.all_mapped(start, end).map(|()| 0);
        }
        // It is not writable, so it cannot be zeroed by writing: the kernel removes the pages.
        let arena = core.arena.clone();
        if core.live.path == Path::Fallback {
            let _ = core.forget(start, end, By::Kernel);
            return arena
                .advise(start, end - start, Advise::Drop)
                .map_err(PagerError::io("MADV_DONTNEED"))
                .and_then(|()| core.all_mapped(start, end))
                .map(|()| 0);
        }
        // The page table may be being freed at this moment: the events of both would look alike.
        while core.own_removals.iter().any(|own| own.start < end && start < own.end) {
            drop(core);
            thread::sleep(Duration::from_micros(50));
            core = self.core.lock();
        }
        core.discarding.push((start, end));
        drop(core);
        // Without the lock: the kernel waits until the fault thread has read the event.
        let result =
            arena.advise(start, end - start, Advise::Drop).map_err(PagerError::io("MADV_DONTNEED"));
        let mut core = self.core.lock();
        core.coming.remove(start, end);
        let place = core.discarding.iter().position(|&range| range == (start, end));
        place.map(|place| core.discarding.swap_remove(place));
        if !core.reclaim_queue.is_empty() {
            core.live.evict_bell.ring();
        }
        result.and_then(|()| core.all_mapped(start, end)).map(|()| 0)
    }
}

fn answer(
    result: Result<usize, PagerError>,
    ranges: &[(usize, usize)],
    more: Option<usize>,
) -> Answer {
    let mut zero = [(0, 0); RANGES];
    zero[..ranges.len()].copy_from_slice(ranges);
    Answer { result, zero, count: ranges.len(), more }
}

impl Core {
    fn place(
        &mut self,
        len: usize,
        align: usize,
        alone: bool,
        prot: i32,
    ) -> Result<usize, PagerError> {
        let none = || PagerError::NoAddresses {
            wanted: Bytes(len as u64),
            arena: Bytes(self.arena.len() as u64),
        };
        if !self.addresses.may_map(len) {
            return Err(PagerError::OwnLimit { wanted: Bytes(len as u64) });
        }
        // Reservations leave addresses for what will hold data.
        let is_reservation = prot == libc::PROT_NONE && alone;
        if is_reservation && self.addresses.mapped.bytes() + len > self.arena.len() / 8 * 7 {
            return Err(none());
        }
        let placed = self.addresses.place(len, align.max(PAGE), alone).ok_or_else(none)?;
        if let Some((start, opened)) = placed.opened {
            self.open_extents(start, opened, prot)?;
        }
        if prot != PROT_RW {
            self.addresses.special.insert(placed.addr, placed.addr + len.next_multiple_of(EXTENT));
        } else if self.addresses.special.touches(placed.addr, placed.addr + len) {
            // A part of a shared extent that was unmapped earlier.
            self.make_plain(placed.addr, placed.addr + len)?;
        }
        Ok(placed.addr)
    }

    /// Changes the protection of a range. The content is unchanged.
    fn protect(&mut self, start: usize, end: usize, prot: i32) -> Result<(), PagerError> {
        self.all_mapped(start, end)?;
        self.mark_mixed(start, end);
        if prot == PROT_RW {
            self.addresses.special.remove(start, end);
        } else {
            self.addresses.special.insert(start, end);
        }
        // The processor fetches code often and from everywhere, so code stays local, once it is
        // used: what is reserved for it is larger.
        if prot & libc::PROT_EXEC != 0 {
            self.addresses.code.insert(start, end);
        } else if self.addresses.code.touches(start, end) {
            self.addresses.code.remove(start, end);
            self.release_held();
        }
        self.recorder.note(
            "protect",
            ((start - self.arena.base()) / PAGE) as u64,
            end - start,
            prot as usize,
        );
        self.arena.protect(start, end - start, prot).map_err(PagerError::io("mprotect"))?;
        self.unmark_mixed(start, end);
        Ok(())
    }

    /// Like the kernel, which refuses ranges with holes (ENOMEM).
    fn all_mapped(&self, start: usize, end: usize) -> Result<(), PagerError> {
        let mapped = self.addresses.mapped.covers(start, end);
        if mapped { Ok(()) } else { Err(PagerError::NotMapped { addr: start, len: end - start }) }
    }

    /// Grows a mapping in place, if that is possible.
    fn extend(&mut self, start: usize, end: usize, new_end: usize) -> Result<bool, PagerError> {
        if self.addresses.owner(start, end) != Owner::Pager {
            return Err(PagerError::NotWhole { addr: start, len: end - start });
        }
        if !self.addresses.is_plain(start, end) {
            return Ok(false);
        }
        let Some(opened) = self.addresses.extend(end, new_end - end) else { return Ok(false) };
        if let Some((from, len)) = opened {
            self.open_extents(from, len, PROT_RW)?;
        }
        // The rest of the last extent may have been inaccessible.
        self.make_plain(end, new_end)?;
        Ok(true)
    }

    /// Forgets a range because something else (a file, shared memory) is about to be mapped over
    /// it.
    fn release(&mut self, start: usize, end: usize) -> Result<(), PagerError> {
        self.claim(start, end)?;
        self.forget_advice(start, end);
        self.mark_mixed(start, end);
        let _ = self.forget(start, end, By::Unmapped);
        self.addresses.foreign.insert(start, end);
        Ok(())
    }

    /// Unmaps a range, unless there is something to zero before. Returns 1 if it did.
    fn forget_and_unmap(
        &mut self,
        start: usize,
        end: usize,
        zero: &mut Vec<(usize, usize)>,
    ) -> Result<usize, PagerError> {
        *zero = self.forget_mapped(start, end)?;
        if !zero.is_empty() {
            return Ok(0);
        }
        self.unmap(start, end)?;
        Ok(1)
    }

    /// Forgets the content of everything that is mapped in a range, which is made readable and
    /// writable first. Returns the ranges that the caller must zero, because they share extents
    /// with other mappings.
    fn forget_mapped(
        &mut self,
        start: usize,
        end: usize,
    ) -> Result<Vec<(usize, usize)>, PagerError> {
        self.make_plain(start, end)?;
        let mut to_zero = Vec::new();
        // Canary "content goes before its addresses": the next user of the addresses finds the
        // content.
        if canary::is_broken("content goes before its addresses") {
            return Ok(to_zero);
        }
        for (from, to) in self.addresses.closing(start, end) {
            for (from, to) in self.forget(from, to, By::Us) {
                // What was unmapped before is zero, and may not be accessible.
                to_zero.extend(self.addresses.mapped.overlaps(from.max(start), to.min(end)));
            }
        }
        Ok(to_zero)
    }
}

impl Core {
    /// Memory that is locked in place, and no longer.
    fn act_on_pins(&mut self, call: Call) -> Result<usize, PagerError> {
        match call {
            Call::Pin { start, end } => {
                self.all_mapped(start, end)?;
                self.addresses.pinned.insert(start, end);
                return Ok(usize::from(self.addresses.is_plain(start, end)));
            }
            Call::Unpin { start, end } => {
                self.addresses.pinned.remove(start, end);
                self.release_held();
                self.all_mapped(start, end)?;
            }
            Call::UnpinAll => {
                self.addresses.pinned = Default::default();
                self.release_held();
            }
            Call::PinAll => {
                let addresses = &mut self.addresses;
                let mapped = addresses.mapped.overlaps(0, usize::MAX);
                mapped.iter().for_each(|&(start, end)| addresses.pinned.insert(start, end));
            }
            _ => unreachable!("only pins come here"),
        }
        Ok(0)
    }
}
