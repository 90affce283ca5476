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
//! - A thread that only allocates does not wait while another one starts the pager, or not for
//!   long: when three quarters of the limit are used.
//! - The size is counted from what was handed out, touched or not, because nothing is told when it is
//!   touched later. `/proc` is not asked: its descriptor would be seen by other threads.
//! - A child of `vfork` runs on its parent's memory, and starts nothing.
//! - A process that is about to lose rights which the start needs has its pager started before.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hiroma_far::Config;
use hiroma_far::nursery::Nursery;
use hiroma_units::{EXTENT, PAGE};
use libmimalloc_sys as mi;

use crate::classify::{ALIGNED_MIN, MapPlan, RemapCall};
use crate::early::{Access, Early};
use crate::runtime::{self, Phase};
use crate::{export_brk, export_limits, internal, scope, sys};

const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Largest size of the nursery, and the one where the kernel does not allow so much. Most of it is never
/// touched: each thread has segments of mimalloc's of its own, and what does not fit starts the pager.
const NURSERY_BYTES: [usize; 2] = [4 << 30, 512 << 20];
/// mimalloc's segments are multiples of this.
const ALIGN: usize = 32 << 20;
/// A thread adds up this many bytes before it tells the others.
const STEP: isize = 64 << 10;
/// How often a thread looks at most whether another one has forked, 50 us apart at least. A clock may
/// not be there.
const FORK_LOOKS_MAX: u32 = 2000;
/// The same for calls of other threads that change mappings, which may get no processor for long.
const CHANGE_LOOKS_MAX: u32 = 10 * FORK_LOOKS_MAX;
/// Failures that may pass, until a process goes on without a pager.
const PUT_OFF_MAX: u32 = 1000;
/// A thread that is slower than others starts the pager only when the process has so many times the
/// size at which it should.
const SLOW_FACTOR: usize = 4;
/// A thread that has taken so much, whatever it has given back, tells the others. How many pages are in
/// use is looked at when half of what was left may have been taken: blocks that stay may keep many.
const PAGES_STEP: usize = 4 << 20;
/// Number of segments of mimalloc's in the largest nursery.
const SEGMENTS: usize = NURSERY_BYTES[0] / ALIGN;

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
/// The program has asked where its break is.
static HAS_BREAK: AtomicBool = AtomicBool::new(false);
/// What threads have taken since pages were looked at, and how much may be taken until the next time.
static TAKEN_BY_ALL: AtomicUsize = AtomicUsize::new(0);
static LOOK_AT: AtomicUsize = AtomicUsize::new(0);
/// A bit for each segment of the nursery in which blocks were handed out.
static SEGMENTS_USED: [AtomicU64; SEGMENTS.div_ceil(64)] =
    [const { AtomicU64::new(0) }; SEGMENTS.div_ceil(64)];
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
    let most = (config.nursery_bytes as usize).next_multiple_of(ALIGN);
    let reserve = |bytes: usize| Nursery::reserve(config, bytes.min(most), ALIGN).ok();
    let Some(nursery) = NURSERY_BYTES.into_iter().find_map(reserve) else { return false };
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
    LOOK_AT.store(config.manage_from_bytes as usize / 2, Ordering::Relaxed);
    sys::note_stderr();
    EARLY.is_at(end..break_of(&nursery).start.max(end));
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
    CHANGING.store(0, Ordering::Relaxed);
    EARLY.is_mine();
    let Some(prepared) = PREPARED.get().filter(|_| runtime::phase() == Phase::Nursery) else {
        return;
    };
    // The kernel has left holes, in which it would map anything.
    while let Some(range) = EARLY.unforked().next() {
        let (start, len) = (range.start, range.len());
        if EARLY.cut(start, len, || prepared.nursery.close(start, len)).is_none_or(|it| it.is_err())
        {
            break;
        }
    }
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
    let before = TAKEN.get();
    let taken = before + bytes.max(0) as usize;
    TAKEN.set(taken);
    if untold.abs() >= STEP || taken >= PAGES_STEP || before == 0 {
        tell(before == 0);
    }
}

/// `is_new`: the thread has told nothing yet. It may end before it does, so it tells ahead what it may
/// not come to tell.
#[cold]
fn tell(is_new: bool) {
    HANDED_OUT.fetch_add(UNTOLD.replace(0), Ordering::Relaxed);
    let mut kept = 0;
    let taken = match TAKEN.get() {
        taken if taken >= PAGES_STEP => TAKEN.replace(0),
        _ if is_new => STEP as usize,
        _ => 0,
    };
    if taken > 0 {
        let all = TAKEN_BY_ALL.fetch_add(taken, Ordering::Relaxed) + taken;
        if all >= LOOK_AT.load(Ordering::Relaxed) {
            kept = look_at_pages();
        }
    }
    look(kept);
}

