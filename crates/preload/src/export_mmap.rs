//! The `mmap` family and `prctl` under the names that programs call.
//!
//! Contract: C's, as the kernel implements it, including `errno`. Ranges that are not managed are
//! passed to the kernel unchanged. Nothing unwinds.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hiroma_far::{Advice, Owner, Pager, PagerError, territory};
use hiroma_units::{Bytes, EXTENT, PAGE};
use libc::{PROT_READ, PROT_WRITE};

use crate::classify::{self, AdvicePlan, MapCall, MapPlan, RemapCall, Split};
use crate::runtime::{self, Phase};
use crate::small::SMALL;
use crate::sys::{self, Errno};
use crate::{export_exec, export_lock, nursery, remap, scope};

pub type CallResult<T> = Result<T, Errno>;

pub fn errno_of(error: PagerError) -> Errno {
    Errno(error.errno())
}

/// The return value in C: the value, or -1 and `errno`.
pub fn answer(outcome: CallResult<usize>) -> usize {
    outcome.unwrap_or_else(|Errno(errno)| {
        sys::set_errno(errno);
        usize::MAX
    })
}

pub fn status(outcome: CallResult<()>) -> c_int {
    answer(outcome.map(|()| 0)) as c_int
}

/// The arena as seen by the calling thread: empty where nothing is managed.
pub fn arena() -> Range<usize> {
    if runtime::is_managed() { runtime::arena() } else { 0..0 }
}

/// Whether a part of a range is in the arena, and there is no pager yet.
pub fn is_in_nursery(addr: usize, len: usize) -> bool {
    runtime::phase() == Phase::Nursery
        && !scope::is_internal()
        && classify::split(addr, len, &runtime::arena()).is_some()
}

/// Cuts a range at the arena. `None` if only the kernel is concerned.
pub fn managed(addr: usize, len: usize) -> Option<Split> {
    if is_in_nursery(addr, len) {
        nursery::start_now();
    }
    let arena = arena();
    if arena.is_empty() { None } else { classify::split(addr, len, &arena) }
}

/// Calls the pager for the managed part of a range.
pub fn inside(
    split: &Split,
    f: impl FnOnce(&Pager, usize, usize) -> Result<(), PagerError>,
) -> CallResult<()> {
    let Range { start, end } = split.inside;
    runtime::far(|pager| f(pager, start, end - start)).unwrap_or(Ok(())).map_err(errno_of)
}

/// Applies `f` to the managed part of a range, and `g` to the other parts.
pub fn everywhere(
    split: &Split,
    f: impl FnOnce(&Pager, usize, usize) -> Result<(), PagerError>,
    g: impl Fn(usize, usize) -> CallResult<()>,
) -> CallResult<()> {
    inside(split, f)?;
    split.outside().try_for_each(|part| g(part.start, part.len()))
}

/// Detects programs that accept reservations only at the hinted address (ZGC): they unmap those at
/// another address untouched.
struct Hints {
    /// Address of the last reservation with a hint.
    last: AtomicUsize,
    /// Number of reservations in a row that were unmapped.
    refused: AtomicUsize,
    told: AtomicBool,
}

static HINTS: Hints =
    Hints { last: AtomicUsize::new(0), refused: AtomicUsize::new(0), told: AtomicBool::new(false) };

/// After this number, the kernel follows the hint. A program that needs an alignment unmaps one
/// reservation and keeps the next; Java's other collectors try a few dozen hints for a good address
/// and then accept any.
const REFUSED_MAX: usize = 64;

impl Hints {
    fn insists(&self) -> bool {
        self.refused.load(Relaxed) >= REFUSED_MAX
    }

    /// Called when the kernel has put a reservation at the hinted address: warns once that this
    /// memory is outside the limit.
    fn granted(&self, wanted: usize, got: usize, len: usize) {
        if wanted == got && !self.told.swap(true, Relaxed) {
            let _scope = scope::internal_scope();
            hiroma_far::fatal::warn(&format!(
                "the program takes {} of address space where it wants it and nowhere else (Java's ZGC does): what it keeps there is not far and not in --local",
                Bytes(len as u64)
            ));
        }
    }

