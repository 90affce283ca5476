//! The pager as its users see it: ranges of managed memory, and what can be done with them.
//!
//! Threads of the program call these. They take the pager's lock, and touch managed memory only after they have let it go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use hiroma_kernel::lock::Lock;
use hiroma_kernel::uffd::Watch;
use hiroma_kernel::vm::{self, Access, Advise, Reservation};
use hiroma_policy::{Hint, PrefetchRequest};
use hiroma_units::{Bytes, EXTENT, PAGE};

use crate::config::{ARENA_BYTES_MAX, Config};
use crate::control::Snapshot;
use crate::core::{Core, LIMIT_MIN, sector_order};
use crate::discard::By;
use crate::error::PagerError;
use crate::evict::Evicting;
use crate::extent::{Mode, flag};
use crate::fault::Faulting;
use crate::fetch::Prefetching;
use crate::hooks;
use crate::live::{Live, Path};
use crate::quiet::Guarding;
use crate::store::{self, Purpose, Store};

const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// What the program says of a range (as `madvise`, but about far memory).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    Normal,
    /// Will be used soon: fetched ahead as far as there is room.
    WillNeed,
    /// Will not be used for long: leaves before anything else.
    Cold,
    /// Read from one end to the other: moved in whole extents.
    Sequential,
    /// Read here and there: moved in sectors.
    Random,
}

/// Far memory of this process. A handle; clones are the same pager. It runs until the process ends.
#[derive(Clone)]
pub struct Pager {
    pub(crate) core: Arc<Lock<Core>>,
    pub(crate) arena: Arc<Reservation>,
    pub(crate) config: Arc<Config>,
}

impl Pager {
    /// Starts a pager: opens the stores, reserves the arena, starts the threads.
    pub fn start(config: Config) -> Result<Pager, PagerError> {
        hooks::internal(|| Pager::start_inside(config))
    }