/// How many bytes of pages there are beside the blocks that are handed out.
fn look_at_pages() -> usize {
    let Some(prepared) = PREPARED.get() else { return 0 };
    let memory = prepared.nursery.memory();
    let is_used = |at: &usize| SEGMENTS_USED[at / 64].load(Ordering::Relaxed) >> (at % 64) & 1 == 1;
    let segment = |at: usize| {
        let start = memory.start + at * ALIGN;
        start..(start + ALIGN).min(memory.end)
    };
    let used = (0..SEGMENTS).filter(is_used).map(segment).filter(|part| !part.is_empty());
    let resident: usize = used.map(sys::resident_bytes).sum();
    let blocks = HANDED_OUT.load(Ordering::Relaxed).max(0) as usize;
    let left = (prepared.config.manage_from_bytes as usize)
        .saturating_sub(resident.max(blocks) + EARLY.bytes());
    TAKEN_BY_ALL.store(0, Ordering::Relaxed);
    LOOK_AT.store(left / 2, Ordering::Relaxed);
    resident.saturating_sub(blocks)
}

/// A block is handed out while there is no pager.
#[inline]
pub fn hands_out(block: usize) {
    let Some(prepared) = PREPARED.get() else { return };
    let at = block.wrapping_sub(prepared.nursery.memory().start) / ALIGN;
    if let Some(word) = SEGMENTS_USED.get(at / 64) {
        let bit = 1 << (at % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
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
    let is_much = used(bytes) > used_max(&prepared.config);
    if is_much || !Nursery::is_slow_thread() {
        start(false);
    }
    if is_much {
        await_start();
    }
}

/// Waits for a thread that is starting the pager, but not for long: that thread needs nothing that
/// the caller may hold, yet it may have to wait for a fork that does.
fn await_start() {
    for _ in 0..FORK_LOOKS_MAX {
        if runtime::phase() != Phase::Nursery || !IS_STARTING.load(Ordering::SeqCst) {
            break;
        }
        sys::nap();
    }
}

/// How much a process may use before a slow thread starts the pager too, and before threads that
/// allocate wait while another one does: else they would exceed the limit meanwhile.
fn used_max(config: &Config) -> usize {
    let within = (config.local_limit_bytes / 4 * 3).max(config.manage_from_bytes);
    (SLOW_FACTOR as u64 * config.manage_from_bytes).min(within) as usize
}

/// Makes a mapping for a small process; `kernel` is the call that the program makes. `None`: it has a
/// pager now, or can have neither.
pub fn maps(
    plan: &MapPlan,
    prot: i32,
    kernel: impl FnOnce() -> Result<usize, sys::Errno>,
) -> Option<Result<usize, sys::Errno>> {
    let at = |len: usize, align: usize, prot| map_early(len, align >= EXTENT, prot).map(Ok);
    let mapped = match plan {
        MapPlan::PassThrough => return None,
        MapPlan::Map { len, align, protect } => at(*len, *align, protect.unwrap_or(PROT_RW)),
        MapPlan::Reserve { len, align } => at(*len, *align, libc::PROT_NONE),
        MapPlan::Refresh(split) if split.is_managed() => refresh_early(&split.inside, prot).map(Ok),
        MapPlan::Replace(split) if split.is_managed() => replace_early(&split.inside, kernel),
        _ => None,
    };
    if mapped.is_none() {
        start(true);
    }
    mapped
}

/// Memory for a process without a pager; `is_long`: at the start of an extent. `None`: it has a pager,
/// or has grown so much that it gets one.
pub fn map_early(len: usize, is_long: bool, prot: i32) -> Option<usize> {
    let prepared = PREPARED.get()?;
    let (len, _calls) = (len.checked_next_multiple_of(PAGE)?, Changing::begin()?);
    let access = Access::of(prot);
    if len == 0 || access != Access::None && !is_small(prepared, len) {
        return None;
    }
    EARLY.place(len, is_long, access).filter(|&start| {
        let is_open = match access {
            Access::None => true,
            Access::ReadWrite => prepared.nursery.open(start, len).is_ok(),
            Access::Other | Access::Foreign => prepared.nursery.renew(start, len, prot).is_ok(),
        };
        if !is_open {
            let _ = EARLY.cut(start, len, || Ok::<(), ()>(()));
        }
        is_open
    })
}

/// Begins to give access to memory; the pager starts before, if it is too much. `None`: the process
/// has one.
fn begin_to_commit(
    prepared: &Prepared,
    start_of: usize,
    len: usize,
    access: Access,
) -> Option<Changing> {
    if access != Access::None && !is_small(prepared, EARLY.uncommitted(start_of, len)) {
        // If it cannot start yet, the kernel gives access all the same.
        start(true);
    }
    Changing::begin()
}

/// Maps zeros over a part of early mappings. `None`: it is something else, or the process has a
/// pager.
fn refresh_early(range: &Range<usize>, prot: i32) -> Option<usize> {
    let prepared = PREPARED.get()?;
    let (start, len) = (range.start, range.len());
    let access = Access::of(prot);
    let _calls = begin_to_commit(prepared, start, len, access)?;
    let renew = || prepared.nursery.renew(start, len, prot);
    EARLY.replace(start, len, access, renew)?.ok().map(|()| start)
}

/// Maps something else over a part of early mappings. `None`: it is not in them.
fn replace_early(
    range: &Range<usize>,
    kernel: impl FnOnce() -> Result<usize, sys::Errno>,
) -> Option<Result<usize, sys::Errno>> {
    let _calls = Changing::begin()?;
    let replaced =
        EARLY.replace(range.start, range.len(), Access::Foreign, || kernel().map(drop))?;
    Some(replaced.map(|()| range.start))
}

/// Changes the protection of memory of a process without a pager. `None`: it has one, or has to get
/// one.
pub fn protects(start: usize, len: usize, prot: i32) -> Option<Result<(), sys::Errno>> {
    let prepared = PREPARED.get().filter(|_| runtime::phase() == Phase::Nursery)?;
    let len = len.checked_next_multiple_of(PAGE).filter(|_| start % PAGE == 0)?;
    if prot & !(PROT_RW | libc::PROT_EXEC) != 0 {
        return None;
    }
    let access = Access::of(prot);
    let is_foreign = EARLY.is_foreign(start, len);
    let counted = if is_foreign { Access::None } else { access };
    let _calls = begin_to_commit(prepared, start, len, counted)?;
    if is_foreign {
        // SAFETY: the program requested this call.
        return Some(unsafe { sys::mprotect(start, len, prot) });
    }
    // A reservation is not in core files.
    let opens = access != Access::None && EARLY.uncommitted(start, len) > 0;
    let protect = || {
        prepared.nursery.protect(start, len, prot)?;
        if opens {
            prepared.nursery.dumps(start, len);
        }
        Ok(())
    };
    let heap = prepared.nursery.memory();
    let protected = if heap.start <= start && start.checked_add(len)? <= heap.end {
        protect()
    } else {
        EARLY.protect(start, len, access, protect)?
    };
    Some(protected.map_err(errno_of))
}

fn errno_of(error: std::io::Error) -> sys::Errno {
    sys::Errno(error.raw_os_error().unwrap_or(libc::ENOMEM))
}

/// Whether a range of early mappings has parts that are not mapped.
pub fn has_hole(start: usize, len: usize) -> bool {
    len.checked_next_multiple_of(PAGE).is_some_and(|len| EARLY.has_hole(start, len))
}

/// Whether something else than memory of ours is mapped in all of a range.
pub fn is_foreign(start: usize, len: usize) -> bool {
    EARLY.is_foreign(start, len)
}

/// Children do not get a range any more (`MADV_DONTFORK`), or get it again; `kernel` is the call that
/// the program makes. `None`: the process has a pager, or has to get one.
pub fn unforks(
    start: usize,
    len: usize,
    is_unforked: bool,
    kernel: impl FnOnce() -> Result<(), sys::Errno>,
) -> Option<Result<(), sys::Errno>> {
    let len = len.checked_next_multiple_of(PAGE).filter(|_| start % PAGE == 0)?;
    let _calls = Changing::begin()?;
    EARLY.unfork(start, len, is_unforked, kernel)
}

/// Drops the content of a range. `None`: the process has a pager.
pub fn discards(start: usize, len: usize) -> Option<Result<(), sys::Errno>> {
    let _calls = Changing::begin()?;
    // SAFETY: the program requested this call.
    Some(unsafe { sys::madvise(start, len, libc::MADV_DONTNEED) })
}

/// The program's heap of `brk`, at the end of the arena, where a pager places nothing so soon.
fn break_of(nursery: &Nursery) -> Range<usize> {
    let (base, len) = nursery.arena();
    base + len - export_brk::span(len)..base + len
}

/// Reserves the program's heap of `brk` before there is a pager. Returns its start.
pub fn reserve_break() -> Option<usize> {
    let prepared = PREPARED.get().filter(|_| !scope::is_internal())?;
    let (heap, area) = (break_of(&prepared.nursery), prepared.nursery.memory());
    let _calls = Changing::begin().filter(|_| heap.start >= area.end)?;
    HAS_BREAK.store(true, Ordering::SeqCst);
    Some(heap.start)
}

/// Unmaps what is mapped in a range of early mappings. `None`: it is something else, or the process
/// has a pager.
pub fn unmaps(start: usize, len: usize) -> Option<Result<(), sys::Errno>> {
    let prepared = PREPARED.get().filter(|_| runtime::phase() == Phase::Nursery)?;
    let len = len.checked_next_multiple_of(PAGE)?;
    let _calls = Changing::begin().filter(|_| EARLY.contains(start, len))?;
    let (mut at, end) = (start, start + len);
    while let Some(part) = (at < end).then(|| EARLY.first_in(at, end - at)).flatten() {
        // First: in a child of a fork in between it must not be free and have content.
        let close = || {
            let (start, len) = (part.start, part.len());
            let closed = prepared.nursery.close(start, len);
            // Where there are too many mappings already, it is at least empty.
            closed.or_else(|error| {
                if EARLY.is_ours(start, len) {
                    prepared.nursery.empty(start, len)
                } else {
                    Err(error)
                }
            })
        };
        if let Err(error) = EARLY.cut(part.start, part.len(), close)? {
            return Some(Err(errno_of(error)));
        }
        at = part.end;
    }
    Some(Ok(()))
}

/// Resizes an early mapping. `None`: it is something else, or the process has grown too much.
pub fn resizes(call: RemapCall) -> Option<Result<usize, sys::Errno>> {
    let RemapCall { old, old_len, new_len, flags, .. } = call;
    let may_move = match flags {
        0 => false,
        libc::MREMAP_MAYMOVE => true,
        _ => return None,
    };
    let prepared = PREPARED.get().filter(|_| runtime::phase() == Phase::Nursery)?;
    let old_len = old_len.checked_next_multiple_of(PAGE)?;
    let new_len = new_len.checked_next_multiple_of(PAGE).filter(|&len| len > 0)?;
    if !EARLY.is_plain(old, old_len) {
        return None;
    }
    if new_len <= old_len {
        if new_len == old_len {
            return Some(Ok(old));
        }
        return unmaps(old + new_len, old_len - new_len).map(|done| done.map(|()| old));
    }
    if !is_small(prepared, new_len - old_len) {
        return None;
    }
    {
        let _calls = Changing::begin()?;
        let open = || prepared.nursery.open(old + old_len, new_len - old_len).is_ok();
        if EARLY.grow(old, old_len, new_len, open) {
            return Some(Ok(old));
        }
    }
    if !may_move {
        return Some(Err(sys::Errno(libc::ENOMEM)));
    }
    let new = map_early(new_len, EARLY.is_long(old) || new_len >= ALIGNED_MIN, PROT_RW)?;
    let _calls = Changing::begin()?;
    // The old place stays mapped and empty, so that nothing else is mapped there.
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the program requested it; the new place was mapped for this just now.
    let moved =
        unsafe { sys::call(libc::SYS_mremap, [old, old_len, old_len, flags as usize, new, 0]) };
    let (gone, len) = if moved.is_ok() { (old, old_len) } else { (new, new_len) };
    let _ = EARLY.cut(gone, len, || prepared.nursery.close(gone, len));
    moved.ok().map(Ok)
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
            for _ in 0..CHANGE_LOOKS_MAX {
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
    let config = Config { has_begun: true, ..prepared.config.clone() };
    let mut mapped = EARLY.take();
    if HAS_BREAK.load(Ordering::SeqCst) {
        mapped.reserved = Some(break_of(&prepared.nursery));
        // It has moved where an earlier start has failed.
        mapped.ranges.extend(export_brk::in_use());
    }
    let nursery = prepared.nursery.with(mapped);
    match hiroma_far::Pager::start_late(config, nursery) {
        Ok(pager) => {
            export_limits::after_late_start(pager.own_bytes());
            runtime::has_pager(pager);
        }
        Err(error)
            if error.is_passing() && PUT_OFF.fetch_add(1, Ordering::Relaxed) < PUT_OFF_MAX =>
        {
            EARLY.reopen()
        }
        Err(error) => runtime::stays_without_pager(&prepared.config, &error.to_string()),
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
