//! `setrlimit` and its variants: limits that the program sets for itself apply to the program, not
//! to the pager.
//!
//! The kernel counts the arena and the pager's memory as the program's (`RLIMIT_AS`,
//! `RLIMIT_DATA`), and a file that the pager of a forked child makes as the child's
//! (`RLIMIT_FSIZE`). Therefore the kernel's soft limit is larger by the amount that the pager
//! takes, and its hard limit is unchanged. The value that the program set is remembered and
//! returned to it, the pager enforces it for managed memory, and the kernel's limit is set to it
//! again when another program is executed.
//!
//! Contract: C's. System calls and atomics only: a child of `vfork` may run this code on its
//! parent's memory.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{RLIM_INFINITY, rlimit};

use crate::sys::{self, Errno};
use crate::{export_wait, internal, nursery, runtime};

/// `CAP_SYS_RESOURCE`: hard limits may be raised.
const CAP_SYS_RESOURCE: u32 = 24;

/// One limit.
struct Limit {
    resource: usize,
    /// Soft and hard limit as the program has set them; infinity: the kernel has the value.
    soft: AtomicU64,
    hard: AtomicU64,
    /// The amount that the pager takes.
    ours: AtomicU64,
}

const fn new(resource: usize) -> Limit {
    Limit {
        resource,
        soft: AtomicU64::new(RLIM_INFINITY),
        hard: AtomicU64::new(RLIM_INFINITY),
        ours: AtomicU64::new(0),
    }
}

static LIMITS: [Limit; 3] = [
    new(libc::RLIMIT_AS as usize),
    new(libc::RLIMIT_DATA as usize),
    new(libc::RLIMIT_FSIZE as usize),
];

impl Limit {
    /// The process's use of the resource in bytes, as the kernel counts it: `memory` is
    /// [`memory`]'s.
    fn used(&self, memory: [usize; 2]) -> u64 {
        match self.resource as u32 {
            libc::RLIMIT_AS => memory[0] as u64,
            libc::RLIMIT_DATA => memory[1] as u64,
            _ => 0,
        }
    }

    /// The limit that the program sees.
    fn seen(&self) -> Result<rlimit, Errno> {
        let kernel = sys::prlimit(0, self.resource, None)?;
        let soft = self.soft.load(Relaxed);
        let rlim_max = kernel.rlim_max.min(self.hard.load(Relaxed));
        let rlim_cur = if soft == RLIM_INFINITY { kernel.rlim_cur } else { soft };
        Ok(rlimit { rlim_cur: rlim_cur.min(rlim_max), rlim_max })
    }

    fn set(&self, new: rlimit) -> Result<(), Errno> {
        let seen = self.seen()?;
        if new.rlim_cur > new.rlim_max {
            return Err(Errno(libc::EINVAL));
        }
        if new.rlim_max > seen.rlim_max && !sys::is_capable(CAP_SYS_RESOURCE) {
            return Err(Errno(libc::EPERM));
        }
        let kernel = sys::prlimit(0, self.resource, None)?;
        let rlim_max = kernel.rlim_max.max(new.rlim_max);
        let rlim_cur = new.rlim_cur.saturating_add(self.ours.load(Relaxed)).min(rlim_max);
        sys::prlimit(0, self.resource, Some(rlimit { rlim_cur, rlim_max }))?;
        self.soft.store(new.rlim_cur, Relaxed);
        self.hard.store(new.rlim_max, Relaxed);
        note();
        Ok(())
    }
}

/// Of the link in the run's directory that says what a process has set, for the programs that it
/// starts: the C library (`posix_spawn`, `system`) executes those by itself, with the kernel's limits.
const NOTE: &str = "limits";
const NOTE_BYTES: usize = 256;

/// Notes for each limit what the kernel has as soft limit, and what the program has set.
fn note() {
    let us = std::process::id();
    let paths = (export_wait::path_of(us, NOTE), export_wait::path_of(us, "limits-draft"));
    let (Some(path), Some(draft)) = paths else { return };
    let mut text = [0; NOTE_BYTES];
    let mut rest = &mut text[..NOTE_BYTES - 1];
    for limit in &LIMITS {
        let kernel = sys::prlimit(0, limit.resource, None).map_or(RLIM_INFINITY, |it| it.rlim_cur);
        let (soft, hard) = (limit.soft.load(Relaxed), limit.hard.load(Relaxed));
        // There is room: 3 times 3 numbers of at most 20 digits.
        let _ = write!(rest, "{kernel} {soft} {hard} ");
    }
    export_wait::replace_link(&path, &draft, &text);
}