    fn start_inside(config: Config) -> Result<Pager, PagerError> {
        if config.local_limit_bytes < LIMIT_MIN {
            return Err(PagerError::LimitTooSmall(Bytes(config.local_limit_bytes)));
        }
        if config.arena_bytes > ARENA_BYTES_MAX {
            return Err(PagerError::ArenaTooLarge(Bytes(config.arena_bytes)));
        }
        let live = Arc::new(Live::open(&config)?);
        let store = store::open(&config, PAGE << sector_order(config.block))?;
        let arena = Arc::new(reserve_arena(config.arena_bytes as usize)?);
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| PagerError::io("getrandom")(errno.into()))?;
        let core = Core::new(&config, live.clone(), arena.clone(), store.clone(), u64::from_ne_bytes(seed))?;
        let pager = Pager { core: Arc::new(Lock::new(core)), arena, config: Arc::new(config) };
        pager.watch(&live)?;
        pager.spawn(&live, &store)?;
        Ok(pager)
    }

    /// Starts the threads of one life.
    pub(crate) fn spawn(&self, live: &Arc<Live>, store: &Arc<dyn Store>) -> Result<(), PagerError> {
        let (core, thread_live) = (self.core.clone(), live.clone());
        let channel = store.open(Purpose::Read)?;
        start_thread("hiroma-fault", move || Faulting::new(core, thread_live, channel).run())?;
        let (core, thread_live) = (self.core.clone(), live.clone());
        let channel = store.open(Purpose::Write)?;
        start_thread("hiroma-evict", move || Evicting::new(core, thread_live, channel).run())?;
        let (core, thread_live) = (self.core.clone(), live.clone());
        let channel = store.open(Purpose::Read)?;
        start_thread("hiroma-fetch", move || Prefetching::new(core, thread_live, channel).run())?;
        let thread_live = live.clone();
        start_thread("hiroma-guard", move || {
            if let Some(guarding) = Guarding::new(thread_live) {
                guarding.run();
            }
        })
    }

    /// Whether `addr` lies in the arena.
    pub fn contains(&self, addr: usize) -> bool {
        self.arena.contains(addr)
    }

    /// First address and length of the arena.
    pub fn arena(&self) -> (usize, usize) {
        (self.arena.base(), self.arena.len())
    }

    /// Maps `len` bytes of zeros, readable and writable, at a multiple of `align`.
    pub fn map(&self, len: usize, align: usize) -> Result<usize, PagerError> {
        self.place(len, align, false, PROT_RW)
    }

    /// Reserves `len` bytes of address space without access; `protect` or `refresh` make it usable.
    pub fn reserve(&self, len: usize, align: usize) -> Result<usize, PagerError> {
        self.place(len, align, true, libc::PROT_NONE)
    }

    fn place(&self, len: usize, align: usize, alone: bool, prot: i32) -> Result<usize, PagerError> {
        let none = || PagerError::NoAddresses { wanted: Bytes(len as u64), arena: Bytes(self.arena.len() as u64) };
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(none)?;
        let mut core = self.core.lock();
        let placed = core.addresses.place(len, align.max(PAGE), alone).ok_or_else(none)?;
        if let Some((start, opened)) = placed.opened {
            core.open_extents(start, opened, prot)?;
        }
        if prot != PROT_RW {
            core.addresses.special.insert(placed.addr, placed.addr + len.next_multiple_of(EXTENT));
        }
        Ok(placed.addr)
    }

    fn check(&self, addr: usize, len: usize) -> Result<(usize, usize), PagerError> {
        let bad = || PagerError::BadRange { addr, len };
        let end = len.checked_next_multiple_of(PAGE).and_then(|len| addr.checked_add(len)).ok_or_else(bad)?;
        let (base, size) = self.arena();
        if addr % PAGE != 0 || addr < base || end > base + size { Err(bad()) } else { Ok((addr, end)) }
    }

    /// Unmaps a range, or what is mapped in it. Its content is gone, also where it was far.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        let mut core = self.core.lock();
        core.make_plain(start, end)?;
        let to_zero = core.forget_mapped(start, end);
        drop(core);
        // Before the addresses are given back: from then on they can be somebody else's.
        to_zero.into_iter().for_each(|(from, to)| vm::zero(from, to - from));
        self.core.lock().unmap(start, end)
    }

    /// Makes a range zeros again and gives it the protection `prot`: what `mmap(MAP_FIXED | MAP_ANONYMOUS)` does.
    pub fn refresh(&self, addr: usize, len: usize, prot: i32) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        let mut core = self.core.lock();
        core.claim(start, end)?;
        core.make_plain(start, end)?;
        drop(core);
        self.discard(addr, len)?;
        if prot == PROT_RW { Ok(()) } else { self.protect(addr, len, prot) }
    }

    /// Changes the protection of a range (`PROT_*`). Content stays.
    pub fn protect(&self, addr: usize, len: usize, prot: i32) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        let mut core = self.core.lock();
        core.claim(start, end)?;
        core.mark_mixed(start, end);
        if prot == PROT_RW {
            core.addresses.special.remove(start, end);
        } else {
            core.addresses.special.insert(start, end);
        }
        core.recorder.note("protect", ((start - self.arena.base()) / PAGE) as u64, end - start, prot as usize);
        core.arena.protect(start, end - start, prot).map_err(PagerError::io("mprotect"))?;
        core.unmark_mixed(start, end);
        Ok(())
    }

    /// Discards the content of a range: it reads as zeros, and takes up no room, near or far.
    pub fn discard(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        let mut core = self.core.lock();
        let plain = !core.addresses.special.touches(start, end) && !core.addresses.foreign.touches(start, end);
        if plain {
            let to_zero = core.forget(start, end, By::Us);
            drop(core);
            to_zero.into_iter().for_each(|(from, to)| vm::zero(from, to - from));
            return Ok(());
        }
        // Not writable, so not to be zeroed by writing: the kernel takes the pages out.
        if core.live.path == Path::Fallback {
            let _ = core.forget(start, end, By::Kernel);
            return core.arena.advise(start, end - start, Advise::Drop).map_err(PagerError::io("MADV_DONTNEED"));
        }
        // The page table may be on its way back just now: the events of both would look alike.
        while core.own_removals.iter().any(|own| own.start < end && start < own.end) {
            drop(core);
            thread::sleep(Duration::from_micros(50));
            core = self.core.lock();
        }
        core.discarding.push((start, end));
        drop(core);
        let result = self.arena.advise(start, end - start, Advise::Drop).map_err(PagerError::io("MADV_DONTNEED"));
        let mut core = self.core.lock();
        let place = core.discarding.iter().position(|&range| range == (start, end));
        place.map(|place| core.discarding.swap_remove(place));
        if !core.reclaim_queue.is_empty() {
            core.live.evict_bell.ring();
        }
        result
    }

    /// Makes a mapping longer or shorter, in place or elsewhere; returns where it is then. What `mremap` does.
    pub fn resize(&self, addr: usize, old_len: usize, new_len: usize, may_move: bool) -> Result<usize, PagerError> {
        let (start, end) = self.check(addr, old_len)?;
        let bad = PagerError::BadRange { addr, len: new_len };
        let Some(new_len) = new_len.checked_next_multiple_of(PAGE).filter(|&len| len > 0) else { return Err(bad) };
        let old_len = end - start;
        if new_len <= old_len {
            if new_len < old_len {
                self.unmap(start + new_len, old_len - new_len)?;
            }
            return Ok(start);
        }
        let mut core = self.core.lock();
        let extended = if core.addresses.is_plain(start, end) { core.addresses.extend(end, new_len - old_len) } else { None };
        if let Some(opened) = extended {
            if let Some((from, len)) = opened {
                core.open_extents(from, len, PROT_RW)?;
            }
            // The rest of the last extent may have been without access.
            core.make_plain(end, start + new_len)?;
            return Ok(start);
        }
        drop(core);
        if !may_move {
            return Err(PagerError::NoAddresses { wanted: Bytes(new_len as u64), arena: Bytes(self.arena.len() as u64) });
        }
        let new = self.map(new_len, PAGE)?;
        vm::copy(new, start, old_len);
        self.unmap(start, old_len)?;
        Ok(new)
    }

    /// Forgets a range because something else is about to be mapped over it (a file, shared memory).
    pub fn release(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        let mut core = self.core.lock();
        core.claim(start, end)?;
        core.mark_mixed(start, end);
        let _ = core.forget(start, end, By::Unmapped);
        core.addresses.foreign.insert(start, end);
        Ok(())
    }

    /// Fetches a range and keeps it local (`mlock`, or because it is about to hold code).
    pub fn pin(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        let mut core = self.core.lock();
        core.addresses.pinned.insert(start, end);
        let plain = core.addresses.is_plain(start, end);
        drop(core);
        if plain {
            vm::touch(start, end - start);
        }
        Ok(())
    }

    /// Ends what `pin` began.
    pub fn unpin(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.core.lock().addresses.pinned.remove(start, end);
        Ok(())
    }

    /// Says how a range will be used. Never fails, never changes content.
    pub fn advise(&self, addr: usize, len: usize, advice: Advice) {
        if let Ok((start, end)) = self.check(addr / PAGE * PAGE, len + addr % PAGE) {
            self.core.lock().advise(start, end, advice);
        }
    }

    /// Changes the local limit; in force when the evictor has caught up.
    pub fn set_limit(&self, bytes: u64) -> Result<(), PagerError> {
        if bytes < LIMIT_MIN {
            return Err(PagerError::LimitTooSmall(Bytes(bytes)));
        }
        self.core.lock().set_limit(bytes as usize);
        Ok(())
    }

    /// Makes everything far that can be; for measurements. Waits until it is.
    pub fn evict_all(&self) -> Result<(), PagerError> {
        self.core.lock().evict_everything = true;
        let mut last = (usize::MAX, Instant::now());
        loop {
            let core = self.core.lock();
            let local = core.local();
            core.live.evict_bell.ring();
            drop(core);
            if local < last.0 {
                last = (local, Instant::now());
            }
            if local == 0 || last.1.elapsed() > Duration::from_secs(2) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.core.lock().evict_everything = false;
        Ok(())
    }

    /// What happened lately to the extent of an address, one event a line; empty without the feature `recorder`.
    pub fn recent(&self, addr: usize) -> String {
        self.core.lock().recorder.of_extent(((addr - self.arena.base()) / PAGE) as u64)
    }

    /// Statistics, now.
    pub fn snapshot(&self) -> Snapshot {
        let core = self.core.lock();
        core.publish();
        core.publish_slow();
        core.live.page.snapshot()
    }

    /// Which kernel interface moves pages: `full` or `fallback`.
    pub fn path(&self) -> &'static str {
        match self.core.lock().live.path {
            Path::Full => "full",
            Path::Fallback => "fallback",
        }
    }

    /// Ends the threads. Managed memory that is far cannot be reached any more.
    pub fn stop(&self) {
        let live = self.core.lock().live.clone();
        live.stop.store(true, Ordering::SeqCst);
        live.evict_bell.ring();
        live.fetch_bell.ring();
        live.quiet.stop();
        live.wake_fault_thread();
    }
}

