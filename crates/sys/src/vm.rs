//! Address space: reservations, protections, advice, and access to memory that the program also
//! uses.
//!
//! Contract: a `Reservation` owns its range of addresses while it lives. The byte functions
//! (`read`, `zero`, `copy`) work on ranges inside a reservation or inside a mapping of the caller,
//! which are mapped with the necessary rights. They use volatile or bulk operations on raw memory
//! and never make references to it, because the program may change it at the same time.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mlock, mmap_anonymous, mprotect, munmap,
};

use crate::territory;

/// A range of address space that is ours.
#[derive(Debug)]
pub struct Reservation {
    base: usize,
    len: usize,
}

/// The initial access rights of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    None,
    ReadWrite,
}

impl Reservation {
    /// Reserves `len` bytes, aligned to `align` (a power of two), without charging them to any
    /// process (`MAP_NORESERVE`). Core files leave them out, unless `Advise::DoDump` is given.
    pub fn new(len: usize, align: usize, access: Access) -> io::Result<Reservation> {
        let prot = match access {
            Access::None => ProtFlags::empty(),
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        if let Some(base) = territory::take(len, align) {
            // SAFETY: replaces an empty mapping that was made for this.
            unsafe { mmap_anonymous(base as *mut _, len, prot, flags | MapFlags::FIXED)? };
            let reservation = Reservation { base, len };
            let _ = reservation.advise(base, len, Advise::DontDump);
            return Ok(reservation);
        }
        let padded = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), padded, prot, flags)? } as usize;
        let base = start.next_multiple_of(align);
        for (from, to) in [(start, base), (base + len, start + padded)] {
            if from < to {
                // SAFETY: the ends of the mapping that was just made, which are not in use yet.
                unsafe { munmap(from as *mut _, to - from)? };
            }
        }
        let reservation = Reservation { base, len };
        // For a core file the kernel visits each page of a mapping, used or not.
        let _ = reservation.advise(base, len, Advise::DontDump);
        Ok(reservation)
    }

    /// First address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes; always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `addr` is inside.
    pub fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.base) < self.len
    }

    /// Changes the protection of a part (`mprotect`; bits as in `PROT_*`).
    pub fn protect(&self, addr: usize, len: usize, prot: i32) -> io::Result<()> {
        assert!(
            self.contains(addr) && len <= self.base + self.len - addr,
            "a range outside the reservation"
        );
        let flags = MprotectFlags::from_bits_retain(prot as u32);
        // SAFETY: inside our own reservation; the user of the memory there requested this
        // protection.
        unsafe { mprotect(addr as *mut _, len, flags).map_err(Into::into) }
    }

    /// Replaces the mapping of a part, whatever it was, by an empty one without access.
    pub fn reclaim(&self, addr: usize, len: usize) -> io::Result<()> {
        self.renew(addr, len, 0)
    }

    /// Replaces the mapping of a part, whatever it was, by an empty one with this protection
    /// (`PROT_*`).
    pub fn renew(&self, addr: usize, len: usize, prot: i32) -> io::Result<()> {
        assert!(
            self.contains(addr) && len <= self.base + self.len - addr,
            "a range outside the reservation"
        );
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let prot = ProtFlags::from_bits_retain(prot as u32);
        // SAFETY: replaces memory inside our own reservation that its user has released.
        unsafe { mmap_anonymous(addr as *mut _, len, prot, flags)? };
        Ok(())
    }

    /// Locks a part in memory (`mlock`). The kernel then refuses some advice on it, such as
    /// `MADV_COLD`.
    pub fn lock(&self, addr: usize, len: usize) -> io::Result<()> {
        assert!(
            self.contains(addr) && len <= self.base + self.len - addr,
            "a range outside the reservation"
        );
        // SAFETY: inside our own reservation; the content does not change.
        unsafe { mlock(addr as *mut _, len).map_err(Into::into) }
    }

    /// Drops the content of several parts, with a single TLB flush where the kernel supports it
    /// (`process_madvise` on the calling process, Linux 6.13), else one by one.
    pub fn drop_scattered(&self, parts: impl Iterator<Item = (usize, usize)>) {
        const MOST: usize = 64;
        let mut iovecs = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MOST];
        let mut count = 0;
        let mut parts = parts.peekable();
        while let Some((addr, len)) = parts.next() {
            assert!(
                self.contains(addr) && len <= self.base + self.len - addr,
                "a range outside the reservation"
            );
            iovecs[count] = libc::iovec { iov_base: addr as *mut _, iov_len: len };
            count += 1;
            if count == MOST || parts.peek().is_none() {
                drop_all(&iovecs[..std::mem::take(&mut count)]);
            }
        }
    }

    /// Gives advice on a part.
    pub fn advise(&self, addr: usize, len: usize, advice: Advise) -> io::Result<()> {
        assert!(
            self.contains(addr) && len <= self.base + self.len - addr,
            "a range outside the reservation"
        );
        let advice = match advice {
            Advise::Huge => Advice::LinuxHugepage,
            Advise::NoHuge => Advice::LinuxNoHugepage,
            Advise::DontFork => Advice::LinuxDontFork,
            Advise::DoFork => Advice::LinuxDoFork,
            Advise::DontDump => Advice::LinuxDontDump,
            Advise::DoDump => Advice::LinuxDoDump,
            Advise::Wipe => Advice::LinuxWipeOnFork,
            Advise::Keep => Advice::LinuxKeepOnFork,
            Advise::Drop => Advice::LinuxDontNeed,
            Advise::Split => Advice::LinuxCold,
        };
        // SAFETY: inside our own reservation. `Drop` discards content that the caller no longer
        // needs.
        match unsafe { madvise(addr as *mut _, len, advice) } {
            Ok(()) => Ok(()),
            // Something else was mapped inside the range; the rest was done.
            Err(Errno::NOMEM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: our mapping, and `self` was its last user.
        unsafe { territory::unmap(self.base, self.len) };
    }
}

/// Advice on memory (`madvise(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advise {
    /// `MADV_HUGEPAGE`
    Huge,
    /// `MADV_NOHUGEPAGE`
    NoHuge,
    /// `MADV_DONTFORK`
    DontFork,
    /// `MADV_DOFORK`
    DoFork,
    /// `MADV_DONTDUMP`
    DontDump,
    /// `MADV_DODUMP`
    DoDump,
    /// `MADV_WIPEONFORK`
    Wipe,
    /// `MADV_KEEPONFORK`
    Keep,
    /// `MADV_DONTNEED`
    Drop,
    /// `MADV_COLD` on a part of a huge page that is mapped page by page: the kernel splits it
    /// (`madvise_cold_or_pageout_pte_range`).
    Split,
}

