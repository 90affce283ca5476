//! Keeps the files of descriptors open during the lifetime of an address space, without a
//! descriptor: files that are registered with an io_uring stay open while the ring exists, and the
//! ring exists while its memory is mapped.
//!
//! Contract: the mapping belongs to the keeper and is never read or written.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::IoUring;

use crate::territory;

/// Files that are kept open.
#[derive(Debug)]
pub struct Keeper {
    start: usize,
    len: usize,
}

/// The offset at which a ring's submission queue can be mapped (`IORING_OFF_SQ_RING`).
const OFFSET: i64 = 0;
const LEN: usize = 4096;

impl Keeper {
    /// Keeps the files of `numbers` open. Fails if io_uring is not allowed.
    pub fn of(numbers: &[RawFd]) -> io::Result<Keeper> {
        let ring = IoUring::new(1)?;
        ring.submitter().register_files(numbers)?;
        let map = |place: i32| {
            let flags = libc::MAP_SHARED | place;
            let fd = ring.as_raw_fd();
            // SAFETY: a new mapping at an address of the kernel's choice; the ring's own mappings
            // are removed with `ring`.
            match unsafe {
                libc::syscall(libc::SYS_mmap, 0usize, LEN, libc::PROT_READ, flags, fd, OFFSET)
            } {
                -1 => Err(io::Error::last_os_error()),
                start => Ok(start),
            }
        };
        let start = map(territory::OF_RINGS).or_else(|_| map(0))?;
        let keeper = Keeper { start: start as usize, len: LEN };
        // SAFETY: advice on our own mapping: a forked child has faults of its own.
        unsafe { libc::syscall(libc::SYS_madvise, keeper.start, keeper.len, libc::MADV_DONTFORK) };
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is not in use.
        unsafe { libc::syscall(libc::SYS_munmap, self.start, self.len) };
    }
}
