//! The public interface of the pager: ranges of managed memory, and the operations on them.
//!
//! Threads of the program call these functions. Each leaves a call for the thread that serves calls
//! (`service`) and waits. They take no lock and allocate nothing, because their stacks can be
//! managed memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use hiroma_sys::lock::Lock;
use hiroma_sys::vm::{self, Access, Reservation};
use hiroma_sys::{attributes, helper, signals, stack, territory};
use hiroma_units::{Bytes, EXTENT, PAGE};

use crate::addresses::Owner;
use crate::config::LOCAL_MIN;
use crate::config::{ARENA_BYTES_MAX, Config};
use crate::content;
use crate::control::Snapshot;
use crate::core::{Core, sector_order};
use crate::error::PagerError;
use crate::evict::Evicting;
use crate::fault::Faulting;
use crate::fetch::Prefetching;
use crate::guard::{self, Guarding};
use crate::hooks;
use crate::host::{self, Promise};
use crate::inherit::Listener;
use crate::life::Life;
use crate::live::{Live, Path};
use crate::nursery::Nursery;
use crate::service::{Call, Calls, ForkGate, Serving};
use crate::store::{self, Purpose, Store};
use crate::watchdog::Watchdog;

pub(crate) const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Advice about the use of a range (like `madvise`, but about far memory).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    Normal,
    /// Will be used soon: prefetched as far as there is room.
    WillNeed,
    /// Will not be used for long: evicted before anything else.
    Cold,
    /// Read sequentially: moved in whole extents.
    Sequential,
    /// Read at random: moved in sectors.
    Random,
}

/// Far memory of this process. A handle; clones are the same pager. It runs until the process ends.
#[derive(Clone)]
pub struct Pager {
    pub(crate) core: Arc<Lock<Core>>,
    pub(crate) arena: Arc<Reservation>,
    pub(crate) config: Arc<Config>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) gate: Arc<ForkGate>,
    own_bytes: [usize; 2],
}

/// Bytes of this process's address space, and of its writable private part (proc(5): statm).
fn sizes() -> [usize; 2] {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut fields = text.split_ascii_whitespace().map(|pages| pages.parse().unwrap_or(0));
    [fields.next(), fields.nth(4)].map(|pages: Option<usize>| pages.unwrap_or(0) * PAGE)
}

impl Pager {
    /// Starts a pager: opens the stores, reserves the arena, starts the threads.
    pub fn start(config: Config) -> Result<Pager, PagerError> {
        hooks::internal(|| Pager::start_inside(config, None))
    }

    /// Starts a pager that takes over a nursery, with its arena. The calling thread may have
    /// little stack left.
    pub fn start_late(config: Config, nursery: Nursery) -> Result<Pager, PagerError> {
        let start = || hooks::internal(|| Pager::start_inside(config, Some(nursery)));
        let has_clock = attributes::has_clock();
        if !has_clock {
            attributes::allow_clock();
        }
        let started = stack::run(start).map_err(PagerError::io("mapping a stack"));
        if !has_clock {
            attributes::forbid_clock();
        }
        started?
    }

    /// Prepares what a later [`Pager::start_late`] could not prepare, because other threads may
    /// hold locks of the C library by then. Returns false if a pager has to be started now.
    pub fn prepare() -> bool {
        attributes::note();
        hooks::internal(host::prepare_helper)
    }

    fn start_inside(mut config: Config, nursery: Option<Nursery>) -> Result<Pager, PagerError> {
        if config.local_limit_bytes < LOCAL_MIN.0 {
            return Err(PagerError::LimitTooSmall(Bytes(config.local_limit_bytes)));
        }
        if config.arena_bytes > ARENA_BYTES_MAX {
            return Err(PagerError::ArenaTooLarge(Bytes(config.arena_bytes)));
        }
        host::note_program(config.control_dir.as_deref());
        // On a thread of the program, because name resolution needs the C library.
        config.resolved = store::tcp::resolve(&config.stores)?;
        let as_helper = config.helper && host::prepare_helper();
        let promise = Arc::new(Promise::default());
        let told = promise.clone();
        let body = move || {
            // There, because a descriptor here could be seen by other threads of the program.
            let before = sizes();
            match Pager::open(config, nursery) {
                Ok((mut pager, live, listener)) => {
                    let after = sizes();
                    pager.own_bytes = [0, 1].map(|at| after[at].saturating_sub(before[at]));
                    told.keep(Ok(pager.clone()));
                    pager.live_on(live, listener);
                }
                Err(error) => told.keep(Err(error)),
            }
        };
        host::start(as_helper, body).map_err(PagerError::io("starting the pager"))?;
        let still = || !as_helper || helper::process().is_none_or(helper::exists);
        promise.wait(still).unwrap_or_else(|| {
            Err(PagerError::io("starting the pager")(std::io::Error::other("it ended at once")))
        })
    }