impl Core {
    /// Makes extents usable that were not in use.
    fn open_extents(&mut self, start: usize, len: usize, prot: i32) -> Result<(), PagerError> {
        self.arena.protect(start, len, prot).map_err(PagerError::io("mprotect"))?;
        self.regions.insert(start, Default::default());
        Ok(())
    }

    /// Takes a range into use that the program chose itself.
    fn claim(&mut self, start: usize, end: usize) -> Result<(), PagerError> {
        for (from, to) in self.addresses.claim(start, end) {
            self.open_extents(from, to - from, PROT_RW)?;
        }
        Ok(())
    }

    /// Forgets the content of what is mapped in a range. Returns what the caller must zero: it shares extents with others.
    fn forget_mapped(&mut self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut to_zero = Vec::new();
        for (from, to) in self.addresses.mapped.overlaps(start, end) {
            to_zero.extend(self.forget(from, to, By::Us));
        }
        to_zero
    }

    /// Makes what is mapped in a range ours, readable and writable, so that it can be zeroed and used again.
    fn make_plain(&mut self, start: usize, end: usize) -> Result<(), PagerError> {
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

    /// Gives addresses back whose content has been forgotten.
    fn unmap(&mut self, start: usize, end: usize) -> Result<(), PagerError> {
        self.recorder.note("unmap", ((start - self.arena.base()) / PAGE) as u64, end - start, 0);
        let closed = self.addresses.unmap(start, end);
        for &(from, to) in &closed {
            let _ = self.forget(from, to, By::Us);
            self.arena.protect(from, to - from, libc::PROT_NONE).map_err(PagerError::io("mprotect"))?;
            for extent in (from - self.arena.base()) / EXTENT..(to - self.arena.base()) / EXTENT {
                self.extents[extent].set(flag::MIXED, false);
                self.extents[extent].history = Default::default();
            }
            let old: Vec<usize> = self.regions.range(from..to).map(|(&start, _)| start).collect();
            old.iter().for_each(|start| {
                self.regions.remove(start);
            });
        }
        Ok(())
    }

    /// Makes a part managed again that something else had been mapped over.
    fn reclaim(&mut self, from: usize, to: usize) -> Result<(), PagerError> {
        let (watch, huge) = match self.live.path {
            Path::Full => (Watch::Missing, Advise::Huge),
            Path::Fallback => (Watch::MissingAndWriteProtect, Advise::NoHuge),
        };
        self.arena.reclaim(from, to - from).map_err(PagerError::io("mapping a hole anew"))?;
        self.live.uffd.register(from, to - from, watch).map_err(PagerError::io("registering a hole anew"))?;
        let _ = self.arena.advise(from, to - from, huge);
        let _ = self.arena.advise(from, to - from, Advise::DontFork);
        Ok(())
    }

    /// Extents that are readable and writable as a whole can move as a whole again.
    pub(crate) fn unmark_mixed(&mut self, start: usize, end: usize) {
        let base = self.arena.base();
        for extent in (start - base) / EXTENT..(end - base).div_ceil(EXTENT) {
            let from = base + extent * EXTENT;
            if self.extents[extent].has(flag::MIXED)
                && !self.addresses.special.touches(from, from + EXTENT)
                && !self.addresses.foreign.touches(from, from + EXTENT)
            {
                self.extents[extent].set(flag::MIXED, false);
            }
        }
    }

    fn advise(&mut self, start: usize, end: usize, advice: Advice) {
        let base = self.arena.base();
        for extent in (start - base) / EXTENT..(end - base).div_ceil(EXTENT) {
            let page = (extent * EXTENT / PAGE) as u64;
            match advice {
                Advice::Cold => self.hint_extent(extent, Hint::Cold),
                Advice::WillNeed if self.reserve() > self.reserve_target() as isize => {
                    self.hint_extent(extent, Hint::Hot);
                    self.prefetch(&[PrefetchRequest { page, unit: (EXTENT / PAGE) as u16, leave_unmapped: false }]);
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
                for sector in 0..self.sectors() {
                    if self.extents[extent].is_resident(sector) {
                        let block = self.block_of(page + ((sector as u64) << self.sector_order), Mode::Small);
                        self.replacement.hinted(block, hint);
                    }
                }
            }
        }
    }
}

/// Reserves address space, less of it where a limit on address space forbids.
fn reserve_arena(wanted: usize) -> Result<Reservation, PagerError> {
    let mut len = wanted.next_multiple_of(EXTENT);
    loop {
        match Reservation::new(len, EXTENT, Access::None) {
            Ok(arena) => return Ok(arena),
            Err(_) if len > 1 << 30 => len = (len / 2).next_multiple_of(EXTENT),
            Err(error) => return Err(PagerError::io("reserving address space (is there a limit? see `ulimit -v`)")(error)),
        }
    }
}

fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), PagerError> {
    let work = move || {
        hooks::enter_thread();
        body();
    };
    // A handler of the program that touched managed memory on a thread of the pager would wait for itself.
    hiroma_kernel::signals::blocked(|| Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(work))
        .map_err(PagerError::io("starting a thread"))?;
    Ok(())
}
