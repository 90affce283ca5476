//! Calls of the C library for the Java side (`io.hiroma.jvm.NativeCalls`), which knows their
//! purpose.
//!
//! Contract: [`map`] makes new mappings only; [`unmap`] and [`scan`] trust the addresses of their
//! callers; symbols are looked up and not called.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::{io, ptr};

/// The address of an exported symbol, such as those of libjvm.so, which the `java` command loads
/// into the global scope.
pub fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: the name ends with a zero byte, and looking up calls no code of the symbol.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() { None } else { Some(found.expose_provenance()) }
}

/// Maps `len` bytes of anonymous memory at an address of the kernel's choice.
pub fn map(len: usize) -> io::Result<usize> {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(at.expose_provenance())
    }
}

/// Unmaps `len` bytes at `address`.
///
/// # Safety
/// They come from [`map`], and nothing refers to them any longer.
pub unsafe fn unmap(address: usize, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), len) };
}

/// `_IOWR('f', 16, struct pm_scan_arg)`, of 96 bytes (Documentation/admin-guide/mm/pagemap.rst,
/// Linux 6.7).
const PAGEMAP_SCAN: libc::c_ulong = (3 << 30) | (96 << 16) | ((b'f' as libc::c_ulong) << 8) | 16;

/// Scans the page map of this process for runs of pages. Returns how many runs the kernel has
/// written.
///
/// # Safety
/// `argument` is the address of a `struct pm_scan_arg`, whose vector has room for as many runs as
/// it states.
pub unsafe fn scan(argument: usize) -> io::Result<i32> {
    let map = File::open("/proc/self/pagemap")?;
    // SAFETY: guaranteed by the caller.
    let filled = unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, argument) };
    if filled < 0 { Err(io::Error::last_os_error()) } else { Ok(filled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_writable_and_oversize_refused() {
        const LEN: usize = 3 << 20;
        let at = map(LEN).unwrap();
        // SAFETY: mapped above, and unmapped below.
        unsafe {
            ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(at), 7, LEN);
            assert_eq!(ptr::read(ptr::with_exposed_provenance::<u8>(at + LEN - 1)), 7);
            unmap(at, LEN);
        }
        for len in [0, usize::MAX] {
            assert!(map(len).is_err(), "{len}");
        }
    }

    #[test]
    fn symbols_are_found_when_present() {
        assert!(symbol(c"madvise").is_some());
        assert_eq!(symbol(c"no_library_has_this"), None);
    }

    #[test]
    fn page_scan_reports_resident_pages() {
        const PAGE: usize = 4096;
        let memory = vec![1u8; 4 * PAGE];
        let start = memory.as_ptr().expose_provenance() & !(PAGE - 1);
        let mut runs = [0u64; 3 * 8];
        let vec = runs.as_mut_ptr().expose_provenance() as u64;
        // size, flags, start, end, walk_end, vec, vec_len, max_pages, and masks: inverted, all of,
        // any of, returned.
        let mut argument =
            [96, 0, start as u64, (start + 2 * PAGE) as u64, 0, vec, 8, 0, 0, 1 << 3, 0, 1 << 3];
        // SAFETY: the argument has the layout and the size that it states, and so has the vector.
        match unsafe { scan(argument.as_mut_ptr().expose_provenance()) } {
            Err(error) => hiroma_testkit::skip!(Machine, "{error}"),
            Ok(filled) => {
                assert_eq!(filled, 1);
                assert_eq!(runs[..2], [start as u64, (start + 2 * PAGE) as u64]);
            }
        }
        assert!(memory.iter().all(|&byte| byte == 1));
    }
}
