//! System calls, and access to the C library's functions.
//!
//! Contract: nothing here changes what the program reads or writes. The caller has to preserve
//! `errno` ([`keeping_errno`]).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `RWF_DONTCACHE` (Linux 6.14).
pub const DONTCACHE: c_int = 0x80;
/// `cachestat(2)`, the same number on all architectures (Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// A function of the C library that one of ours calls.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// The function `name`.
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null if the C library has none.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a zero byte; RTLD_NEXT searches only after this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

pub fn errno() -> c_int {
    // SAFETY: libc's pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs `f` and restores `errno`.
pub fn keeping_errno<T>(f: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = f();
    set_errno(before);
    result
}

/// Identity and size of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
}

/// The regular file behind a descriptor; none if it is something else, or is accessed directly
/// (`O_DIRECT`).
pub fn regular(fd: c_int) -> Option<File> {
    // SAFETY: plain data, which fstat fills.
    let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is ours and large enough.
    if unsafe { libc::fstat64(fd, &raw mut stat) } != 0
        || stat.st_mode & libc::S_IFMT != libc::S_IFREG
    {
        return None;
    }
    // SAFETY: only reads flags.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let direct = flags < 0 || flags & libc::O_DIRECT != 0;
    (!direct).then_some(File {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size.max(0) as u64,
    })
}

/// The position of a descriptor.
pub fn position(fd: c_int) -> Option<u64> {
    // SAFETY: does not move the position.
    u64::try_from(unsafe { libc::syscall(libc::SYS_lseek, fd, 0_i64, libc::SEEK_CUR) }).ok()
}

#[repr(C)]
struct CacheStatRange {
    off: u64,
    len: u64,
}

/// What is cached of a range, in pages; none if the kernel cannot report it (before Linux 6.5) or
/// refuses. Reports no errors of write-back, and consumes none.
fn cachestat(fd: c_int, off: u64, len: u64) -> Option<[u64; 5]> {
    let range = CacheStatRange { off, len };
    let mut counts = [0_u64; 5];
    // SAFETY: reads one structure and fills the other; both have the kernel's size.
    let failed =
        unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, counts.as_mut_ptr(), 0) };
    (failed == 0).then_some(counts)
}

/// Pages of a range that are in the cache; none if that is not known.
pub fn cached_pages(fd: c_int, off: u64, len: u64) -> Option<u64> {
    cachestat(fd, off, len).map(|[cached, ..]| cached)
}

/// Pages of a range that are dirty or are just being written back; none if that is not known.
pub fn unwritten_pages(fd: c_int, off: u64, len: u64) -> Option<u64> {
    cachestat(fd, off, len).map(|[_, dirty, in_write_back, ..]| dirty.saturating_add(in_write_back))
}

/// Drops clean pages of a range from the cache and starts write-back of the others.
pub fn drop_cached(fd: c_int, off: u64, len: u64) {
    // SAFETY: a hint.
    unsafe { libc::posix_fadvise(fd, off as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Starts write-back of a range. Never waits for it here: `sync_file_range` with one of its `WAIT`
/// flags reports an error of write-back once for each open file, which is the program's, and the
/// program's own `fsync` would then succeed although data was lost.
pub fn start_write_back(fd: c_int, off: u64, len: u64) {
    // SAFETY: only changes when data is written.
    unsafe { libc::sync_file_range(fd, off as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Sleeps for a while; less if a signal arrives. Not a point at which the thread can be cancelled.
pub fn pause(ns: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    // SAFETY: only reads `time`.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, ptr::null_mut::<c_void>()) };
}

/// `preadv2`, or `pwritev2` if `write`; at the descriptor's position if `offset` is -1. As in C.
///
/// # Safety
/// The vectors are the program's, as it passed them.
pub unsafe fn transfer(
    write: bool,
    fd: c_int,
    vectors: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    let number = if write { libc::SYS_pwritev2 } else { libc::SYS_preadv2 };
    // The position is passed in two halves, of which 64-bit machines use the first.
    // SAFETY: guaranteed by the caller.
    unsafe { libc::syscall(number, fd, vectors, i64::from(count), offset, 0_i64, flags) as isize }
}
