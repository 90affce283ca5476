//! Fork: parent and child continue with a pager each.
//!
//! The child's memory is a copy of the parent's, including the pager's tables. So the child only
//! needs its own descriptors and threads, and a store that preserves its content of the time of the
//! fork until the child has ended. Managed memory is marked MADV_DONTFORK except during a fork that
//! the pager knows of: a child that was made by a raw system call has no memory there and crashes,
//! instead of reading zeros.
//!
//! The parent's pager stops, with the lock taken, from the moment at which it reports that to the
//! forking thread until that thread has forked, so the child's copy is consistent. Pages that the C
//! library touches in between must be in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hiroma_policy::{Origin, PageBits};
use hiroma_sys::lock::Lock;
use hiroma_sys::uffd::{self, Message, Watch};
use hiroma_sys::vm::{self, Advise};
use hiroma_sys::{fds, helper, network};
use hiroma_units::{BlockId, EXTENT, PAGE, PAGES_PER_EXTENT};

use crate::Pager;
use crate::canary;
use crate::control::Counter;
use crate::core::Core;
use crate::discard::By;
use crate::extent::{Copy, Mode, flag};
use crate::fatal;
use crate::host::{self, Promise};
use crate::inherit;
use crate::life::Fork;
use crate::live::Live;
use crate::service::Call;
use crate::store::ForkGuard;

/// Created before a fork, and used by parent and child after it.
pub struct Forking {
    guard: Box<dyn ForkGuard>,
    number: u64,
}

impl Pager {
    /// To be called in the forking thread before `fork`. The pager stops until
    /// `after_fork_in_parent` and `after_fork_in_child`. The pages at the addresses in `keep` are
    /// then present in both, without a fault.
    pub fn before_fork(&self, keep: &'static [AtomicUsize]) {
        loop {
            for addr in keep
                .iter()
                .map(|addr| addr.load(Ordering::Relaxed))
                .filter(|&addr| self.contains(addr))
            {
                vm::fault_in(addr);
            }
            if matches!(self.calls.ask(Call::BeforeFork(keep)).result, Ok(1)) {
                return;
            }
        }
    }

    /// To be called in the parent after `fork`, whether it succeeded or not.
    pub fn after_fork_in_parent(&self) {
        self.gate.open();
        self.calls.ring();
    }

    /// To be called in the child after `fork`, before anything else there.
    pub fn after_fork_in_child(&self) {
        fatal::speak_through_parent();
        let as_helper = helper::process().is_some();
        helper::forget();
        uffd::forget_device();
        network::forget();
        host::note_program(self.config.control_dir.as_deref());
        self.calls.forget();
        let ready = Arc::new(Promise::<Result<(), String>>::default());
        let (pager, told) = (self.clone(), ready.clone());
        let started = host::start(as_helper, move || pager.live_in_child(&told));
        if let Err(error) = started {
            fatal::die(&format!("in a forked child: starting the pager: {error}"));
        }
        let still = || helper::process().is_none_or(helper::exists);
        let begun = ready
            .wait(still)
            .unwrap_or_else(|| Err("the pager ended before it could begin".to_owned()));
        if let Err(error) = begun {
            fatal::die(&format!("in a forked child: {error}"));
        }
    }

