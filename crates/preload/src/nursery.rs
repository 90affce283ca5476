//! A process without a pager, and the moment at which it gets one.
//!
//! Most processes stay small. A pager costs each of them several milliseconds at its start, and as
//! much at each fork, so a process begins without one: `malloc` takes memory from the *nursery*,
//! ordinary memory at the beginning of the arena, and short mappings are the kernel's. Once the
//! process has [`Config::manage_from_bytes`], the pager starts and takes over the nursery.
//!
//! It starts in the middle of any call of `malloc` or `mmap`, with any locks of the program held:
//!
//! - The thread may have little stack left, so the start has a stack of its own.
//! - Locks of the C library may be held by other threads, which may even wait for the start. So it
//!   takes none: what needs them was prepared by the constructor.
//! - A thread that only allocates does not wait while another one starts the pager.
//! - A child of `vfork` runs on its parent's memory, and starts nothing.
//! - A process that is about to lose rights which the start needs has its pager started before.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hiroma_far::Config;
use hiroma_far::nursery::Nursery;
use hiroma_units::{EXTENT, PAGE};
use libmimalloc_sys as mi;

use crate::classify::MapPlan;
use crate::runtime::{self, Phase};
use crate::{export_limits, internal, scope, sys};

/// Size of the nursery, most of which is never touched: a few of mimalloc's segments.
const NURSERY_BYTES: usize = 128 << 20;
/// mimalloc's segments are multiples of this.
const ALIGN: usize = 32 << 20;
/// How much a thread allocates between two looks at how large the process is.
const STEP_MIN: usize = 64 << 10;
const STEP_MAX: usize = 1 << 20;

/// What the start needs.
struct Prepared {
    config: Config,
    nursery: Nursery,
    is_first: bool,
    /// Bytes of private memory that the process had mapped when it began.
    mapped_bytes: usize,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();
/// The process whose memory this is: a child of `vfork` has another number.
static OWNER: AtomicU32 = AtomicU32::new(0);
static IS_STARTING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How much the thread may still allocate before it looks again.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Prepares for a late start. Returns false if the pager must start now.
pub fn prepare(config: &Config, is_first: bool) -> bool {
    let may_wait = config.manage_from_bytes > 0 && Nursery::suits(config, is_first);
    if !may_wait || !hiroma_far::Pager::prepare() {
        return false;
    }
    let Ok(nursery) = Nursery::reserve(config, NURSERY_BYTES, ALIGN) else { return false };
    let Range { start, end } = nursery.memory();
    // SAFETY: memory that was reserved for this, zero, and never unmapped.
    let is_taken = unsafe {
        mi::mi_manage_os_memory_ex(
            start as *const _,
            end - start,
            true,
            false,
            true,
            -1,
            false,
            std::ptr::null_mut(),
        )
    };
    let Some([_, mapped, _]) = sys::memory().filter(|_| is_taken) else {
        // It stays reserved: mimalloc may use a part of it.
        std::mem::forget(nursery);
        return false;
    };
    let _ =
        PREPARED.set(Prepared { config: config.clone(), nursery, is_first, mapped_bytes: mapped });
    OWNER.store(std::process::id(), Ordering::Relaxed);
    true
}

/// The arena.
pub fn arena() -> (usize, usize) {
    PREPARED.get().map_or((0, 0), |prepared| prepared.nursery.arena())
}

/// In a forked child: its nursery is a copy of its parent's.
pub fn is_mine() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    IS_STARTING.store(false, Ordering::Relaxed);
}

/// Called before `bytes` are allocated while there is no pager.
pub fn allocates(bytes: usize) {
    let bytes = bytes.max(16);
    let left = LEFT.get();
    if bytes < left {
        LEFT.set(left - bytes);
    } else {
        look(bytes);
    }
}

/// Called before a block is given `bytes`.
#[inline]
pub fn resizes_block(bytes: usize) {
    if runtime::phase() == Phase::Nursery {
        allocates(bytes);
    }
}

#[cold]
fn look(bytes: usize) {
    LEFT.set(STEP_MIN);
    if runtime::phase() != Phase::Nursery || scope::is_internal() {
        return;
    }
    let Some(prepared) = PREPARED.get() else { return };
    let errno = sys::errno();
    let most = prepared.config.manage_from_bytes as usize;
    // Where /proc cannot be read, the size is unknown.
    let used = sys::memory().map_or(usize::MAX, |[_, _, used]| used);
    match most.checked_sub(used.saturating_add(bytes)) {
        Some(room) => LEFT.set((room / 2).clamp(STEP_MIN, STEP_MAX)),
        None => start(false),
    }
    sys::set_errno(errno);
}

/// Early mappings: memory that the process has mapped while it has no pager, in whole extents of
/// the arena behind the nursery.
#[derive(Clone, Copy)]
pub struct Early([(usize, usize); EARLY_MAX]);

/// A process with more of them gets its pager.
const EARLY_MAX: usize = 64;

impl Early {
    pub const fn new() -> Early {
        Early([(0, 0); EARLY_MAX])
    }

