//! A large memory area on huge pages whose content only passes through: bytes come in through
//! `recvmsg` and go out through `sendmsg`, or to a file and back, or through rings in shared memory
//! (`transport::ring`).
//!
//! Contract: the pool's bytes are only copied, by the kernel in system calls made here, or from and to
//! rings, with ranges that are checked against the pool. So there are no Rust
//! references into it, and two calls on the same range at the same time can at worst mix up bytes,
//! which callers must avoid where it matters.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use hiroma_units::EXTENT;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A pool on huge pages.
pub struct HugePool {
    mapping: NonNull<u8>,
    mapping_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pool returns no references into its memory, see the contract.
unsafe impl Send for HugePool {}
// SAFETY: as above.
unsafe impl Sync for HugePool {}

/// A range of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolRange {
    /// Offset of the first byte.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
}

impl HugePool {
    /// Reserves address space for `len` bytes (a multiple of 2 MiB); memory is allocated when it is
    /// first filled.
    pub fn new(len: usize) -> io::Result<HugePool> {
        assert!(len > 0 && len % EXTENT == 0, "a pool consists of whole extents");
        let mapping_len = len.checked_add(EXTENT).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapping = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapping_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = mapping.as_ptr().align_offset(EXTENT);
        // SAFETY: `skip` is less than an extent, and the mapping is an extent longer than the pool.
        let start = unsafe { mapping.add(skip) };
        let pool = HugePool { mapping, mapping_len, start, len };
        // A kernel without huge pages serves small ones: slower, and just as right.
        // SAFETY: the range is ours; the advice does not change content.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        // SAFETY: as above. A child that a library forks must not double the memory.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontFork) };
        Ok(pool)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn pointer(&self, range: PoolRange) -> *mut libc::c_void {
        assert!(range.at <= self.len && range.len <= self.len - range.at, "outside the pool");
        // SAFETY: just checked.
        unsafe { self.start.add(range.at) }.as_ptr().cast()
    }

    /// Receives into `range` and, when that is full, into `tail`. Returns the number of bytes
    /// received, 0 at the end of the stream.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        range: PoolRange,
        tail: &mut [u8],
        wait: bool,
    ) -> io::Result<usize> {
        let mut parts = [
            libc::iovec { iov_base: self.pointer(range), iov_len: range.len },
            libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() },
        ];
        // SAFETY: an all-zero `msghdr` is a valid one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: both parts are mapped and writable during the call; see the contract for the
        // first.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Sends `head` and then `range`, waiting for buffer space if `wait`. Returns the number of bytes
    /// that were accepted.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        range: PoolRange,
        wait: bool,
    ) -> io::Result<usize> {
        let mut parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.pointer(range), iov_len: range.len },
        ];
        // SAFETY: an all-zero `msghdr` is a valid one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        let flags = libc::MSG_NOSIGNAL | if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: both parts are mapped and readable during the call, and `sendmsg` does not write
        // to them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Writes `range` to a file at `offset`. Returns the number of bytes written.
    pub fn write_to(
        &self,
        file: BorrowedFd<'_>,
        range: PoolRange,
        offset: u64,
    ) -> io::Result<usize> {
        let start = self.pointer(range);
        // SAFETY: the range is mapped and readable during the call.
        let written =
            unsafe { libc::pwrite(file.as_raw_fd(), start, range.len, offset as libc::off_t) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Reads `range` from a file at `offset`. Returns the number of bytes read.
    pub fn read_from(
        &self,
        file: BorrowedFd<'_>,
        range: PoolRange,
        offset: u64,
    ) -> io::Result<usize> {
        let start = self.pointer(range);
        // SAFETY: the range is mapped and writable during the call; see the contract.
        let read =
            unsafe { libc::pread(file.as_raw_fd(), start, range.len, offset as libc::off_t) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Copies the start of `range`, or all of it, to `out`.
    pub fn copy_out(&self, range: PoolRange, out: &mut [u8]) -> io::Result<()> {
        let len = range.len.min(out.len());
        let ours = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: len };
        let pool = libc::iovec { iov_base: self.pointer(range), iov_len: len };
        // SAFETY: both are mapped during the call, `out` is writable and ours alone; the kernel does
        // the copying.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &ours, 1, &pool, 1, 0) };
        whole(copied, len)
    }

    /// Copies `bytes` to the pool at `at`.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let ours = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let range = PoolRange { at, len: bytes.len() };
        let pool = libc::iovec { iov_base: self.pointer(range), iov_len: bytes.len() };
        // SAFETY: as above, and the kernel only reads `bytes`.
        let copied = unsafe { libc::process_vm_writev(libc::getpid(), &ours, 1, &pool, 1, 0) };
        whole(copied, bytes.len())
    }

    /// Populates `range`, so that nothing waits for memory when it is first filled.
    pub fn populate(&self, range: PoolRange) -> io::Result<()> {
        // SAFETY: the range is ours; populating changes no content.
        unsafe { madvise(self.pointer(range), range.len, Advice::LinuxPopulateWrite)? };
        Ok(())
    }

    /// Frees the memory of `range`; it reads as zeros from now on.
    pub fn discard(&self, range: PoolRange) -> io::Result<()> {
        // SAFETY: the range is ours, and there are no references into it.
        unsafe { madvise(self.pointer(range), range.len, Advice::LinuxDontNeed)? };
        Ok(())
    }
}

/// The result of a copy that must not end early.
fn whole(copied: libc::ssize_t, len: usize) -> io::Result<()> {
    match usize::try_from(copied) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(copied) if copied == len => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Drop for HugePool {
    fn drop(&mut self) {
        // SAFETY: the pool has no users any more.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_len) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn pool_content_round_trips_and_discard_zeroes() {
        let pool = HugePool::new(2 * EXTENT).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"hall and tail").unwrap();
        let range = PoolRange { at: EXTENT + 5, len: 8 };
        let mut tail = [0; 16];
        assert_eq!(pool.receive(theirs.as_fd(), range, &mut tail, true).unwrap(), 13);
        assert_eq!(&tail[..5], b" tail");
        assert_eq!(
            pool.receive(theirs.as_fd(), range, &mut tail, false).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let mut echo = [0; 10];
        assert_eq!(pool.send(theirs.as_fd(), b"> ", range, true).unwrap(), 10);
        ours.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"> hall and");
        pool.discard(PoolRange { at: EXTENT, len: EXTENT }).unwrap();
        pool.send(theirs.as_fd(), b"", range, true).unwrap();
        ours.read_exact(&mut echo[..8]).unwrap();
        assert_eq!(&echo[..8], &[0; 8]);
    }

    #[test]
    fn content_goes_to_a_file_and_comes_back() {
        let pool = HugePool::new(2 * EXTENT).unwrap();
        let content: Vec<u8> = (0..EXTENT).map(|at| (at / 7) as u8).collect();
        pool.copy_in(EXTENT, &content).unwrap();
        let file = tempfile::tempfile().unwrap();
        let (first, second) =
            (PoolRange { at: 0, len: EXTENT }, PoolRange { at: EXTENT, len: EXTENT });
        assert_eq!(pool.write_to(file.as_fd(), second, 4096).unwrap(), EXTENT);
        pool.discard(second).unwrap();
        assert_eq!(pool.read_from(file.as_fd(), first, 4096).unwrap(), EXTENT);
        let mut back = vec![0; EXTENT];
        pool.copy_out(first, &mut back).unwrap();
        assert!(back == content);
        pool.copy_out(second, &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "outside the pool")]
    fn a_range_outside_the_pool_is_a_bug() {
        let pool = HugePool::new(EXTENT).unwrap();
        let _ = pool.discard(PoolRange { at: usize::MAX - 1, len: 4096 });
    }
}