    fn missed(&self, start: usize) {
        if self.last.swap(start, Relaxed) != 0 {
            self.refused.store(0, Relaxed);
        }
    }

    fn unmapped(&self, start: usize) {
        if start != 0 && self.last.compare_exchange(start, 0, Relaxed, Relaxed).is_ok() {
            self.refused.fetch_add(1, Relaxed);
        }
    }
}

/// Warns once that a large mapping is outside the limit.
fn tell_local(call: &MapCall) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    let Some(what) = classify::stays_local(call) else { return };
    let bytes = BYTES.fetch_add(call.len, Relaxed) + call.len;
    if bytes >= classify::WORTH_TELLING && !TOLD.swap(true, Relaxed) {
        let mask = sys::block_signals();
        let _scope = scope::internal_scope();
        hiroma_far::fatal::warn(&format!(
            "the program maps {} of memory {what}: what it keeps there is not far and not in --local",
            Bytes(bytes as u64)
        ));
        sys::restore_signals(mask);
    }
}

/// The same before there is a pager: a process all of whose memory stays local never has one.
fn tell_early(call: &MapCall) {
    if runtime::phase() == Phase::Nursery && !scope::is_internal() {
        tell_local(call);
    }
}

/// Managed addresses are used up: reported once.
fn tell_full() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Relaxed) {
        sys::say(
            "hiroma: the program has reserved all addresses of far memory: what it maps from now on is not far and not in --local",
        );
    }
}

/// Fails if anything is mapped in the managed part.
pub fn must_be_free(split: &Split) -> CallResult<()> {
    let Range { start, end } = split.inside;
    let free = runtime::far(|pager| pager.is_free(start, end - start));
    if free.unwrap_or(Ok(false)).map_err(errno_of)? { Ok(()) } else { Err(Errno(libc::EEXIST)) }
}

/// Locks a new mapping, if the program wants that of all (`mlockall`).
fn lock_future(start: usize, len: usize) {
    if export_lock::LOCK_FUTURE.load(Relaxed) {
        let _ = far_or_unreachable(|pager| pager.pin_on_touch(start, len).map(|()| 0));
    }
}

/// Maps memory for a process without a pager. `None`: it has one now, or the kernel makes this
/// mapping.
fn map_in_nursery(
    call: &MapCall,
    managed_min: usize,
    kernel: impl FnOnce() -> CallResult<usize>,
) -> Option<CallResult<usize>> {
    let plan = classify::map(*call, managed_min, &runtime::arena());
    let is_reservation = matches!(plan, MapPlan::Reserve { .. });
    if is_reservation && call.addr != 0 && HINTS.insists() {
        nursery::start_now();
        return None;
    }
    let mapped = nursery::maps(&plan, call.prot, kernel);
    if let Some(Ok(start)) = mapped {
        if is_reservation {
            HINTS.missed(if call.addr == 0 { 0 } else { start });
        }
    }
    mapped
}

