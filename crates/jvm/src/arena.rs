//! Memory outside the heap that is born huge: whole huge pages, advised on before anything touches them (`mmap(2)`, `madvise(2)`).
//!
//! Contract: only mappings that [`map`] made are ever changed; [`unmap`] trusts its caller that nobody uses them any more.
#![allow(unsafe_code)]

use std::{io, ptr};

use crate::advice::{Advice, advise};

const HUGE_PAGE: usize = 2 << 20;

/// Maps `len` bytes, a multiple of 2 MiB, at an address that is one as well. A kernel without huge pages takes small ones.
pub fn map(len: usize) -> io::Result<usize> {
    if len == 0 || len % HUGE_PAGE != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let reserved = len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, wherever the kernel has room.
    let at = unsafe { libc::mmap(ptr::null_mut(), reserved, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let first = at.expose_provenance();
    let start = first.next_multiple_of(HUGE_PAGE);
    // SAFETY: both pieces are parts of the new mapping that nobody knows of.
    unsafe {
        unmap(first, start - first);
        unmap(start + len, first + reserved - (start + len));
    }
    // A kernel that was built without them refuses; the memory is good all the same.
    let _ = advise(start, len, Advice::Huge);
    Ok(start)
}

/// Unmaps `len` bytes at `address`.
///
/// # Safety
/// They come from [`map`], and nothing refers to them any more.
pub unsafe fn unmap(address: usize, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_can_be_written_up_to_its_end() {
        let at = map(3 * HUGE_PAGE).unwrap();
        assert_eq!(at % HUGE_PAGE, 0);
        // SAFETY: mapped above, and unmapped below.
        unsafe {
            ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(at), 7, 3 * HUGE_PAGE);
            assert_eq!(ptr::read(ptr::with_exposed_provenance::<u8>(at + 3 * HUGE_PAGE - 1)), 7);
            unmap(at, 3 * HUGE_PAGE);
        }
        for len in [0, 4096, usize::MAX, usize::MAX - HUGE_PAGE + 1] {
            assert!(map(len).is_err(), "{len}");
        }
    }
}