/// Gives the kernel the limits that the process which started this one had set.
fn take_from_parent() {
    let kernel = LIMITS.each_ref().map(|limit| sys::prlimit(0, limit.resource, None));
    let is_finite = |it: &Result<rlimit, Errno>| it.is_ok_and(|it| it.rlim_cur != RLIM_INFINITY);
    if !kernel.iter().any(is_finite) {
        return;
    }
    let mut text = [0; NOTE_BYTES];
    let Some(path) = export_wait::path_of(sys::parent_process(), NOTE) else { return };
    let Some(noted) = export_wait::target_of(path.as_ptr(), &mut text) else { return };
    let mut numbers = noted.split(' ').map(|number| number.parse().unwrap_or(RLIM_INFINITY));
    for (limit, kernel) in LIMITS.iter().zip(kernel) {
        let [theirs, soft, hard] = [(); 3].map(|()| numbers.next().unwrap_or(RLIM_INFINITY));
        // Another one has been set since, or is true.
        let Ok(kernel) = kernel else { continue };
        if kernel.rlim_cur == theirs && soft != RLIM_INFINITY {
            let rlim_max = hard.min(kernel.rlim_max);
            let new = rlimit { rlim_cur: soft.min(rlim_max), rlim_max };
            let _ = sys::prlimit(0, limit.resource, Some(new));
        }
    }
}

/// Size of the process's address space, and of its writable private part.
fn memory() -> [usize; 2] {
    sys::memory().unwrap_or_default()
}

/// Called before the pager starts: raises the limits that the parent of this program set, as far as
/// that is allowed.
/// Returns whether a pager must start now: one of them is finite, or a late start could not read the
/// process's mappings.
pub fn before_start() -> bool {
    take_from_parent();
    let are_finite = raise();
    let known = sys::memory();
    let memory = known.unwrap_or_default();
    for limit in &LIMITS {
        // The library's heap exists already.
        let ours = match limit.resource as u32 {
            libc::RLIMIT_AS => internal::reserved_bytes() as u64,
            _ => 0,
        };
        limit.ours.store(limit.used(memory).saturating_sub(ours), Relaxed);
    }
    are_finite || known.is_none()
}

fn raise() -> bool {
    let mut are_finite = false;
    for limit in &LIMITS {
        let Ok(kernel) = sys::prlimit(0, limit.resource, None) else { continue };
        are_finite |= kernel.rlim_cur != RLIM_INFINITY;
        if kernel.rlim_cur != RLIM_INFINITY && kernel.rlim_cur < kernel.rlim_max {
            limit.soft.store(kernel.rlim_cur, Relaxed);
            let _ = sys::prlimit(
                0,
                limit.resource,
                Some(rlimit { rlim_cur: kernel.rlim_max, ..kernel }),
            );
        }
    }
    are_finite
}

/// Called when a pager has started, or an arena has been reserved for a late start: what has come
/// since [`before_start`] is ours.
pub fn note_use() {
    let memory = memory();
    for limit in &LIMITS {
        limit.ours.store(limit.used(memory).saturating_sub(limit.ours.load(Relaxed)), Relaxed);
    }
}

/// Called before a pager starts late.
pub fn before_late_start() {
    raise();
}

/// Called after a pager has started late, which takes these bytes of address space, and of its
/// writable private part.
pub fn after_late_start(bytes: [usize; 2]) {
    for limit in &LIMITS {
        limit.ours.fetch_add(limit.used(bytes), Relaxed);
    }
}

/// Called after the pager has started: its use is known, so the limits are enforced again. Returns
/// the most bytes that may be mapped.
pub fn after_start() -> usize {
    for limit in &LIMITS {
        let (soft, hard) = (limit.soft.load(Relaxed), limit.hard.load(Relaxed));
        if soft != RLIM_INFINITY {
            if let Ok(kernel) = sys::prlimit(0, limit.resource, None) {
                let rlim_max = kernel.rlim_max.min(hard);
                let _ = limit.set(rlimit { rlim_cur: soft.min(rlim_max), rlim_max });
            }
        }
    }
    mapped_max()
}

