//! Locking memory: `mlock`, `mlockall` and their opposites. Managed memory that is locked stays
//! local.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hiroma_far::Pager;
use hiroma_units::PAGE;

use crate::export_mmap::{CallResult, arena, everywhere, far_or_unreachable, managed, status};
use crate::nursery;
use crate::small::SMALL;
use crate::sys::{self, Errno};

pub fn do_mlock(number: c_long, addr: usize, len: usize, flags: usize) -> CallResult<()> {
    const ONFAULT: usize = libc::MLOCK_ONFAULT as usize;
    // SAFETY: locking changes no content.
    let kernel = |addr, len| unsafe { sys::call(number, [addr, len, flags, 0, 0, 0]).map(drop) };
    // Unlike the rest of the family, these calls accept any address.
    let start = addr & !(PAGE - 1);
    match managed(start, len.saturating_add(addr - start)) {
        None => {
            // One that grows stays locked.
            SMALL.changed(start, len.saturating_add(addr - start));
            kernel(addr, len)
        }
        Some(split) if number == libc::SYS_munlock => everywhere(&split, Pager::unpin, kernel),
        Some(_) if flags & !ONFAULT != 0 => Err(Errno(libc::EINVAL)),
        Some(split) => {
            may_lock(len)?;
            // What is not touched takes no memory: address space that is locked so may be far larger.
            let pin = if flags & ONFAULT != 0 { Pager::pin_on_touch } else { Pager::pin };
            everywhere(&split, pin, kernel)
        }
    }
}

/// Whether the process may lock so much.
fn may_lock(len: usize) -> CallResult<()> {
    if sys::is_capable(CAP_IPC_LOCK) {
        return Ok(());
    }
    match sys::limit(libc::RLIMIT_MEMLOCK as usize) {
        0 => Err(Errno(libc::EPERM)),
        most if len as u64 > most => Err(Errno(libc::ENOMEM)),
        _ => Ok(()),
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    status(do_mlock(libc::SYS_mlock, addr as usize, len, 0))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_int) -> c_int {
    status(do_mlock(libc::SYS_mlock2, addr as usize, len, flags as usize))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    status(do_mlock(libc::SYS_munlock, addr as usize, len, 0))
}

/// Whether later mappings are to stay local too (`MCL_FUTURE`).
pub static LOCK_FUTURE: AtomicBool = AtomicBool::new(false);

/// `CAP_IPC_LOCK`: allows locking memory without a limit.
const CAP_IPC_LOCK: u32 = 14;

/// Managed memory stays local from its next use on, and the limit yields to it, as with `mlock`.
/// The kernel's call would populate each reservation, including the pager's, so it is not made;
/// unmanaged memory is local in any case.
pub fn do_mlockall(flags: usize) -> CallResult<()> {
    const CURRENT: usize = libc::MCL_CURRENT as usize;
    const FUTURE: usize = libc::MCL_FUTURE as usize;
    const ONFAULT: usize = libc::MCL_ONFAULT as usize;
    nursery::start_now();
    if arena().is_empty() {
        // SAFETY: locking changes no content.
        return unsafe { sys::call(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]).map(drop) };
    }
    if flags == 0 || flags == ONFAULT || flags & !(CURRENT | FUTURE | ONFAULT) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // In all but special cases, a program has mapped more than any limit.
    may_lock(if flags & CURRENT != 0 { usize::MAX } else { 0 })?;
    LOCK_FUTURE.store(flags & FUTURE != 0, Relaxed);
    if flags & CURRENT != 0 {
        far_or_unreachable(|pager| pager.pin_all().map(|()| 0))?;
    }
    Ok(())
}

pub fn do_munlockall() -> CallResult<()> {
    LOCK_FUTURE.store(false, Relaxed);
    if !arena().is_empty() {
        far_or_unreachable(|pager| pager.unpin_all().map(|()| 0))?;
    }
    // SAFETY: unlocking changes no content.
    unsafe { sys::call(libc::SYS_munlockall, [0; 6]).map(drop) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    status(do_mlockall(flags as usize))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    status(do_munlockall())
}