    /// By how many bytes the start has enlarged the process's address space, and its writable
    /// private part.
    pub fn own_bytes(&self) -> [usize; 2] {
        self.own_bytes
    }

    /// Runs on the pager's first thread, which owns its descriptors.
    fn open(
        config: Config,
        nursery: Option<Nursery>,
    ) -> Result<(Pager, Arc<Live>, Option<Listener>), PagerError> {
        let arena = match &nursery {
            Some(nursery) => nursery.arena.clone(),
            None => Arc::new(reserve_arena(config.arena_bytes as usize)?),
        };
        let (live, listener) = Live::open(&config, &arena)?;
        let live = Arc::new(live);
        let opened = Pager::open_with(config, nursery, arena, &live);
        if opened.is_err() {
            // The program goes on without a pager: the end of this one is not the end of its memory.
            live.page.set_pager(0);
        }
        opened.map(|pager| (pager, live, listener))
    }

    fn open_with(
        config: Config,
        nursery: Option<Nursery>,
        arena: Arc<Reservation>,
        live: &Arc<Live>,
    ) -> Result<Pager, PagerError> {
        let store = store::open(&config, PAGE << sector_order(config.block))?;
        let key = content::Key::random().map_err(PagerError::io("getrandom"))?;
        let core = Core::new(&config, live.clone(), arena.clone(), store.clone(), key)?;
        let pager = Pager {
            core: Arc::new(Lock::new(core)),
            arena,
            config: Arc::new(config),
            calls: Arc::default(),
            gate: Arc::default(),
            own_bytes: [0; 2],
        };
        let ours = match &nursery {
            Some(nursery) => nursery.ours(),
            None => vec![(pager.arena.base(), pager.arena.base() + pager.arena.len())],
        };
        // Before anything is registered: without one of its threads, the program's next fault could
        // wait for ever. They wait for the lock.
        pager.spawn(live, &store)?;
        let mut core = pager.core.lock();
        let begun = pager
            .watch(live, &ours)
            .and_then(|()| nursery.as_ref().map_or(Ok(()), |nursery| core.take_over(nursery)));
        if begun.is_err() {
            // Nothing has left it yet. Something in the process may keep the userfaultfd open.
            for &(from, to) in &ours {
                let _ = live.uffd.unregister(from, to - from);
            }
            nursery.iter().for_each(Nursery::is_left_alone);
        }
        drop(core);
        begun.map(|()| pager)
    }

    /// Runs the first thread until the end.
    pub(crate) fn live_on(&self, live: Arc<Live>, listener: Option<Listener>) {
        signals::blocked(|| Life::new(self.core.clone(), live, listener, &self.config).run());
    }

    /// Starts the other threads of one life (a process's, or a forked child's).
    pub(crate) fn spawn(&self, live: &Arc<Live>, store: &Arc<dyn Store>) -> Result<(), PagerError> {
        let starting = || PagerError::io("starting a thread");
        let (core, thread_live) = (self.core.clone(), live.clone());
        let channel = store.open(Purpose::Read)?;
        host::spawn(c"hiroma-fault", move || Faulting::new(0, core, thread_live, channel).run())
            .map_err(starting())?;
        let (core, thread_live) = (self.core.clone(), live.clone());
        let channel = store.open(Purpose::Write)?;
        host::spawn(c"hiroma-evict", move || Evicting::new(core, thread_live, channel).run())
            .map_err(starting())?;
        let (core, thread_live) = (self.core.clone(), live.clone());
        let channel = store.open(Purpose::Read)?;
        host::spawn(c"hiroma-fetch", move || Prefetching::new(core, thread_live, channel).run())
            .map_err(starting())?;
        let (core, thread_live) = (self.core.clone(), live.clone());
        let (calls, gate) = (self.calls.clone(), self.gate.clone());
        host::spawn(c"hiroma-calls", move || Serving::new(core, thread_live, calls, gate).run())
            .map_err(starting())?;
        let watchdog = Watchdog::new(live.clone(), &self.config);
        host::spawn(c"hiroma-watch", move || watchdog.run()).map_err(starting())?;
        let start = self.start_fault_thread(live, store);
        let (thread_live, fault_threads) = (live.clone(), self.config.fault_threads);
        let guard = move || {
            if let Some(guarding) = Guarding::new(thread_live, fault_threads, start) {
                guarding.run();
            }
        };
        host::spawn(c"hiroma-guard", guard).map_err(starting()).map(drop)
    }