/// The most bytes that managed memory may take: what the limits leave beside the rest.
fn mapped_max() -> usize {
    // Asked for only where it is needed: the descriptor is among the program's for a moment.
    if LIMITS[..2].iter().all(|limit| limit.soft.load(Relaxed) == RLIM_INFINITY) {
        return usize::MAX;
    }
    let memory = memory();
    let room = |limit: &Limit| match limit.soft.load(Relaxed) {
        RLIM_INFINITY => u64::MAX,
        soft => soft.saturating_sub(limit.used(memory).saturating_sub(limit.ours.load(Relaxed))),
    };
    let most = LIMITS[..2].iter().map(room).min().unwrap_or(u64::MAX);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Called before another program replaces this one: sets the limits to the values that the program
/// has set.
pub fn before_exec() {
    each_set(|_, asked| asked);
}

/// Called where a process goes on without a pager: the kernel has the limits again.
pub fn give_back() {
    before_exec();
    LIMITS.iter().for_each(|limit| limit.soft.store(RLIM_INFINITY, Relaxed));
}

/// Called if that failed.
pub fn after_failed_exec() {
    each_set(|limit, asked| asked.saturating_add(limit.ours.load(Relaxed)));
}

fn each_set(soft: impl Fn(&Limit, u64) -> u64) {
    for limit in &LIMITS {
        let asked = limit.soft.load(Relaxed);
        if asked != RLIM_INFINITY {
            if let Ok(kernel) = sys::prlimit(0, limit.resource, None) {
                let rlim_cur = soft(limit, asked).min(kernel.rlim_max);
                let _ = sys::prlimit(0, limit.resource, Some(rlimit { rlim_cur, ..kernel }));
            }
        }
    }
}

/// Whether the limit at address `new` may keep a pager from starting later.
fn restricts(resource: usize, soft: libc::rlim_t) -> bool {
    let is_lower = || sys::prlimit(0, resource, None).is_ok_and(|now| soft < now.rlim_cur);
    let is_memory = LIMITS.iter().any(|limit| limit.resource == resource);
    let is_needed = [libc::RLIMIT_NOFILE, libc::RLIMIT_NPROC].contains(&(resource as u32));
    is_memory && soft != RLIM_INFINITY || is_needed && is_lower()
}

/// `prlimit`: `new` and `old` are addresses of structures, or 0.
///
/// # Safety
/// As in C.
pub unsafe fn limit(pid: i32, resource: usize, new: usize, old: usize) -> Result<(), Errno> {
    let ours = pid == 0 || pid == std::process::id() as i32;
    let asked = match new {
        0 => None,
        // SAFETY: it can be read.
        _ if sys::is_readable(new, size_of::<rlimit>()) => Some(unsafe { *(new as *const rlimit) }),
        _ => return Err(Errno(libc::EFAULT)),
    };
    let is_small = || runtime::phase() == runtime::Phase::Nursery;
    if ours && asked.is_some_and(|asked| is_small() && restricts(resource, asked.rlim_cur)) {
        nursery::start_now();
    }
    let known =
        LIMITS.iter().find(|limit| limit.resource == resource && ours && runtime::is_managed());
    let Some(known) = known else {
        // SAFETY: guaranteed by the caller.
        return unsafe {
            sys::call(libc::SYS_prlimit64, [pid as usize, resource, new, old, 0, 0]).map(drop)
        };
    };
    let seen = known.seen()?;
    if old != 0 {
        // The kernel looks whether the program's structure can be written to.
        // SAFETY: guaranteed by the caller.
        unsafe { sys::call(libc::SYS_prlimit64, [0, resource, 0, old, 0, 0]) }?;
    }
    if let Some(asked) = asked {
        known.set(asked)?;
        runtime::far(|pager| pager.set_mapped_max(mapped_max()));
    }
    if old != 0 {
        // SAFETY: guaranteed by the caller.
        unsafe { *(old as *mut rlimit) = seen };
    }
    Ok(())
}

fn status(outcome: Result<(), Errno>) -> c_int {
    outcome.map_or_else(
        |Errno(errno)| {
            sys::set_errno(errno);
            -1
        },
        |()| 0,
    )
}

macro_rules! export {
    ($($name:ident($($arg:ident: $type:ty),*) = $pid:expr, $resource:expr, $new:expr, $old:expr;)*) => {
        $(
            /// # Safety
            /// As in C.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                // SAFETY: guaranteed by the caller.
                status(unsafe { limit($pid, $resource as usize, $new as usize, $old as usize) })
            }
        )*
    };
}

export! {
    setrlimit(resource: c_int, new: *const rlimit) = 0, resource, new, 0;
    setrlimit64(resource: c_int, new: *const rlimit) = 0, resource, new, 0;
    getrlimit(resource: c_int, old: *mut rlimit) = 0, resource, 0, old;
    getrlimit64(resource: c_int, old: *mut rlimit) = 0, resource, 0, old;
    prlimit(pid: libc::pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) = pid, resource, new, old;
    prlimit64(pid: libc::pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) = pid, resource, new, old;
}