/// Denotes the calling process in calls that take a pidfd (Linux 6.14).
const PIDFD_SELF_PROCESS: i32 = -10001;

fn drop_all(iovecs: &[libc::iovec]) {
    let bytes: usize = iovecs.iter().map(|part| part.iov_len).sum();
    // SAFETY: parts of a reservation whose content its user no longer needs.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            PIDFD_SELF_PROCESS,
            iovecs.as_ptr(),
            iovecs.len(),
            libc::MADV_DONTNEED,
            0u32,
        )
    };
    if done == bytes as i64 {
        return;
    }
    for part in iovecs {
        // SAFETY: as above. It cannot fail for private memory of our own.
        unsafe {
            libc::syscall(libc::SYS_madvise, part.iov_base, part.iov_len, libc::MADV_DONTNEED)
        };
    }
}

/// Zeros bytes of mapped memory.
pub fn zero(addr: usize, len: usize) {
    // SAFETY: the module's contract: mapped and writable.
    unsafe { ptr::write_bytes(addr as *mut u8, 0, len) }
}

/// Fills mapped memory with repetitions of one 64-bit word; `len` is a multiple of 8.
pub fn fill(addr: usize, len: usize, word: u64) {
    let words = addr as *mut u64;
    for index in 0..len / 8 {
        // SAFETY: the module's contract: mapped and writable; page aligned.
        unsafe { words.add(index).write(word) };
    }
}

