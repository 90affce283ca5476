//! Forking: parent and child each go on with a pager of their own.
//!
//! The child's memory is a copy of the parent's, the pager's tables included, so it only needs descriptors and threads of its own,
//! and a store that keeps what it held at the fork until the child is gone. Managed memory is marked MADV_DONTFORK except during a
//! fork that we know of: a child made by a raw system call finds no memory there and ends, instead of reading zeros.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use hiroma_kernel::lock::Lock;
use hiroma_kernel::uffd::Watch;
use hiroma_kernel::vm::{self, Advise};
use hiroma_units::PAGE;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::Pager;
use crate::core::Core;
use crate::fatal;
use crate::live::{Live, Path};
use crate::store::ForkGuard;

/// A child that may still read what the store held when it was forked.
pub struct Child {
    /// The child (alone) holds the other end: its end is the child's.
    pipe: OwnedFd,
    _guard: Box<dyn ForkGuard>,
}

impl Child {
    /// Whether the child has ended, or runs another program.
    pub fn is_gone(&self) -> bool {
        matches!(rustix::io::read(&self.pipe, &mut [0u8; 8]), Ok(0))
    }
}

/// What is made before a fork and split between parent and child after it.
pub struct Forking {
    guard: Box<dyn ForkGuard>,
    parent_end: OwnedFd,
    child_end: OwnedFd,
}

impl Pager {
    /// To be called in the forking thread before `fork`; the pager stands still from here until `after_fork_in_parent` and
    /// `after_fork_in_child`. The pages at `keep` are certain to be in both, without a fault: for what the C library touches in
    /// between.
    pub fn before_fork(&self, keep: &[usize]) {
        loop {
            for &addr in keep.iter().filter(|&&addr| self.contains(addr)) {
                vm::touch(addr / PAGE * PAGE, PAGE);
            }
            let mut core = self.core.lock();
            core.quiesce = true;
            while core.in_flight > 0 {
                drop(core);
                std::thread::sleep(Duration::from_micros(20));
                core = self.core.lock();
            }
            let all_there = keep.iter().filter(|&&addr| self.contains(addr)).all(|&addr| core.is_mapped_page(addr));
            if all_there {
                // What was read of removals is acted on now: the child starts without messages.
                core.catch_up();
                self.freeze(&mut core);
                Lock::hold(core);
                return;
            }
            core.quiesce = false;
        }
    }

    fn freeze(&self, core: &mut Core) {
        let guard = core.store.prepare_fork().unwrap_or_else(|error| fatal::die(&format!("cannot fork: {error}")));
        let (parent_end, child_end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .unwrap_or_else(|errno| fatal::die(&format!("cannot fork: no pipe to be had: {errno}")));
        let _ = self.arena.advise(self.arena.base(), self.arena.len(), Advise::DoFork);
        core.forking = Some(Forking { guard, parent_end, child_end });
    }

    /// To be called in the parent after `fork`, whether it succeeded or not.
    pub fn after_fork_in_parent(&self) {
        let mut core = self.core.resume_held();
        let _ = self.arena.advise(self.arena.base(), self.arena.len(), Advise::DontFork);
        if let Some(Forking { guard, parent_end, child_end }) = core.forking.take() {
            drop(child_end);
            core.new_forks.push(Child { pipe: parent_end, _guard: guard });
        }
        core.forked = true;
        core.quiesce = false;
        let live = core.live.clone();
        drop(core);
        live.evict_bell.ring();
        live.fetch_bell.ring();
        live.wake_fault_thread();
    }

    /// To be called in the child after `fork`, before anything else there.
    pub fn after_fork_in_child(&self) {
        let mut core = self.core.resume_held_in_child();
        let live = Live::open(&self.config).unwrap_or_else(|error| fatal::die(&format!("in a forked child: {error}")));
        let live = Arc::new(live);
        self.watch(&live).unwrap_or_else(|error| fatal::die(&format!("in a forked child: {error}")));
        if let Some(Err(error)) = live.staging.as_ref().map(|staging| core.frames.register(staging)) {
            fatal::die(&format!("in a forked child: registering the staging area: {error}"));
        }
        if let Some(Forking { guard, parent_end, child_end }) = core.forking.take() {
            drop(parent_end);
            // Kept open for as long as this process runs this program: its end tells the parent.
            std::mem::forget(child_end);
            if let Err(error) = guard.adopt() {
                fatal::die(&format!("in a forked child: {error}"));
            }
            std::mem::forget(guard);
        }
        core.adopted(live.clone());
        let store = core.store.clone();
        drop(core);
        self.spawn(&live, &store).unwrap_or_else(|error| fatal::die(&format!("in a forked child: {error}")));
    }

    /// Watches the arena and gives the kernel the advice that holds for all of it.
    pub(crate) fn watch(&self, live: &Live) -> Result<(), crate::PagerError> {
        let (base, len) = self.arena();
        let (watch, huge) = match live.path {
            Path::Full => (Watch::Missing, Advise::Huge),
            Path::Fallback => (Watch::MissingAndWriteProtect, Advise::NoHuge),
        };
        live.uffd.register(base, len, watch).map_err(crate::PagerError::io("registering the arena"))?;
        // Without transparent huge pages in the kernel this fails, and small pages serve.
        let _ = self.arena.advise(base, len, huge);
        self.arena.advise(base, len, Advise::DontFork).map_err(crate::PagerError::io("MADV_DONTFORK"))
    }
}

impl Core {
    /// The state goes on in a forked child.
    fn adopted(&mut self, live: Arc<Live>) {
        self.live = live;
        self.forked = true;
        self.quiesce = false;
        self.pending.clear();
        // A page table that the parent was giving back at that moment is not being given back here.
        for own in std::mem::take(&mut self.own_removals) {
            let extent = (own.start - self.arena.base()) / hiroma_units::EXTENT;
            self.extents[extent].set(crate::extent::flag::RECLAIMING, false);
        }
        self.discarding.clear();
        self.new_forks.clear();
        for extent in std::mem::take(&mut self.reclaim_queue) {
            self.extents[extent as usize].set(crate::extent::flag::RECLAIMING, false);
        }
        self.live.page.set(crate::control::Counter::LimitBytes, self.limit as u64);
        self.publish();
    }

    /// Whether the page at `addr` is mapped into the program.
    fn is_mapped_page(&self, addr: usize) -> bool {
        let page = ((addr - self.arena.base()) / PAGE) as u64;
        let extent = &self.extents[(addr - self.arena.base()) / hiroma_units::EXTENT];
        self.is_resident(self.block_of(page, extent.mode))
    }
}
