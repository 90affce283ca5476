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
//! - The caller may hold such a lock itself, and a thread that forks may wait for it. So nobody waits
//!   for a fork longer than forks usually take: the start is put off until the next call.
//! - A thread that only allocates does not wait while another one starts the pager.
//! - The size is counted from what was handed out, touched or not, because nothing is told when it is
//!   touched later. `/proc` is not asked: its descriptor would be seen by other threads.
//! - A child of `vfork` runs on its parent's memory, and starts nothing.
//! - A process that is about to lose rights which the start needs has its pager started before.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, Ordering};

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
/// A thread adds up this many bytes before it tells the others.
const STEP: isize = 64 << 10;
/// How often a thread looks at most whether another one has forked, 50 us apart at least. A clock may
/// not be there.
const FORK_LOOKS_MAX: u32 = 2000;
/// Failures that may pass, until a process goes on without a pager.
const PUT_OFF_MAX: u32 = 1000;
/// A thread that is slower than others starts the pager only when the process has so many times the
/// size at which it should.
const SLOW_FACTOR: usize = 4;
/// How much a thread takes, whatever it gives back, between two looks at how many pages are in use:
/// blocks that stay may keep many.
const PAGES_STEP: usize = 4 << 20;

/// What the start needs.
struct Prepared {
    config: Config,
    nursery: Nursery,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();
/// The process whose memory this is: a child of `vfork` has another number.
static OWNER: AtomicU32 = AtomicU32::new(0);
static IS_STARTING: AtomicBool = AtomicBool::new(false);

/// Usable bytes of the blocks that are handed out.
static HANDED_OUT: AtomicIsize = AtomicIsize::new(0);
static EARLY: Early = Early::new();
/// Starts that have failed for a reason that may pass.
static PUT_OFF: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// What the thread has handed out, less what it has taken back, since it told so.
    static UNTOLD: Cell<isize> = const { Cell::new(0) };
    /// What it has handed out since it looked at pages.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
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
    if !is_taken {
        // It stays reserved: mimalloc may use a part of it.
        std::mem::forget(nursery);
        return false;
    }
    let _ = PREPARED.set(Prepared { config: config.clone(), nursery });
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
    EARLY.is_placing.store(false, Ordering::Relaxed);
    CHANGING.store(0, Ordering::Relaxed);
}

/// Called before `bytes` are allocated while there is no pager.
pub fn allocates(bytes: usize) {
    // Smaller blocks are counted when they are there.
    if bytes as isize >= STEP {
        look(bytes);
    }
}

/// Blocks with so many usable bytes more, or fewer, are handed out while there is no pager.
#[inline]
pub fn counts(bytes: isize) {
    let untold = UNTOLD.get() + bytes;
    UNTOLD.set(untold);
    let taken = TAKEN.get() + bytes.max(0) as usize;
    TAKEN.set(taken);
    if untold.abs() >= STEP || taken >= PAGES_STEP {
        tell();
    }
}

#[cold]
fn tell() {
    HANDED_OUT.fetch_add(UNTOLD.replace(0), Ordering::Relaxed);
    if TAKEN.get() >= PAGES_STEP {
        TAKEN.set(0);
        let resident = PREPARED.get().map_or(0, |it| sys::resident_bytes(it.nursery.memory()));
        let blocks = HANDED_OUT.load(Ordering::Relaxed).max(0) as usize;
        look(resident.saturating_sub(blocks));
    } else {
        look(0);
    }
}

/// Whether the process is small, also with `bytes` more.
fn is_small(prepared: &Prepared, bytes: usize) -> bool {
    used(bytes) <= prepared.config.manage_from_bytes as usize
}

fn used(more: usize) -> usize {
    let blocks = HANDED_OUT.load(Ordering::Relaxed).max(0) as usize;
    EARLY.bytes().saturating_add(blocks).saturating_add(more)
}

#[cold]
fn look(bytes: usize) {
    if runtime::phase() != Phase::Nursery || scope::is_internal() {
        return;
    }
    let Some(prepared) = PREPARED.get() else { return };
    if is_small(prepared, bytes) {
        return;
    }
    let most = SLOW_FACTOR * prepared.config.manage_from_bytes as usize;
    if used(bytes) > most || !Nursery::is_slow_thread() {
        start(false);
    }
}

/// Early mappings: memory that the process has mapped while it has no pager, in whole extents of
/// the arena behind the nursery. A word each, so that a child of a fork has each of them whole:
/// number of the first page, and number of pages, in the lower bits.
pub struct Early {
    words: [AtomicU64; EARLY_MAX],
    /// A thread looks for room.
    is_placing: AtomicBool,
}

/// A process with more of them gets its pager.
const EARLY_MAX: usize = 64;
/// Bits of a number of pages.
const PAGES_BITS: u32 = 24;

fn word(start: usize, len: usize) -> u64 {
    ((start / PAGE) as u64) << PAGES_BITS | (len / PAGE) as u64
}

impl Early {
    const fn new() -> Early {
        let words = [const { AtomicU64::new(0) }; EARLY_MAX];
        Early { words, is_placing: AtomicBool::new(false) }
    }