/// Whether the kernel makes a mapping, tried anywhere: it refuses before it unmaps what is there, and so
/// must we, who cannot bring back what was released.
fn would_map(
    map: impl FnOnce(c_int) -> CallResult<usize>,
    flags: c_int,
    len: usize,
) -> CallResult<()> {
    const AT_A_PLACE: c_int =
        libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
    let at = match map(flags & !AT_A_PLACE | libc::MAP_NORESERVE) {
        Ok(at) => at,
        // Two of them may be too many where one is not.
        Err(Errno(libc::ENOMEM | libc::EAGAIN)) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    // Huge pages are unmapped in whole ones.
    for unit in [PAGE, EXTENT, 1 << 30] {
        // SAFETY: it was mapped just now, and nobody knows of it.
        if unsafe { sys::munmap(at, len.next_multiple_of(unit)) }.is_ok() {
            break;
        }
    }
    Ok(())
}

/// A mapping of a file at the kernel's choice by the pager itself: rings of io_uring. Elsewhere they
/// might fill a hole that the program has made.
fn map_ring(len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> CallResult<usize> {
    // SAFETY: a new mapping.
    let map = |place| unsafe { sys::mmap(0, len, prot, flags | place, fd, offset) };
    map(territory::OF_RINGS).or_else(|_| map(0))
}

pub fn do_mmap(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> CallResult<usize> {
    if offset % PAGE as i64 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the program requested this call, at its own risk.
    let with_flags = |flags: c_int, addr: usize, len: usize, offset: i64| unsafe {
        sys::mmap(addr, len, prot, flags, fd, offset)
    };
    let kernel = |addr: usize, len: usize, offset: i64| with_flags(flags, addr, len, offset);
    if fd >= 0 && addr == 0 && scope::is_internal() {
        return map_ring(len, prot, flags, fd, offset);
    }
    let call = MapCall { addr, len, prot, flags };
    let managed_min = SMALL.managed_min();
    if runtime::phase() == Phase::Nursery && !scope::is_internal() {
        if let Some(mapped) = map_in_nursery(&call, managed_min, || kernel(addr, len, offset)) {
            return mapped;
        }
    }
    let remember = |&start: &usize| {
        if !scope::is_internal() {
            SMALL.mapped(&call, start);
        }
    };
    let arena = arena();
    if arena.is_empty() {
        return kernel(addr, len, offset).inspect(|_| tell_early(&call)).inspect(remember);
    }
    match classify::map(call, managed_min, &arena) {
        MapPlan::PassThrough => {
            kernel(addr, len, offset).inspect(|_| tell_local(&call)).inspect(remember)
        }
        MapPlan::Exists => Err(Errno(libc::EEXIST)),
        MapPlan::IfFree(split) => {
            must_be_free(&split)?;
            inside(&split, |pager, start, len| pager.refresh(start, len, prot))?;
            Ok(addr)
        }
        MapPlan::ReplaceIfFree(split) => {
            must_be_free(&split)?;
            would_map(|flags| with_flags(flags, 0, len, offset), flags, len)?;
            inside(&split, |pager, start, len| pager.release(start, len))?;
            // The reservation of the arena is there.
            let fixed = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
            with_flags(fixed, addr, len, offset)
        }
        MapPlan::Map { len, align, protect } => {
            let map = |pager: &Pager| {
                let start = pager.map(len, align)?;
                protect.map_or(Ok(start), |prot| {
                    pager.protect(start, len, prot).map(|()| start).inspect_err(|_| {
                        let _ = pager.unmap(start, len);
                    })
                })
            };
            let start = match runtime::far(map).unwrap_or_else(|| unreachable!("there is an arena"))
            {
                Err(PagerError::NoAddresses { .. }) => {
                    return kernel(addr, len, offset).inspect(|_| tell_full());
                }
                outcome => outcome.map_err(errno_of)?,
            };
            lock_future(start, len);
            Ok(start)
        }
        MapPlan::Reserve { .. } if addr != 0 && HINTS.insists() => {
            kernel(addr, len, offset).inspect(|&start| HINTS.granted(addr, start, len))
        }
        MapPlan::Reserve { len, align } => {
            let start = runtime::far(|pager| pager.reserve(len, align))
                .unwrap_or_else(|| unreachable!("there is an arena"));
            if let Err(PagerError::NoAddresses { .. }) = start {
                return kernel(addr, len, offset).inspect(|_| tell_full());
            }
            start
                .map_err(errno_of)
                .inspect(|&start| HINTS.missed(if addr == 0 { 0 } else { start }))
        }
        MapPlan::Refresh(split) => {
            everywhere(
                &split,
                |pager, start, len| pager.refresh(start, len, prot),
                |start, len| kernel(start, len, offset).map(drop),
            )?;
            lock_future(split.inside.start, split.inside.len());
            Ok(addr)
        }
        MapPlan::Replace(split) => {
            would_map(|flags| with_flags(flags, 0, len, offset), flags, len)?;
            inside(&split, |pager, start, len| pager.release(start, len))?;
            kernel(addr, len, offset)
        }
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    answer(do_mmap(addr as usize, len, prot, flags, fd, offset)) as *mut c_void
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    answer(do_mmap(addr as usize, len, prot, flags, fd, offset)) as *mut c_void
}

pub fn do_munmap(addr: usize, len: usize) -> CallResult<()> {
    // SAFETY: the program requested this call.
    let kernel = |addr, len| unsafe { sys::munmap(addr, len) };
    if is_in_nursery(addr, len) {
        if let Some(unmapped) = nursery::unmaps(addr, len) {
            return unmapped.inspect(|()| HINTS.unmapped(addr));
        }
    }
    match managed(addr, len) {
        None => {
            SMALL.changed(addr, len);
            kernel(addr, len)
        }
        Some(split) => {
            everywhere(&split, Pager::unmap, kernel)?;
            HINTS.unmapped(addr);
            Ok(())
        }
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    status(do_munmap(addr as usize, len))
}

pub fn do_mprotect(addr: usize, len: usize, prot: c_int) -> CallResult<()> {
    // SAFETY: the program requested this call.
    let kernel = |addr, len| unsafe { sys::mprotect(addr, len, prot) };
    if is_in_nursery(addr, len) {
        if let Some(protected) = nursery::protects(addr, len, prot) {
            return protected;
        }
    }
    let Some(split) = managed(addr, len) else {
        if prot != PROT_READ | PROT_WRITE {
            SMALL.changed(addr, len);
        }
        return kernel(addr, len);
    };
    everywhere(&split, |pager, start, len| pager.protect(start, len, prot), kernel)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    status(do_mprotect(addr as usize, len, prot))
}

pub fn do_pkey_mprotect(addr: usize, len: usize, prot: c_int, pkey: c_int) -> CallResult<()> {
    if pkey == -1 {
        return do_mprotect(addr, len, prot);
    }
    if let Some(split) = managed(addr, len) {
        let Range { start, end } = split.inside;
        let owner = runtime::far(|pager| pager.owner(start, end - start));
        match owner {
            Some(Ok(Owner::Foreign)) => {}
            // Managed memory has no key but this.
            _ if pkey == 0 => return do_mprotect(addr, len, prot),
            // The pager's own accesses would need the key too. The kernel's error on processors
            // without keys.
            _ => return Err(Errno(libc::EINVAL)),
        }
    }
    // SAFETY: the program requested this call.
    unsafe {
        sys::call(libc::SYS_pkey_mprotect, [addr, len, prot as usize, pkey as usize, 0, 0])
            .map(drop)
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    pkey: c_int,
) -> c_int {
    status(do_pkey_mprotect(addr as usize, len, prot, pkey))
}

pub fn do_madvise(addr: usize, len: usize, advice: c_int) -> CallResult<()> {
    // SAFETY: the program requested this call.
    let kernel = |addr, len| unsafe { sys::madvise(addr, len, advice) };
    if is_in_nursery(addr, len) {
        let plan = classify::advice(advice);
        if nursery::is_foreign(addr, len) && !matches!(plan, AdvicePlan::DontFork(_)) {
            return kernel(addr, len);
        }
        let has_hole = nursery::has_hole(addr, len) && plan != AdvicePlan::Refuse;
        let whole = if has_hole { Err(Errno(libc::ENOMEM)) } else { Ok(()) };
        match plan {
            // The kernel may act on lazy advice later, which the pager would not know.
            AdvicePlan::Discard => {
                if let Some(done) = nursery::discards(addr, len) {
                    return done.and(whole);
                }
            }
            _ if has_hole => return whole,
            AdvicePlan::Kernel => return kernel(addr, len),
            // Different advice would make several mappings of the nursery.
            AdvicePlan::Accept
            | AdvicePlan::WillNeed
            | AdvicePlan::Cold
            | AdvicePlan::Sequential
            | AdvicePlan::Random
            | AdvicePlan::Normal => return Ok(()),
            AdvicePlan::DontFork(on) => {
                if let Some(done) = nursery::unforks(addr, len, on, || kernel(addr, len)) {
                    return done;
                }
            }
            AdvicePlan::Refuse | AdvicePlan::WipeOnFork(_) => {}
        }
    }
    let Some(split) = managed(addr, len) else {
        return kernel(addr, len);
    };
    let hint = |advice: Advice| move |pager: &Pager, start, len| pager.advise(start, len, advice);
    match classify::advice(advice) {
        AdvicePlan::Discard => everywhere(&split, Pager::discard, kernel),
        AdvicePlan::WillNeed => everywhere(&split, hint(Advice::WillNeed), kernel),
        AdvicePlan::Cold => everywhere(&split, hint(Advice::Cold), kernel),
        AdvicePlan::Sequential => everywhere(&split, hint(Advice::Sequential), kernel),
        AdvicePlan::Random => everywhere(&split, hint(Advice::Random), kernel),
        AdvicePlan::Normal => everywhere(&split, hint(Advice::Normal), kernel),
        AdvicePlan::WipeOnFork(on) => {
            everywhere(&split, |pager, start, len| pager.wipe_on_fork(start, len, on), kernel)
        }
        AdvicePlan::DontFork(on) => {
            everywhere(&split, |pager, start, len| pager.dont_fork(start, len, on), kernel)
        }
        AdvicePlan::Accept => everywhere(&split, Pager::all_mapped, kernel),
        AdvicePlan::Kernel => {
            inside(&split, Pager::all_mapped)?;
            kernel(addr, len)
        }
        AdvicePlan::Refuse => {
            // Shared memory that the program has mapped there is the kernel's.
            let range = &split.inside;
            let owner = runtime::far(|pager| pager.owner(range.start, range.len()));
            match owner {
                Some(Ok(Owner::Foreign)) => kernel(addr, len),
                _ => Err(Errno(libc::EINVAL)),
            }
        }
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    status(do_madvise(addr as usize, len, advice))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        // POSIX's advice is a hint and keeps the content, so glibc ignores it, and so do we.
        return 0;
    }
    do_madvise(addr as usize, len, advice).map_or_else(|Errno(errno)| errno, |()| 0)
}

pub fn far_or_unreachable(
    f: impl FnOnce(&Pager) -> Result<usize, PagerError>,
) -> CallResult<usize> {
    runtime::far(f).unwrap_or_else(|| unreachable!("there is an arena")).map_err(errno_of)
}

/// C's fifth argument is optional. If it is not passed, the register has an arbitrary value, which
/// is not read.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    answer(remap::do_mremap(RemapCall {
        old: old as usize,
        old_len,
        new_len,
        flags,
        new: new as usize,
    })) as *mut c_void
}

/// Calls that only inspect mappings. The pager checks the range first, because memory that the
/// program has unmapped is still mapped in the kernel.
pub fn do_look(number: c_long, addr: usize, len: usize, third: usize) -> CallResult<()> {
    if is_in_nursery(addr, len) {
        if nursery::has_hole(addr, len) {
            return Err(Errno(libc::ENOMEM));
        }
    } else if let Some(split) = managed(addr, len) {
        inside(&split, Pager::all_mapped)?;
    }
    // SAFETY: the program requested this call.
    unsafe { sys::call(number, [addr, len, third, 0, 0, 0]).map(drop) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mincore(addr: *mut c_void, len: usize, vector: *mut u8) -> c_int {
    status(do_look(libc::SYS_mincore, addr as usize, len, vector as usize))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msync(addr: *mut c_void, len: usize, flags: c_int) -> c_int {
    status(do_look(libc::SYS_msync, addr as usize, len, flags as usize))
}

/// Before the program restricts itself.
fn before_prctl(option: c_int) {
    if matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_DUMPABLE) {
        nursery::start_now();
    }
    if option == libc::PR_SET_SECCOMP {
        export_exec::stop();
    }
}

pub fn do_prctl(option: c_int, [a, b, c, d]: [usize; 4]) -> CallResult<usize> {
    const PR_SET_VMA: c_int = 0x5356_4d41;
    // Named parts would be separate mappings, and the kernel moves no pages across the borders of
    // mappings.
    if option == PR_SET_VMA && (is_in_nursery(b, c) || managed(b, c).is_some()) {
        return Ok(0);
    }
    before_prctl(option);
    // SAFETY: the program requested this call.
    unsafe { sys::call(libc::SYS_prctl, [option as usize, a, b, c, d, 0]) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    answer(do_prctl(option, [a, b, c, d])) as c_int
}
