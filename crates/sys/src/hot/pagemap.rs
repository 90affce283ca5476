//! Which pages only one process maps, and which are huge (`/proc/PID/pagemap`,
//! Documentation/admin-guide/mm/pagemap.rst).
//!
//! Contract: one `ioctl`, which only reads, and writes only to the buffers passed to it here.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

/// One bit for each page of a 2 MiB range.
pub type PageBits = [u64; PAGES_PER_EXTENT / 64];

/// Bit 56 of an entry: mapped by no other process.
const EXCLUSIVE: u64 = 1 << 56;
/// Bit 63: present.
const PRESENT: u64 = 1 << 63;
/// Bit 62: the page is on a swap device.
const SWAPPED: u64 = 1 << 62;
/// Bits 0 to 54: the page frame; zeros without CAP_SYS_ADMIN.
const FRAME: u64 = (1 << 55) - 1;

/// `PAGEMAP_SCAN` (Linux 6.7, `ioctl_pagemap_scan(2)`): `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// `PAGE_IS_PRESENT`.
const IS_PRESENT: u64 = 1 << 3;
/// `PAGE_IS_SWAPPED`.
const IS_SWAPPED: u64 = 1 << 4;
/// `PAGE_IS_PFNZERO`: the shared zero page.
const IS_ZERO: u64 = 1 << 5;
/// `PAGE_IS_HUGE`: mapped by a huge page.
const IS_HUGE: u64 = 1 << 6;

/// Maximum number of regions per call.
const REGIONS: usize = 256;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// The page map entry of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageEntry(u64);

impl PageEntry {
    /// Whether the page is present.
    pub fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether no other process maps it.
    pub fn is_exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }

    /// Number of its page frame; none if it is not present, or the kernel does not reveal it
    /// (CAP_SYS_ADMIN).
    pub fn frame(self) -> Option<u64> {
        Some(self.0 & FRAME).filter(|&frame| self.is_present() && frame != 0)
    }
}

/// The page map of a process.
#[derive(Debug)]
pub struct Pagemap(File);

impl Pagemap {
    /// Opens the map of process `pid`. Needs permission to trace it (access mode read).
    pub fn open(pid: u32) -> io::Result<Pagemap> {
        File::open(format!("/proc/{pid}/pagemap")).map(Pagemap)
    }

    /// Opens the map of this process. May be called in a signal handler, as may [`Pagemap::huge`].
    pub fn own() -> io::Result<Pagemap> {
        File::open("/proc/self/pagemap").map(Pagemap)
    }

    /// The pages of 2 MiB range `range` (address divided by 2 MiB) that no other process maps.
    pub fn exclusive(&self, range: u64) -> io::Result<PageBits> {
        self.with(range, PageEntry::is_exclusive)
    }

    /// The pages of `range` that the process has: present, swapped out, or the shared zero page.
    pub fn used(&self, range: u64) -> io::Result<PageBits> {
        self.with(range, |entry| entry.0 & (PRESENT | SWAPPED) != 0)
    }