/// Copies between ranges of mapped memory that do not overlap.
pub fn copy(dst: usize, src: usize, len: usize) {
    // SAFETY: the module's contract: mapped, readable, writable; the caller's ranges do not
    // overlap.
    unsafe { ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, len) }
}

/// Makes every page of the range present and private, by writing back its own content (atomically,
/// so that no concurrent write is lost).
pub fn touch(addr: usize, len: usize) {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    for page in (addr..addr + len).step_by(4096) {
        // SAFETY: the module's contract; page aligned, so aligned for the atomic.
        let word = unsafe { &*(page as *const AtomicU64) };
        let held = word.load(Relaxed);
        // A compare-exchange always writes; a fetch_or of zero is compiled to a read. If it fails,
        // another thread has written.
        let _ = word.compare_exchange(held, held, Relaxed, Relaxed);
    }
}

/// Whether the page at `page` is mapped (`mincore(2)`).
pub fn is_present(page: usize) -> bool {
    let mut present = 0u8;
    // SAFETY: mincore only reads the state, and writes one byte for one page.
    let result = unsafe {
        libc::mincore(ptr::without_provenance_mut(page), hiroma_units::PAGE, &raw mut present)
    };
    result == 0 && present & 1 == 1
}

/// Whether each page of a range of at most 2 MiB is mapped. Nothing if that is not known.
fn mapped(start: usize, len: usize) -> Option<[u8; hiroma_units::PAGES_PER_EXTENT]> {
    let mut present = [0u8; hiroma_units::PAGES_PER_EXTENT];
    assert!(len / hiroma_units::PAGE <= present.len(), "an extent at most");
    // SAFETY: mincore only reads the state, and writes one byte for each page.
    let result =
        unsafe { libc::mincore(ptr::without_provenance_mut(start), len, present.as_mut_ptr()) };
    (result == 0).then_some(present)
}

/// Whether no page of a range of at most 2 MiB is mapped. False if that is not known.
pub fn is_empty(start: usize, len: usize) -> bool {
    let pages = len / hiroma_units::PAGE;
    mapped(start, len).is_some_and(|present| present[..pages].iter().all(|byte| byte & 1 == 0))
}

/// Which pages of an extent are mapped, a bit each. Nothing if a part of it has no mapping.
pub fn mapped_pages(extent: usize) -> Option<[u64; hiroma_units::PAGES_PER_EXTENT / 64]> {
    let present = mapped(extent, hiroma_units::EXTENT)?;
    let word =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 1 | u64::from(byte & 1));
    let mut bits = [0; hiroma_units::PAGES_PER_EXTENT / 64];
    bits.iter_mut().zip(present.chunks(64)).for_each(|(bits, bytes)| *bits = word(bytes));
    Some(bits)
}

/// Faults in the page at `addr` by reading a byte of it through the kernel. False: it cannot be
/// read.
pub fn fault_in(addr: usize) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: 1 };
    // SAFETY: the kernel writes one byte to `byte`, or nothing.
    unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            std::process::id(),
            &raw const local,
            1usize,
            &raw const remote,
            1usize,
            0usize,
        ) == 1
    }
}

/// Prefetches bytes that will be read soon into the processor's cache. Any address is allowed: one
/// that is not mapped is ignored.
pub fn prefetch(addr: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (addr..addr + len).step_by(64) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults and changes nothing that a program can observe.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line as *const i8) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (addr, len);
}

/// Lends staging memory to a request: mapped, and not used elsewhere until the buffer is dropped
/// (the module's contract).
pub fn lend(addr: usize, len: usize) -> crate::frame::FrameBuf {
    // SAFETY: the module's contract, which the pager's frame table guarantees: a frame belongs to
    // one request at a time.
    unsafe { crate::frame::FrameBuf::new(addr as *mut u8, len) }
}