    /// The ranges.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let words = self.words.iter().map(|word| word.load(Ordering::Acquire));
        words.filter(|word| *word != 0).map(|word| {
            let start = (word >> PAGES_BITS) as usize * PAGE;
            start..start + (word & ((1 << PAGES_BITS) - 1)) as usize * PAGE
        })
    }

    fn bytes(&self) -> usize {
        self.ranges().map(|range| range.len()).sum()
    }

    /// Finds room for `len` bytes in `area`, in front of which nothing is free.
    fn place(&self, len: usize, area: Range<usize>) -> Option<usize> {
        if len / PAGE >= 1 << PAGES_BITS || self.is_placing.swap(true, Ordering::Acquire) {
            // Another thread is at it: the kernel maps this one.
            return None;
        }
        let slot = self.words.iter().find(|word| word.load(Ordering::Acquire) == 0);
        let mut start = area.start;
        while let Some(other) = self
            .ranges()
            .find(|other| start < other.end.next_multiple_of(EXTENT) && other.start < start + len)
        {
            start = other.end.next_multiple_of(EXTENT);
        }
        let fits = start.checked_add(len).is_some_and(|end| end <= area.end);
        let placed = slot.filter(|_| fits).map(|slot| {
            slot.store(word(start, len), Ordering::Release);
            start
        });
        self.is_placing.store(false, Ordering::Release);
        placed
    }

    /// Whether a range is one of them.
    fn has(&self, start: usize, len: usize) -> bool {
        len > 0 && self.ranges().any(|range| range == (start..start + len))
    }

    /// Removes a range.
    fn remove(&self, start: usize, len: usize) {
        let all = self.words.iter();
        let is_it = |at: &&AtomicU64| at.load(Ordering::Acquire) == word(start, len);
        all.filter(is_it).for_each(|at| at.store(0, Ordering::Release));
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
    let (len, _calls) = (len.checked_next_multiple_of(PAGE)?, Changing::begin()?);
    if len == 0 || !is_small(prepared, len) {
        return None;
    }
    let (base, arena_len) = prepared.nursery.arena();
    let area = prepared.nursery.memory().end..base + arena_len;
    EARLY.place(len, area).filter(|&start| {
        let is_open = prepared.nursery.open(start, len).is_ok();
        if !is_open {
            EARLY.remove(start, len);
        }
        is_open
    })
}

/// Unmaps an early mapping. Returns false if the range is something else.
pub fn unmaps(start: usize, len: usize) -> bool {
    let Some(prepared) = PREPARED.get() else { return false };
    let Some(len) = len.checked_next_multiple_of(PAGE) else { return false };
    let Some(_calls) = Changing::begin() else { return false };
    let is_early = EARLY.has(start, len);
    if is_early {
        // First: in a child of a fork in between it must not be free and have content.
        prepared.nursery.close(start, len);
        EARLY.remove(start, len);
    }
    is_early
}

/// Calls that change early mappings, which the start waits for.
struct Changing(u64);

static CHANGING: AtomicU32 = AtomicU32::new(0);

impl Changing {
    /// Waits while a pager is being started. `None`: the process has one.
    fn begin() -> Option<Changing> {
        loop {
            let mask = sys::block_signals();
            CHANGING.fetch_add(1, Ordering::SeqCst);
            let changing = Changing(mask);
            if runtime::phase() != Phase::Nursery {
                return None;
            }
            if !IS_STARTING.load(Ordering::SeqCst) {
                return Some(changing);
            }
            drop(changing);
            sys::nap();
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let less = |count: u32| count.checked_sub(1);
        let _ = CHANGING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        sys::restore_signals(self.0);
    }
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
    if !IS_STARTING.swap(true, Ordering::SeqCst) {
        if let Some(_alone) = alone(waits).filter(|_| runtime::phase() == Phase::Nursery) {
            // A process that shares this memory may have been killed in such a call.
            for _ in 0..FORK_LOOKS_MAX {
                if CHANGING.load(Ordering::SeqCst) == 0 {
                    break;
                }
                sys::nap();
            }
            let _scope = scope::internal_scope();
            start_here(prepared);
        }
        IS_STARTING.store(false, Ordering::SeqCst);
    } else {
        while waits && runtime::phase() == Phase::Nursery && IS_STARTING.load(Ordering::SeqCst) {
            sys::nap();
        }
    }
    sys::restore_signals(mask);
    sys::set_errno(errno);
}

/// Keeps forks away. A thread that only allocates does not wait for one; others do, but the fork may
/// wait for a lock that the caller holds.
fn alone(waits: bool) -> Option<sys::Held<'static, ()>> {
    for _ in 0..FORK_LOOKS_MAX {
        let held = runtime::without_forks_now();
        if held.is_some() || !waits {
            return held;
        }
        sys::nap();
    }
    None
}

fn start_here(prepared: &Prepared) {
    export_limits::before_late_start();
    let config = prepared.config.clone();
    let nursery = prepared.nursery.with(EARLY.ranges());
    match hiroma_far::Pager::start_late(config, nursery) {
        Ok(pager) => {
            export_limits::after_late_start(pager.own_bytes());
            runtime::has_pager(pager);
        }
        Err(error)
            if error.is_passing() && PUT_OFF.fetch_add(1, Ordering::Relaxed) < PUT_OFF_MAX => {}
        Err(error) => runtime::stays_without_pager(&error.to_string()),
    }
}

/// Whether a block that is not in the arena is mimalloc's: without a pager, and where the nursery
/// is full and the pager cannot start, it maps memory itself.
pub fn is_on_heap(block: usize) -> bool {
    // SAFETY: only compares the address with mimalloc's table.
    !matches!(runtime::phase(), Phase::Early | Phase::PassThrough)
        && !internal::contains(block)
        && unsafe { mi::mi_is_in_heap_region(block as *const _) }
}