    /// Runs the pager's first thread in a forked child.
    fn live_in_child(&self, ready: &Arc<Promise<Result<(), String>>>) {
        // The thread that forked is the only other one, and waits: it ends the child with its own
        // exit code. A signal from inside does not reach the first process of a pid namespace.
        let die = |error: &dyn std::fmt::Display| -> ! {
            ready.keep(Err(error.to_string()));
            fatal::leave_last()
        };
        let mut core = self.core.resume_held_in_child();
        let Some(Forking { guard, number }) = core.forking.take() else {
            die(&"the fork was not prepared; please report this")
        };
        let numbers = core.store.descriptors();
        numbers.iter().for_each(|&number| fds::occupy(number));
        let inherited = core
            .live
            .address
            .as_ref()
            .ok_or(rustix::io::Errno::NOTCONN)
            .and_then(|address| inherit::ask(address, number));
        core.live.mark.store(0, Ordering::Relaxed);
        match inherited {
            Ok(inherited) => {
                if let Some(device) = inherited.device {
                    uffd::keep_device(device);
                }
                inherited.network.into_iter().for_each(network::enter);
                inherited
                    .descriptors
                    .into_iter()
                    .zip(numbers)
                    .for_each(|(fd, number)| fds::place(fd, number));
                // These stay open while this process or a descendant runs this program: the end
                // of all of them notifies the parent and those before it.
                let lineage = inherited.lineage.into_iter().chain([inherited.connection]);
                let before = std::mem::replace(&mut core.lineage, lineage.collect());
                before.into_iter().for_each(std::mem::forget);
            }
            Err(error) if !numbers.is_empty() || core.store.keeps_for_children() => die(&format!(
                "it cannot reach the pager of its parent ({error}), which keeps what its far memory is made of"
            )),
            // The numbers are the parent's.
            Err(_) => core.lineage.drain(..).for_each(std::mem::forget),
        }
        let (live, listener) =
            Live::open(&self.config, &self.arena).unwrap_or_else(|error| die(&error));
        let live = Arc::new(live);
        let (base, len) = self.arena();
        // Ranges that the kernel has not copied are mapped again, to be unmapped below.
        for (from, to) in core.addresses.unforked.overlaps(base, base + len) {
            self.arena.reclaim(from, to - from).unwrap_or_else(|error| die(&error));
        }
        let ours = core.addresses.foreign.gaps(base, base + len);
        self.watch(&live, &ours).unwrap_or_else(|error| die(&error));
        if let Some(Err(error)) = live.staging.as_ref().map(|staging| core.frames.register(staging))
        {
            die(&format!("registering the staging area: {error}"));
        }
        if let Err(error) = guard.adopt() {
            die(&error);
        }
        std::mem::forget(guard);
        // The numbers of the parent's descriptors are invalid here, or refer to other files.
        std::mem::forget(std::mem::replace(&mut core.live, live.clone()));
        core.adopted();
        if let Err(page) = core.take_over_touched() {
            die(&format!(
                "something has accessed the page at {page:#x} between the fork and the pager's start, and \
                 would have read zeros instead of its content; please report this"
            ));
        }
        let store = core.store.clone();
        drop(core);
        self.spawn(&live, &store).unwrap_or_else(|error| die(&error));
        ready.keep(Ok(()));
        self.live_on(live, listener);
    }

    /// Registers the ranges `ours` of the arena with userfaultfd, and applies the same advice to
    /// all of them. Ranges over which the program has mapped something else are not ours.
    pub(crate) fn watch(
        &self,
        live: &Live,
        ours: &[(usize, usize)],
    ) -> Result<(), crate::PagerError> {
        for &(from, to) in ours {
            live.uffd
                .register(from, to - from, Watch::MissingAndWriteProtect)
                .map_err(crate::PagerError::io("registering the arena"))?;
            // Without transparent huge pages in the kernel this fails, and small pages are used.
            let _ = self.arena.advise(from, to - from, live.path.advice());
            self.arena
                .advise(from, to - from, Advise::DontFork)
                .map_err(crate::PagerError::io("MADV_DONTFORK"))?;
        }
        Ok(())
    }
}

/// Stops everything for a fork, with the lock taken. Returns false if one of the pages at `keep` is
/// not in memory.
pub fn prepare(lock: &Lock<Core>, keep: &[AtomicUsize]) -> bool {
    let mut core = lock.lock();
    core.quiesce = true;
    // Canary "nothing under way in a fork": the child has requests that only its parent can end.
    while core.in_flight > 0 && !canary::is_broken("nothing under way in a fork") {
        drop(core);
        std::thread::sleep(Duration::from_micros(20));
        core = lock.lock();
    }
    // Pages that cannot be read are not touched either.
    let is_due =
        |&addr: &usize| core.arena.contains(addr) && core.addresses.is_plain(addr, addr + 1);
    let mut inside = keep.iter().map(|addr| addr.load(Ordering::Relaxed)).filter(is_due);
    // Canary "kept over a fork": the child may touch missing pages before it has a pager.
    if !inside.all(|addr| core.is_mapped_page(addr)) && !canary::is_broken("kept over a fork") {
        core.quiesce = false;
        return false;
    }
    // Removals that were read are acted on now: the child starts without messages.
    core.catch_up();
    core.freeze();
    Lock::hold(core);
    true
}