    /// The ranges.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().filter(|(_, len)| *len > 0).map(|&(start, len)| start..start + len)
    }

    /// Finds room for `len` bytes in `area`, in front of which nothing is free.
    fn place(&mut self, len: usize, area: Range<usize>) -> Option<usize> {
        let slot = self.0.iter().position(|(_, len)| *len == 0)?;
        let mut start = area.start;
        while let Some(other) = self
            .ranges()
            .find(|other| start < other.end.next_multiple_of(EXTENT) && other.start < start + len)
        {
            start = other.end.next_multiple_of(EXTENT);
        }
        let fits = start.checked_add(len).is_some_and(|end| end <= area.end);
        fits.then(|| self.0[slot] = (start, len)).map(|()| start)
    }

    /// Removes a range if it is one of them.
    fn remove(&mut self, start: usize, len: usize) -> bool {
        let slot = self.0.iter_mut().find(|slot| **slot == (start, len) && len > 0);
        slot.map(|slot| *slot = (0, 0)).is_some()
    }
}

/// Makes a mapping of `len` bytes for a small process. `None`: it has a pager now, or can have
/// neither.
pub fn maps(plan: &MapPlan) -> Option<usize> {
    match plan {
        MapPlan::Map { len, protect: None, .. } => map_early(*len).or_else(|| {
            start(true);
            None
        }),
        MapPlan::PassThrough => None,
        _ => {
            start(true);
            None
        }
    }
}

fn map_early(len: usize) -> Option<usize> {
    let prepared = PREPARED.get()?;
    let mapped = sys::memory().map_or(usize::MAX, |[_, mapped, _]| mapped);
    let early = mapped.saturating_sub(prepared.mapped_bytes);
    if early.saturating_add(len) > prepared.config.manage_from_bytes as usize {
        return None;
    }
    let (base, arena_len) = prepared.nursery.arena();
    let mask = sys::block_signals();
    let start = {
        let mut early = runtime::without_forks();
        let area = prepared.nursery.memory().end..base + arena_len;
        let start = (runtime::phase() == Phase::Nursery).then(|| early.place(len, area)).flatten();
        start.filter(|&start| {
            let is_open = prepared.nursery.open(start, len).is_ok();
            is_open || !early.remove(start, len)
        })
    };
    sys::restore_signals(mask);
    start
}

/// Unmaps an early mapping. Returns false if the range is something else.
pub fn unmaps(start: usize, len: usize) -> bool {
    let Some(prepared) = PREPARED.get() else { return false };
    let Some(len) = len.checked_next_multiple_of(PAGE) else { return false };
    let mask = sys::block_signals();
    let is_early = {
        let mut early = runtime::without_forks();
        let is_early = runtime::phase() == Phase::Nursery && early.remove(start, len);
        if is_early {
            prepared.nursery.close(start, len);
        }
        is_early
    };
    sys::restore_signals(mask);
    is_early
}

/// Starts the pager, if the process has none yet but may have one.
pub fn start_now() {
    if runtime::phase() == Phase::Nursery && !scope::is_internal() {
        start(true);
    }
}

/// Starts the pager. `waits`: if another thread is about to start it, waits for that thread.
fn start(waits: bool) {
    // Asked of the kernel: the C library's number may be the parent's in a child of `vfork`.
    if OWNER.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let Some(prepared) = PREPARED.get() else { return };
    let errno = sys::errno();
    let mask = sys::block_signals();
    if !IS_STARTING.swap(true, Ordering::Acquire) {
        if let Some(early) = alone(waits).filter(|_| runtime::phase() == Phase::Nursery) {
            let _scope = scope::internal_scope();
            start_here(prepared, &early);
        }
        IS_STARTING.store(false, Ordering::Release);
    } else {
        while waits && runtime::phase() == Phase::Nursery && IS_STARTING.load(Ordering::Acquire) {
            sys::nap();
        }
    }
    sys::restore_signals(mask);
    sys::set_errno(errno);
}

/// Keeps forks away. A thread that only allocates may hold a lock that a fork waits for.
fn alone(waits: bool) -> Option<sys::Held<'static, Early>> {
    if waits { Some(runtime::without_forks()) } else { runtime::without_forks_now() }
}

fn start_here(prepared: &Prepared, early: &Early) {
    export_limits::before_start();
    let config = prepared.config.clone();
    let nursery = prepared.nursery.with(early.ranges());
    match hiroma_far::Pager::start_late(config, nursery) {
        Ok(pager) => runtime::has_pager(pager),
        Err(error) => runtime::stays_without_pager(prepared.is_first, &error.to_string()),
    }
}

/// Whether a block that is not in the arena is mimalloc's: without a pager it maps memory itself.
pub fn is_on_heap(block: usize) -> bool {
    // SAFETY: only compares the address with mimalloc's table.
    runtime::phase() == Phase::Unmanaged
        && !internal::contains(block)
        && unsafe { mi::mi_is_in_heap_region(block as *const _) }
}
