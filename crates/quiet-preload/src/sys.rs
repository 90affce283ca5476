//! System calls and the C library's own functions.
//!
//! Contract: nothing here changes what the program reads or writes. `errno` is the caller's to keep
//! ([`keeping_errno`]).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `RWF_DONTCACHE` (Linux 6.14).
pub const DONTCACHE: c_int = 0x80;
/// `cachestat(2)`, the same number everywhere (Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// A function of the C library that stands behind ours.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Of this name.
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null where the C library has none.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a zero; RTLD_NEXT looks behind this library only.
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

/// Does something of ours without a trace in `errno`.
pub fn keeping_errno<T>(f: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = f();
    set_errno(before);
    result
}

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
}

/// The regular file behind a descriptor; none: it is something else, or is read and written
/// directly (`O_DIRECT`).
pub fn regular(fd: c_int) -> Option<File> {
    // SAFETY: plain data, which fstat fills.
    let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is ours and large enough.
    if unsafe { libc::fstat64(fd, &raw mut stat) } != 0
        || stat.st_mode & libc::S_IFMT != libc::S_IFREG
    {
        return None;
    }
    // SAFETY: asks for flags only.
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
    // SAFETY: moves nothing.
    u64::try_from(unsafe { libc::syscall(libc::SYS_lseek, fd, 0_i64, libc::SEEK_CUR) }).ok()
}

#[repr(C)]
struct CacheStatRange {
    off: u64,
    len: u64,
}

/// Pages of a range that are in the cache; none where the kernel cannot say (before Linux 6.5), or
/// will not.
pub fn cached_pages(fd: c_int, off: u64, len: u64) -> Option<u64> {
    let range = CacheStatRange { off, len };
    let mut counts = [0_u64; 5];
    // SAFETY: reads one structure and fills the other, both as long as the kernel's.
    let failed =
        unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, counts.as_mut_ptr(), 0) };
    (failed == 0).then_some(counts[0])
}

/// Drops clean pages of a range from the cache and begins to write the others.
pub fn drop_cached(fd: c_int, off: u64, len: u64) {
    // SAFETY: a hint.
    unsafe { libc::posix_fadvise(fd, off as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Begins to write a range back, and waits for it if that is wanted.
pub fn write_back(fd: c_int, off: u64, len: u64, wait: bool) {
    let wait =
        if wait { libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER } else { 0 };
    // SAFETY: changes nothing but when data is written.
    unsafe {
        libc::sync_file_range(fd, off as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE | wait)
    };
}

/// `preadv2`, or `pwritev2` if it is `write`; at the descriptor's position if `offset` is -1. As in
/// C.
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
    // SAFETY: the caller's.
    unsafe { libc::syscall(number, fd, vectors, i64::from(count), offset, 0_i64, flags) as isize }
}
