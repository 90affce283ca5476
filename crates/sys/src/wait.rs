//! Waiting for descriptors.
//!
//! Contract: the numbers name descriptors that are open during the call; a closed one only makes
//! the call return early.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum number of descriptors of one call.
const MOST: usize = 32;
/// With no descriptors, the caller checks again soon.
const NOTHING_MS_MAX: i64 = 1;

/// Sleeps until one of the first 32 descriptors is readable, at most `ms` milliseconds. Returns the
/// readable ones as bits. Never allocates.
pub fn readable(fds: &[RawFd], ms: i64) -> u32 {
    let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let count = fds.len().min(MOST);
    if count == 0 {
        std::thread::sleep(Duration::from_millis(ms.clamp(0, NOTHING_MS_MAX) as u64));
        return 0;
    }
    // SAFETY: see the module's contract.
    let borrow = |fd: RawFd| unsafe { BorrowedFd::borrow_raw(fd) };
    let first = borrow(fds[0]);
    let mut set: [PollFd<'_>; MOST] = std::array::from_fn(|at| {
        if at < count {
            PollFd::from_borrowed_fd(borrow(fds[at]), PollFlags::IN)
        } else {
            PollFd::from_borrowed_fd(first, PollFlags::empty())
        }
    });
    if poll(&mut set[..count], Some(&timeout)).is_err() {
        return 0;
    }
    set[..count]
        .iter()
        .enumerate()
        .filter(|(_, fd)| !fd.revents().is_empty())
        .fold(0, |bits, (at, _)| bits | 1 << at)
}
