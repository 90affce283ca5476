//! Descriptors by number.
//!
//! Contract: numbers name descriptors that are open during the call; a caller that places a
//! descriptor at a number owns what was there before.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Fewer than this are few: a pager has 12 of its own, and one for each forked child.
const FEW: u64 = 64;

/// Whether this process may have only few descriptors (`RLIMIT_NOFILE`), so that files that can be
/// opened when needed are not kept open.
pub fn are_few() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .is_some_and(|most| most < FEW)
}

/// Calls `work` with borrowed descriptors.
pub fn with_borrowed<R>(numbers: &[RawFd], work: impl FnOnce(&[BorrowedFd<'_>]) -> R) -> R {
    // SAFETY: see the module's contract.
    let fds: Vec<BorrowedFd<'_>> =
        numbers.iter().map(|&number| unsafe { BorrowedFd::borrow_raw(number) }).collect();
    work(&fds)
}

/// Keeps `number` from being reused until a descriptor is placed there.
pub fn occupy(number: RawFd) {
    // SAFETY: duplicates the descriptor of /dev/null at 0 onto a number that is ours.
    unsafe { libc::syscall(libc::SYS_dup3, 0, number, libc::O_CLOEXEC) };
}

/// Makes `fd` the descriptor `number`.
pub fn place(fd: OwnedFd, number: RawFd) {
    // SAFETY: as in `occupy`.
    unsafe { libc::syscall(libc::SYS_dup3, fd.as_raw_fd(), number, libc::O_CLOEXEC) };
}