/// Called in the parent when the fork is over.
pub fn go_on_in_parent(lock: &Lock<Core>, live: &Live) {
    let mut core = lock.resume_held();
    core.advise_ours([Advise::DontFork, core.live.path.advice()]);
    if let Some(Forking { guard, number }) = core.forking.take() {
        // Canary "kept for a child": content that the child may still read is overwritten.
        if !canary::is_broken("kept for a child") {
            core.new_forks.push(Fork { number, guard, since: Instant::now() });
        }
    }
    core.forked = true;
    core.quiesce = false;
    drop(core);
    live.evict_bell.ring();
    live.fetch_bell.ring();
    live.wake_fault_thread();
}

impl Core {
    fn freeze(&mut self) {
        let guard = self
            .store
            .prepare_fork()
            .unwrap_or_else(|error| fatal::die(&format!("cannot fork: {error}")));
        // A child has no pager at first. Where it accesses fresh memory, a huge page of zeros would
        // cover the content of the pages around that is elsewhere.
        self.advise_ours([Advise::NoHuge, Advise::DoFork]);
        self.forks_made += 1;
        self.forking = Some(Forking { guard, number: self.forks_made });
    }

    /// Gives advice for the whole arena except ranges over which the program has mapped something
    /// else (it decides about their copying) and ranges that it does not share with children.
    fn advise_ours(&self, advices: [Advise; 2]) {
        for (from, to) in
            self.addresses.foreign.gaps(self.arena.base(), self.arena.base() + self.arena.len())
        {
            for advice in advices {
                let _ = self.arena.advise(from, to - from, advice);
            }
            for (from, to) in self.addresses.unforked.overlaps(from, to) {
                let _ = self.arena.advise(from, to - from, Advise::DontFork);
            }
        }
    }

    /// Continues with the state in a forked child.
    pub(crate) fn adopted(&mut self) {
        self.forked = true;
        self.quiesce = false;
        // The kernel may have acted before the fork on events that the parent has yet to act on.
        for message in std::mem::take(&mut self.pending) {
            if let Message::Remove { start, end } = message {
                self.coming.let_drop(start, end);
            }
        }
        self.handed_over.clear();
        // A page table that the parent was freeing at that moment is not being freed here.
        for own in std::mem::take(&mut self.own_removals) {
            let extent = (own.start - self.arena.base()) / EXTENT;
            self.extents[extent].set(flag::RECLAIMING, false);
        }
        self.discarding.clear();
        // The kernel does not act here on the events that it sent to the parent.
        (0..2).for_each(|_| self.try_again(true));
        // The parent owns them.
        std::mem::forget(std::mem::take(&mut self.new_forks));
        for extent in std::mem::take(&mut self.reclaim_queue) {
            self.extents[extent as usize].set(flag::RECLAIMING, false);
        }
        for (from, to) in self
            .addresses
            .unforked
            .overlaps(self.arena.base(), self.arena.base() + self.arena.len())
        {
            let _ = self.forget(from, to, By::Unmapped);
            self.unmap(from, to)
                .unwrap_or_else(|error| fatal::die(&format!("in a forked child: {error}")));
        }
        // The kernel has not copied ranges that are to be zeros here. Canary "wiped in a child":
        // the state says that it has.
        let is_known = !canary::is_broken("wiped in a child");
        for (from, to) in
            self.addresses.wiped.overlaps(self.arena.base(), self.arena.base() + self.arena.len())
        {
            if is_known {
                let _ = self.forget(from, to, By::Unmapped);
            }
        }
        self.live.page.set(Counter::LimitBytes, self.limit as u64);
        self.publish();
    }

