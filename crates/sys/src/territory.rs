//! Address space of the pager's own in a program's process.
//!
//! A mapping at an address of the kernel's choice may fill a hole that the program has made with
//! `munmap`. A program that is alone may map or unmap there again at any time: to it the hole is
//! empty. So address space is reserved before the program runs, and the pager's mappings are placed
//! in it. Where there is none (limits, other processes than programs), the kernel chooses. Rings of
//! io_uring, for which Linux 6.5 and later take no address, are placed by [`OF_RINGS`].
//!
//! Contract: a range that [`take`] has returned is the caller's until it gives it back.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use hiroma_units::PAGE;
use rustix::mm::MapFlags;

/// Virtual, and without access: it takes no memory. Each generation of forks takes more of it.
const LEN: usize = 1 << 40;

/// A flag of `mmap`: the kernel chooses from the second GiB (`MAP_32BIT`), in which programs have no
/// holes, unless they ask for this range themselves.
#[cfg(target_arch = "x86_64")]
pub const OF_RINGS: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
pub const OF_RINGS: i32 = 0;

static START: AtomicUsize = AtomicUsize::new(0);
/// Up to here ranges have been taken.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Reserves it, once in a process. Without an effect where limits do not allow it.
pub fn claim() {
    if START.load(Ordering::Acquire) != 0 {
        return;
    }
    let Some(start) = map_empty(0, LEN) else { return };
    // SAFETY: advice on our own mapping. For a core file the kernel visits each page of a mapping.
    unsafe { libc::syscall(libc::SYS_madvise, start, LEN, libc::MADV_DONTDUMP) };
    if START.compare_exchange(0, start, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: the mapping made above, which nobody has seen.
        unsafe { libc::syscall(libc::SYS_munmap, start, LEN) };
        return;
    }
    NEXT.store(start, Ordering::Release);
}

/// A range of `len` bytes, aligned to `align` (a power of two), to be mapped with `MAP_FIXED`: until
/// then it is without access. None where the kernel shall choose.
pub fn take(len: usize, align: usize) -> Option<usize> {
    let end = START.load(Ordering::Acquire).checked_add(LEN)?;
    let len = len.checked_next_multiple_of(PAGE)?;
    let place = |next: usize| {
        let start = next.checked_next_multiple_of(align.max(PAGE))?;
        start.checked_add(len).filter(|&after| next != 0 && after <= end)
    };
    let next = NEXT.fetch_update(Ordering::AcqRel, Ordering::Acquire, place).ok()?;
    Some(next.next_multiple_of(align.max(PAGE)))
}

/// Where to map `len` bytes, page by page, and the flags for it: as [`take`], or nowhere in particular.
pub fn place(len: usize) -> (*mut c_void, MapFlags) {
    take(len, PAGE)
        .map_or((ptr::null_mut(), MapFlags::empty()), |start| (start as *mut _, MapFlags::FIXED))
}

/// Ends a mapping, wherever it is.
///
/// # Safety
/// It must be the caller's, and not be used any more.
pub unsafe fn unmap(start: usize, len: usize) {
    let len = len.next_multiple_of(PAGE);
    let ours = START.load(Ordering::Acquire);
    if ours != 0 && start.wrapping_sub(ours) < LEN {
        // What is taken again is without access in between, and never a hole.
        if map_empty(start, len).is_some() {
            let _ = NEXT.compare_exchange(start + len, start, Ordering::AcqRel, Ordering::Relaxed);
        }
        return;
    }
    // SAFETY: by the caller's contract.
    unsafe { libc::syscall(libc::SYS_munmap, start, len) };
}

/// Maps `len` bytes without access, at `start` or, if that is 0, where the kernel chooses.
fn map_empty(start: usize, len: usize) -> Option<usize> {
    let fixed = if start == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a new mapping, or one over a range that is ours and not in use. The raw system call,
    // because the C library's function may be replaced.
    let at =
        unsafe { libc::syscall(libc::SYS_mmap, start, len, libc::PROT_NONE, flags, -1i32, 0usize) };
    (at != -1).then_some(at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{Access, Reservation};

    #[test]
    fn ranges_are_apart_and_come_back() {
        claim();
        claim();
        let ours = START.load(Ordering::Acquire);
        assert_ne!(ours, 0, "1 TiB of address space can be reserved where tests run");
        let first = Reservation::new(3 * PAGE, PAGE, Access::ReadWrite).unwrap();
        let second = Reservation::new(PAGE, 1 << 21, Access::ReadWrite).unwrap();
        assert!(first.base() - ours < LEN && second.base() - ours < LEN);
        assert!(second.base() >= first.base() + first.len() && second.base() % (1 << 21) == 0);
        assert!(take(2 * LEN, PAGE).is_none(), "what does not fit is the kernel's choice");
        let base = second.base();
        drop(second);
        let mut state = 0u8;
        // SAFETY: asks about one page that this test had mapped.
        let known = unsafe { libc::mincore(base as *mut _, PAGE, &raw mut state) };
        assert_eq!(known, 0, "what was given back is reserved, and no hole");
    }
}