    /// Returns the function that starts an additional fault thread.
    fn start_fault_thread(&self, live: &Arc<Live>, store: &Arc<dyn Store>) -> guard::Start {
        let (core, live, store) = (self.core.clone(), live.clone(), store.clone());
        Box::new(move |index| {
            // A fork waits for it: it must not copy a lock of the store that is held.
            {
                let mut core = core.lock();
                if core.quiesce {
                    return false;
                }
                core.in_flight += 1;
            }
            let opened = store.open(Purpose::Read);
            core.lock().in_flight -= 1;
            // A store that has no connection left fails here; then a single fault thread must
            // suffice.
            let Ok(channel) = opened else { return false };
            let (core, thread_live) = (core.clone(), live.clone());
            let is_there = host::spawn(c"hiroma-fault", move || {
                Faulting::new(index, core, thread_live, channel).run()
            })
            .is_ok();
            is_there && live.yielding.has_come(index)
        })
    }

    /// Whether `addr` is in the arena.
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
        let none = || PagerError::NoAddresses {
            wanted: Bytes(len as u64),
            arena: Bytes(self.arena.len() as u64),
        };
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(none)?;
        self.ask(Call::Place { len, align, alone, prot })
    }

    /// Leaves a call, waits for its answer, and overwrites with zeros the ranges that the answer
    /// names.
    fn ask(&self, call: Call) -> Result<usize, PagerError> {
        let mut answer = self.calls.ask(call);
        loop {
            answer.to_zero().iter().for_each(|&(from, to)| vm::zero(from, to - from));
            let Some(rest) = answer.rest() else { return answer.result };
            let result = std::mem::replace(&mut answer.result, Ok(0));
            answer = self.calls.ask(rest);
            answer.result = result;
        }
    }

    fn check(&self, addr: usize, len: usize) -> Result<(usize, usize), PagerError> {
        let bad = || PagerError::BadRange { addr, len };
        let end = len
            .checked_next_multiple_of(PAGE)
            .and_then(|len| addr.checked_add(len))
            .ok_or_else(bad)?;
        let (base, size) = self.arena();
        if addr % PAGE != 0 || addr < base || end > base + size {
            Err(bad())
        } else {
            Ok((addr, end))
        }
    }

    /// Unmaps everything that is mapped in a range, and frees its content, also where that is far.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        // Content first: once the addresses are free, another mapping can get them.
        if self.ask(Call::Unmap { start, end })? == 1 {
            return Ok(());
        }
        self.ask(Call::Close { start, end }).map(drop)
    }

    /// Makes a range zeros again and gives it the protection `prot`, like `mmap(MAP_FIXED |
    /// MAP_ANONYMOUS)`.
    pub fn refresh(&self, addr: usize, len: usize, prot: i32) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::MakePlain { start, end })?;
        self.ask(Call::Discard { start, end })?;
        if prot == PROT_RW { Ok(()) } else { self.protect(addr, len, prot) }
    }

    /// Changes the protection of a range (`PROT_*`). The content is unchanged.
    pub fn protect(&self, addr: usize, len: usize, prot: i32) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::Protect { start, end, prot }).map(drop)
    }

    /// Discards the content of a range: it reads as zeros and takes no memory, near or far.
    pub fn discard(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::Discard { start, end }).map(drop)
    }

    /// Grows or shrinks a mapping, in place or by moving it, like `mremap`. Returns its new
    /// address.
    pub fn resize(
        &self,
        addr: usize,
        old_len: usize,
        new_len: usize,
        may_move: bool,
    ) -> Result<usize, PagerError> {
        let (start, end) = self.check(addr, old_len)?;
        let bad = PagerError::BadRange { addr, len: new_len };
        let Some(new_len) = new_len.checked_next_multiple_of(PAGE).filter(|&len| len > 0) else {
            return Err(bad);
        };
        let old_len = end - start;
        if new_len <= old_len {
            // Like the kernel: what is left must be there.
            self.all_mapped(start, new_len)
                .map_err(|_| PagerError::NotWhole { addr, len: old_len })?;
            if new_len < old_len {
                self.unmap(start + new_len, old_len - new_len)?;
            }
            return Ok(start);
        }
        let new_end = start.checked_add(new_len).ok_or(bad)?;
        if self.ask(Call::Extend { start, end, new_end })? == 1 {
            return Ok(start);
        }
        if !may_move {
            return Err(PagerError::NoAddresses {
                wanted: Bytes(new_len as u64),
                arena: Bytes(self.arena.len() as u64),
            });
        }
        let new = self.map(new_len, PAGE)?;
        self.copy_over(start, old_len, new, new_len).inspect_err(|_| {
            let _ = self.unmap(new, new_len);
        })?;
        self.unmap(start, old_len)?;
        Ok(new)
    }

    /// Copies a mapping to `new`, which must be readable and writable, and gives `new` the
    /// protection of the old one.
    pub fn copy_over(
        &self,
        start: usize,
        len: usize,
        new: usize,
        new_len: usize,
    ) -> Result<(), PagerError> {
        self.inherit(start, new, new_len)?;
        let area = self.ask(Call::AreaAt(start))?;
        let (end, prot) = (area / PAGE * PAGE, (area % PAGE) as i32);
        // Like the kernel: one mapping at a time. To it, what only differs in advice may be several.
        let mut next = end;
        while next < start + len {
            let area = self.ask(Call::AreaAt(next))?;
            if (area % PAGE) as i32 != prot {
                return Err(PagerError::NotWhole { addr: start, len });
            }
            next = area / PAGE * PAGE;
        }
        if prot == PROT_RW {
            vm::copy(new, start, len);
            return Ok(());
        }
        if prot & libc::PROT_READ == 0 {
            self.protect(start, len, libc::PROT_READ)?;
        }
        vm::copy(new, start, len);
        self.protect(new, new_len, prot)?;
        if prot & libc::PROT_READ == 0 { self.protect(start, len, prot) } else { Ok(()) }
    }

    /// A range has been made from the mapping at `from` (`mremap`): what was advised for that holds for
    /// it, and it is locked if that is.
    pub fn inherit(&self, from: usize, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::Inherit { from, start, end }).map(drop)
    }

    /// Whether nothing is mapped in a range.
    pub fn is_free(&self, addr: usize, len: usize) -> Result<bool, PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::IsFree { start, end }).map(|free| free == 1)
    }

    /// Whose a range is.
    pub fn owner(&self, addr: usize, len: usize) -> Result<Owner, PagerError> {
        let (start, end) = self.check(addr, len)?;
        let owner = self.ask(Call::OwnerOf { start, end })?;
        let all = [Owner::Pager, Owner::Foreign];
        Ok(all.into_iter().find(|&it| it as usize == owner).unwrap_or(Owner::Mixed))
    }

    /// The kernel's mapping at an address: its end, with its protection (`PROT_*`) in the lowest bits.
    pub fn area(&self, addr: usize) -> Result<usize, PagerError> {
        self.ask(Call::AreaAt(addr))
    }

    /// The protection (`PROT_*`) that the kernel has for an address.
    pub fn protection(&self, addr: usize) -> Result<usize, PagerError> {
        self.area(addr).map(|area| area % PAGE)
    }

    /// Whether a range is zeros in children that are forked from now on (`MADV_WIPEONFORK`,
    /// `MADV_KEEPONFORK`).
    pub fn wipe_on_fork(&self, addr: usize, len: usize, on: bool) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::WipeOnFork { start, end, on }).map(drop)
    }

    /// Forgets a range because something else (a file, shared memory) is about to be mapped over
    /// it.
    pub fn release(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::Release { start, end }).map(drop)
    }

    /// Fetches a range and pins it in local memory (for `mlock`).
    pub fn pin(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        if self.ask(Call::Pin { start, end })? == 1 {
            vm::touch(start, end - start);
        }
        Ok(())
    }

    /// Pins a range once it is faulted in. Fetches nothing, because heaps reserve far more than
    /// they use.
    pub fn pin_on_touch(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::Pin { start, end }).map(drop)
    }

    /// Pins everything that is mapped (`mlockall`).
    pub fn pin_all(&self) -> Result<(), PagerError> {
        self.ask(Call::PinAll).map(drop)
    }

    /// Undoes `pin` for everything that is mapped.
    pub fn unpin_all(&self) -> Result<(), PagerError> {
        self.ask(Call::UnpinAll).map(drop)
    }

    /// Fails if a part of the range is not mapped.
    pub fn all_mapped(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::AllMapped { start, end }).map(drop)
    }

    /// Sets the maximum of mapped bytes from now on (`RLIMIT_AS`, `RLIMIT_DATA`).
    pub fn set_mapped_max(&self, bytes: usize) {
        let _ = self.ask(Call::MappedMax(bytes));
    }

    /// Whether children that are forked from now on inherit a range (`MADV_DONTFORK`,
    /// `MADV_DOFORK`).
    pub fn dont_fork(&self, addr: usize, len: usize, on: bool) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::DontFork { start, end, on }).map(drop)
    }

    /// Undoes `pin`.
    pub fn unpin(&self, addr: usize, len: usize) -> Result<(), PagerError> {
        let (start, end) = self.check(addr, len)?;
        self.ask(Call::Unpin { start, end }).map(drop)
    }

    /// Gives advice about a range, which never changes content. It is followed where the range is
    /// mapped; the error says that this is not all of it.
    pub fn advise(&self, addr: usize, len: usize, advice: Advice) -> Result<(), PagerError> {
        let (start, end) = self.check(addr / PAGE * PAGE, len + addr % PAGE)?;
        self.ask(Call::Advise { start, end, advice }).map(drop)
    }

    /// Changes the local limit. It is in force once the evictor has caught up.
    pub fn set_limit(&self, bytes: u64) -> Result<(), PagerError> {
        if bytes < LOCAL_MIN.0 {
            return Err(PagerError::LimitTooSmall(Bytes(bytes)));
        }
        self.ask(Call::Limit(bytes as usize)).map(drop)
    }

    /// Evicts everything that can be evicted, and waits until that is done. For measurements.
    pub fn evict_all(&self) -> Result<(), PagerError> {
        let mut last = (usize::MAX, Instant::now());
        loop {
            let local = self.ask(Call::EvictEverything(true))?;
            if local < last.0 {
                last = (local, Instant::now());
            }
            if local == 0 || last.1.elapsed() > Duration::from_secs(2) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.ask(Call::EvictEverything(false)).map(drop)
    }

    /// The recent events of the extent that contains an address, one a line. Empty without the
    /// feature `recorder`.
    pub fn recent(&self, addr: usize) -> String {
        self.core.lock().recorder.of_extent(((addr - self.arena.base()) / PAGE) as u64)
    }

    /// The current statistics.
    pub fn snapshot(&self) -> Snapshot {
        let _ = self.ask(Call::Publish);
        let page = self.core.lock().live.page.clone();
        page.snapshot()
    }

    /// Which kernel interface moves pages: `full` or `fallback`.
    pub fn path(&self) -> &'static str {
        match self.core.lock().live.path {
            Path::Full => "full",
            Path::Fallback => "fallback",
        }
    }

    /// Stops the threads. Managed memory that is far is unreachable from then on.
    pub fn stop(&self) {
        let live = self.core.lock().live.clone();
        live.stop.store(true, Ordering::SeqCst);
        live.evict_bell.ring();
        live.fetch_bell.ring();
        live.yielding.stop();
        self.calls.ring();
    }
}

/// Reserves address space, less than `wanted` if a limit on address space forbids it.
pub(crate) fn reserve_arena(wanted: usize) -> Result<Reservation, PagerError> {
    let mut len = wanted.next_multiple_of(EXTENT);
    loop {
        match Reservation::new(len, EXTENT, Access::None) {
            Ok(arena) => {
                territory::claim();
                return Ok(arena);
            }
            Err(_) if len > 1 << 30 => len = (len / 2).next_multiple_of(EXTENT),
            Err(error) => {
                return Err(PagerError::io(
                    "reserving address space (is there a limit? see `ulimit -v`)",
                )(error));
            }
        }
    }
}