    /// In a forked child, once its memory is watched: what something has accessed before. Pages that
    /// read as zeros are resident from now on; if the state did not know them, they could neither
    /// be discarded nor evicted. Fails with a page whose content is elsewhere: the kernel has put
    /// zeros there.
    pub(crate) fn take_over_touched(&mut self) -> Result<(), usize> {
        // Canary "touched early is known": such a page stays when it is discarded.
        if canary::is_broken("touched early is known") {
            return Ok(());
        }
        let (base, end) = (self.arena.base(), self.arena.base() + self.arena.len());
        let mut there = Vec::new();
        for (from, to) in self.addresses.mapped.overlaps(base, end) {
            if !self.live.memory.pages_there(from, to, &mut there) {
                self.known_pages_there(from, to, &mut there);
            }
        }
        // Mappings can share an extent.
        for (range, pages) in there {
            self.take_over_touched_in(range as usize - base / EXTENT, &pages)?;
        }
        Ok(())
    }

    /// The same as `pages_there`, for extents of which anything is known: a reservation may have
    /// millions.
    fn known_pages_there(&self, from: usize, to: usize, there: &mut Vec<(u64, PageBits)>) {
        let base = self.arena.base();
        for extent in (from - base) / EXTENT..(to - base).div_ceil(EXTENT) {
            if self.extents[extent].is_unused() {
                continue;
            }
            let start = base + extent * EXTENT;
            there.extend(vm::mapped_pages(start).map(|pages| ((start / EXTENT) as u64, pages)));
        }
    }

    fn take_over_touched_in(&mut self, extent: usize, there: &PageBits) -> Result<(), usize> {
        let entry = &self.extents[extent];
        let known = entry.resident_pages(self.sector_order);
        if there.iter().zip(&known).all(|(there, known)| there & !known == 0) {
            return Ok(());
        }
        let (mode, order) = (entry.mode, self.sector_order);
        let start = self.arena.base() + extent * EXTENT;
        for page in (0..PAGES_PER_EXTENT)
            .filter(|page| (there[page / 64] & !known[page / 64]) >> (page % 64) & 1 == 1)
        {
            let (addr, sector) = (start + page * PAGE, page >> order);
            let of_sector =
                BlockId::new((extent * PAGES_PER_EXTENT + (sector << order)) as u64, order);
            let is_ours = self.addresses.mapped.touches(addr, addr + PAGE)
                && !self.addresses.foreign.touches(addr, addr + PAGE);
            let entry = &self.extents[extent];
            if !is_ours || entry.is_resident(sector) {
                continue;
            }
            if self.is_elsewhere(of_sector, mode) {
                return Err(addr);
            }
            self.forget_copies(of_sector);
            // Other pages of the sector may be missing.
            self.extents[extent].set(flag::HOLES, true);
            self.extents[extent].mode = Mode::Small;
            self.admit_fresh(of_sector, 1, Origin::Fresh);
        }
        Ok(())
    }

    /// Whether the content of a sector that is not resident is elsewhere, and no zeros.
    fn is_elsewhere(&self, sector: BlockId, mode: Mode) -> bool {
        let (first, _) = self.sector_range(sector);
        !matches!(self.extent(sector).copy(first), Copy::None | Copy::Pattern(0))
            || self.blocks.contains_key(&self.block_of(sector.page(), mode))
    }

    /// Whether a page of the arena is neither resident nor elsewhere.
    #[cfg(any(test, feature = "model"))]
    pub(crate) fn reads_as_zeros(&self, page: usize) -> bool {
        let extent = &self.extents[page / PAGES_PER_EXTENT];
        let sector = (page % PAGES_PER_EXTENT) >> self.sector_order;
        let block = BlockId::new(
            (page >> self.sector_order << self.sector_order) as u64,
            self.sector_order,
        );
        !extent.has(flag::RESIDENT)
            && !extent.is_resident(sector)
            && !self.is_elsewhere(block, extent.mode)
    }

    /// Whether the page at `addr` is mapped into the program.
    fn is_mapped_page(&self, addr: usize) -> bool {
        let page = ((addr - self.arena.base()) / PAGE) as u64;
        let extent = &self.extents[(addr - self.arena.base()) / EXTENT];
        self.is_resident(self.block_of(page, extent.mode))
    }
}
