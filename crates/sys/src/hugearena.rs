//! Memory for hot objects that is on huge pages from the beginning.
//!
//! Contract: an arena is a private mapping of its own at an address of the kernel's choice. The
//! caller distributes its bytes; no code here reads or writes them, except that
//! [`HugeArena::release`] makes them zeros.
#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};

use crate::hot::pagemap::Pagemap;
use crate::vm::{Access, Advise, Reservation, touch};
use hiroma_units::{EXTENT, PAGE};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Where huge pages come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// The pool that the administrator reserved (vm.nr_hugepages): cannot fail later.
    Reserved,
    /// Transparent huge pages, allocated when a part of the arena is first used.
    Transparent,
}

/// An arena on huge pages.
pub struct HugeArena {
    mapping: NonNull<u8>,
    mapping_len: usize,
    start: NonNull<u8>,
    len: usize,
    backing: Backing,
}

// SAFETY: the arena is a range of addresses; it returns no references into it.
unsafe impl Send for HugeArena {}
// SAFETY: as above.
unsafe impl Sync for HugeArena {}

impl HugeArena {
    /// Allocates `len` bytes (a multiple of 2 MiB): from the reserved pool if it has enough for
    /// all, else as address space whose memory is allocated by [`HugeArena::populate`].
    pub fn new(len: usize) -> io::Result<HugeArena> {
        assert!(len > 0 && len % EXTENT == 0, "an arena consists of whole extents");
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let reserved = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        if let Some(start) = unsafe { mmap_anonymous(ptr::null_mut(), len, writable, reserved) }
            .ok()
            .and_then(|at| NonNull::new(at.cast()))
        {
            return Ok(HugeArena {
                mapping: start,
                mapping_len: len,
                start,
                len,
                backing: Backing::Reserved,
            });
        }
        let mapping_len = len.checked_add(EXTENT).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: as above.
        let mapping = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapping_len,
                writable,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the offset is less than an extent, and the mapping is an extent longer than the
        // arena.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(EXTENT)) };
        // Only a hint: `populate` requests the huge page itself.
        // SAFETY: the range is ours; the advice does not change content.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(HugeArena { mapping, mapping_len, start, len, backing: Backing::Transparent })
    }

    /// First address.
    pub fn base(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where its huge pages come from.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    fn extent(&self, number: usize) -> *mut libc::c_void {
        assert!(number < self.len / EXTENT, "outside the arena");
        // SAFETY: just checked.
        unsafe { self.start.add(number * EXTENT) }.as_ptr().cast()
    }

    /// Allocates the memory of an extent. `Ok(false)`: it is populated, but on small pages, because
    /// the kernel has no huge page for it.
    pub fn populate(&self, number: usize) -> io::Result<bool> {
        let at = self.extent(number);
        // SAFETY: the extent is ours, and populating does not change content.
        unsafe { madvise(at, EXTENT, Advice::LinuxPopulateWrite)? };
        Ok(self.backing == Backing::Reserved || collapse(at.expose_provenance(), EXTENT).is_ok())
    }

    /// Frees the memory of an extent. It reads as zeros until it is populated again.
    pub fn release(&self, number: usize) -> io::Result<()> {
        // SAFETY: the extent is ours, and the caller has no objects in it any more.
        unsafe { madvise(self.extent(number), EXTENT, Advice::LinuxDontNeed)? };
        Ok(())
    }
}

impl Drop for HugeArena {
    fn drop(&mut self) {
        // SAFETY: the arena has no users any more.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_len) };
    }
}

/// Makes the next huge page that the kernel allocates ready: takes one, touches it, and frees it.
/// The kernel's per-CPU free lists reuse the page that was freed last, so the next allocation on
/// this processor gets it.
#[derive(Debug)]
pub struct SparePage(Reservation);

impl SparePage {
    /// Reserves address space for it; the memory is allocated only for a moment.
    pub fn new() -> io::Result<SparePage> {
        let room = Reservation::new(EXTENT, EXTENT, Access::ReadWrite)?;
        room.advise(room.base(), EXTENT, Advise::Huge)?;
        Ok(SparePage(room))
    }

    /// Allocates, touches and frees a page. If no huge page is available, it is a small one: of no
    /// use, but harmless. May be called in a signal handler.
    pub fn make_ready(&self) {
        touch(self.0.base(), PAGE);
        let _ = self.0.advise(self.0.base(), EXTENT, Advise::Drop);
    }
}

/// Collapses `len` bytes of this process's memory at `addr` in place (`MADV_COLLAPSE`, Linux 6.1).
/// Content does not change, and the kernel refuses addresses that are not mapped or cannot be huge.
/// May be called in a signal handler.
///
/// Where two mappings meet in a range, the kernel processes each mapping separately, finds no whole
/// range in either, and reports success (observed on Linux 6.18). Here that fails like a range that
/// cannot be huge (`EINVAL`), where the kernel reports what is huge (Linux 6.7).
pub fn collapse(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the call changes how memory is mapped, never its content, and nothing that Rust
    // assumes about it.
    let done =
        unsafe { libc::madvise(ptr::with_exposed_provenance_mut(addr), len, libc::MADV_COLLAPSE) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let (first, end) = (addr.div_ceil(EXTENT) as u64, ((addr + len) / EXTENT) as u64);
    let is_huge =
        |range: u64| Pagemap::own().and_then(|map| map.huge(range, range + 1)).unwrap_or(true);
    if (first..end).all(is_huge) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_is_aligned_and_populates_and_releases_extents() {
        let arena = HugeArena::new(3 * EXTENT).unwrap();
        assert_eq!(arena.base() % EXTENT, 0);
        // Whether the kernel has a huge page does not matter here; the memory is populated either
        // way.
        let first = arena.populate(0).unwrap();
        println!("{:?}, huge: {first}", arena.backing());
        arena.populate(2).unwrap();
        arena.release(0).unwrap();
        arena.populate(0).unwrap();
    }

    #[test]
    fn spare_page_is_released_after_use() {
        let spare = SparePage::new().unwrap();
        spare.make_ready();
        spare.make_ready();
        let range = (spare.0.base() / EXTENT) as u64;
        assert_eq!(Pagemap::own().unwrap().present(range).unwrap(), [0; 8]);
    }

    #[test]
    fn range_spanning_two_mappings_is_not_huge() {
        let arena = HugeArena::new(3 * EXTENT).unwrap();
        let middle = arena.base() + EXTENT;
        if arena.backing() == Backing::Reserved || !arena.populate(1).unwrap() {
            return hiroma_testkit::skip!(Machine, "no transparent huge page was to be had");
        }
        // Each half is in a mapping that has room for a huge page elsewhere.
        let half = ptr::with_exposed_provenance_mut(middle + EXTENT / 2);
        // SAFETY: memory of the arena, which nothing else uses.
        unsafe { madvise(half, EXTENT + EXTENT / 2, Advice::LinuxDontDump) }.unwrap();
        match Pagemap::own().unwrap().huge(0, 1) {
            Ok(_) => {
                assert_eq!(collapse(middle, EXTENT).unwrap_err().raw_os_error(), Some(libc::EINVAL))
            }
            Err(error) => hiroma_testkit::skip!(Machine, "no PAGEMAP_SCAN: {error}"),
        }
    }

    #[test]
    fn oversized_arena_and_unmapped_collapse_are_refused() {
        assert!(HugeArena::new(usize::MAX / EXTENT * EXTENT).is_err());
        assert!(collapse(0, EXTENT).is_err());
        assert!(collapse(usize::MAX - EXTENT + 1, EXTENT).is_err());
        assert!(collapse(3, 1).is_err());
    }
}