    /// The pages of `range` that are present; without those that map the shared zero page, where
    /// the kernel distinguishes them (Linux 6.7).
    pub fn present(&self, range: u64) -> io::Result<PageBits> {
        let mut found = [PageRegion::default(); PAGES_PER_EXTENT];
        let mut argument = ScanArgument {
            start: range * EXTENT as u64,
            end: (range + 1) * EXTENT as u64,
            category_inverted: IS_ZERO,
            category_mask: IS_PRESENT | IS_ZERO,
            return_mask: IS_PRESENT,
            ..ScanArgument::default()
        };
        let regions = match self.scan(&mut argument, &mut found) {
            Ok(regions) => regions,
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                return self.with(range, PageEntry::is_present);
            }
            Err(error) => return Err(error),
        };
        let mut bits = PageBits::default();
        for region in &found[..regions] {
            for page in (region.start % EXTENT as u64 / PAGE as u64..)
                .take(((region.end - region.start) / PAGE as u64) as usize)
            {
                bits[page as usize / 64] |= 1 << (page % 64);
            }
        }
        Ok(bits)
    }

    /// Whether huge pages map all of the ranges `first..end`. Linux 6.7.
    pub fn huge(&self, first: u64, end: u64) -> io::Result<bool> {
        let mut found = [PageRegion::default()];
        let mut argument = ScanArgument {
            start: first * EXTENT as u64,
            end: end * EXTENT as u64,
            category_mask: IS_HUGE,
            return_mask: IS_HUGE,
            ..ScanArgument::default()
        };
        self.scan(&mut argument, &mut found)?;
        Ok((found[0].start, found[0].end) == (argument.start, argument.end))
    }

    /// Makes the kernel scan for what `argument` requests; returns how many regions of `found` it
    /// filled.
    fn scan(&self, argument: &mut ScanArgument, found: &mut [PageRegion]) -> io::Result<usize> {
        argument.size = size_of::<ScanArgument>() as u64;
        (argument.vec, argument.vec_len) = (found.as_mut_ptr() as u64, found.len() as u64);
        // SAFETY: the kernel reads and writes `argument`, whose size is in `size`, and writes at
        // most `vec_len` regions to `found`.
        match unsafe {
            libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN as _, std::ptr::from_mut(argument))
        } {
            regions @ 0.. => Ok(regions as usize),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Appends those of the ranges `first..end` in which any page is present. Linux 6.7 skips what
    /// is empty; before, everything is read.
    pub fn populated(&self, first: u64, end: u64, out: &mut Vec<u64>) -> io::Result<()> {
        self.ranges_with(IS_PRESENT, Pagemap::present, first, end, out)
    }

    /// The same for ranges in which the process has any page; see [`Pagemap::used`].
    pub fn occupied(&self, first: u64, end: u64, out: &mut Vec<u64>) -> io::Result<()> {
        self.ranges_with(IS_PRESENT | IS_SWAPPED, Pagemap::used, first, end, out)
    }

    /// Appends the ranges of `first..end` in which the process has any page, with those pages; see
    /// [`Pagemap::used`]. What is empty is skipped. Fails with `ENOTTY` before Linux 6.7.
    pub fn used_ranges(
        &self,
        first: u64,
        end: u64,
        out: &mut Vec<(u64, PageBits)>,
    ) -> io::Result<()> {
        let end = end * EXTENT as u64;
        let mut at = first * EXTENT as u64;
        while at < end {
            let mut found = [PageRegion::default(); REGIONS];
            let mut argument = ScanArgument {
                start: at,
                end,
                category_anyof_mask: IS_PRESENT | IS_SWAPPED,
                return_mask: IS_PRESENT | IS_SWAPPED,
                ..ScanArgument::default()
            };
            let regions = self.scan(&mut argument, &mut found)?;
            for region in &found[..regions] {
                let pages = region.start / PAGE as u64..region.end / PAGE as u64;
                for page in pages {
                    let range = page / PAGES_PER_EXTENT as u64;
                    if out.last().is_none_or(|last| last.0 != range) {
                        out.push((range, PageBits::default()));
                    }
                    let bits = &mut out.last_mut().expect("pushed").1;
                    bits[page as usize % PAGES_PER_EXTENT / 64] |= 1 << (page % 64);
                }
            }
            // A scan that ends at its start would never end.
            at = argument.walk_end.max(at + PAGE as u64);
        }
        Ok(())
    }

    fn ranges_with(
        &self,
        categories: u64,
        read: fn(&Pagemap, u64) -> io::Result<PageBits>,
        first: u64,
        end: u64,
        out: &mut Vec<u64>,
    ) -> io::Result<()> {
        let mut at = first;
        while at < end {
            let mut found = [PageRegion::default(); REGIONS];
            let mut argument = ScanArgument {
                start: at * EXTENT as u64,
                end: end * EXTENT as u64,
                category_anyof_mask: categories,
                return_mask: categories,
                ..ScanArgument::default()
            };
            let regions = match self.scan(&mut argument, &mut found) {
                Ok(regions) => regions,
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                    return self.ranges_by_reading(read, at, end, out);
                }
                Err(error) => return Err(error),
            };
            for region in &found[..regions] {
                let first =
                    (region.start / EXTENT as u64).max(out.last().map_or(0, |last| last + 1));
                out.extend(first..region.end.div_ceil(EXTENT as u64));
            }
            // If `found` is full, the scan ends before a page that does not fit: of a range that
            // was found already, or the next one.
            let next = out.last().map_or(at, |last| (last + 1).max(at));
            at = (argument.walk_end / EXTENT as u64).max(next);
        }
        Ok(())
    }

    fn ranges_by_reading(
        &self,
        read: fn(&Pagemap, u64) -> io::Result<PageBits>,
        first: u64,
        end: u64,
        out: &mut Vec<u64>,
    ) -> io::Result<()> {
        for range in first.max(out.last().map_or(0, |last| last + 1))..end {
            if read(self, range)? != PageBits::default() {
                out.push(range);
            }
        }
        Ok(())
    }

    /// The entries of all pages of `range`.
    pub fn entries(&self, range: u64) -> io::Result<[PageEntry; PAGES_PER_EXTENT]> {
        let mut bytes = [0u8; PAGES_PER_EXTENT * 8];
        // The map of a process that has ended is empty.
        if self.0.read_at(&mut bytes, range * (EXTENT / PAGE * 8) as u64)? < bytes.len() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let mut entries = [PageEntry(0); PAGES_PER_EXTENT];
        for (entry, bytes) in entries.iter_mut().zip(bytes.chunks_exact(8)) {
            entry.0 = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(entries)
    }

    fn with(&self, range: u64, is: fn(PageEntry) -> bool) -> io::Result<PageBits> {
        let mut bits = PageBits::default();
        for (page, &entry) in self.entries(range)?.iter().enumerate() {
            bits[page / 64] |= u64::from(is(entry)) << (page % 64);
        }
        Ok(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{Access, Advise, Reservation, touch};

    #[test]
    fn populated_ranges_are_found_once_by_both_methods() {
        const RANGES: usize = 2000;
        let memory = Reservation::new(RANGES * EXTENT, EXTENT, Access::ReadWrite).unwrap();
        memory.advise(memory.base(), memory.len(), Advise::NoHuge).unwrap();
        // More regions than fit into one call, some of them across the end of a range.
        let touched =
            |range: &usize| range % 3 == 0 || range % 7 == 1 || (100..140).contains(range);
        (0..RANGES)
            .filter(touched)
            .for_each(|range| touch(memory.base() + range * EXTENT + (range % 512) * PAGE, PAGE));
        touch(memory.base() + 110 * EXTENT - PAGE, 2 * PAGE);
        let first = (memory.base() / EXTENT) as u64;
        let expected: Vec<u64> =
            (0..RANGES).filter(touched).map(|range| first + range as u64).collect();
        let map = Pagemap::open(std::process::id()).unwrap();
        let (mut found, mut read) = (Vec::new(), Vec::new());
        map.populated(first, first + RANGES as u64, &mut found).unwrap();
        let end = first + RANGES as u64;
        map.ranges_by_reading(Pagemap::present, first, end, &mut read).unwrap();
        assert_eq!(found, expected);
        assert_eq!(read, expected);
        found.clear();
        map.occupied(first, end, &mut found).unwrap();
        assert_eq!(found, expected);
        let page = (110 * EXTENT - PAGE) / PAGE % PAGES_PER_EXTENT;
        assert!(map.used(first + 109).unwrap()[page / 64] >> (page % 64) & 1 == 1);
    }

    #[test]
    fn read_only_page_takes_no_memory() {
        let memory = Reservation::new(EXTENT, EXTENT, Access::ReadWrite).unwrap();
        memory.advise(memory.base(), memory.len(), Advise::NoHuge).unwrap();
        let region = crate::workload::Region::adopt(memory.base(), memory.len()).unwrap();
        let sum: u64 = (0..PAGES_PER_EXTENT).map(|page| region.read(page * PAGE)).sum();
        assert_eq!(sum, 0);
        let map = Pagemap::open(std::process::id()).unwrap();
        let range = (memory.base() / EXTENT) as u64;
        let scans = map.huge(range, range + 1).is_ok();
        let present = |page: usize| {
            (
                map.present(range).unwrap()[page / 64] >> (page % 64) & 1 == 1,
                map.entries(range).unwrap()[page],
            )
        };
        let (own, entry) = present(300);
        assert_eq!((own, entry.is_present(), entry.is_exclusive()), (!scans, true, false));
        touch(memory.base() + 300 * PAGE, PAGE);
        let (own, entry) = present(300);
        assert_eq!((own, entry.is_present(), entry.is_exclusive()), (true, true, true));
    }
}
