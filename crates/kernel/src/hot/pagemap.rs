//! Which pages only one process maps, and which are huge (`/proc/PID/pagemap`, Documentation/admin-guide/mm/pagemap.rst).
//!
//! Contract: one `ioctl`, which only reads, and writes to what it is given here.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

/// One bit for each page of a 2 MiB range.
pub type PageBits = [u64; PAGES_PER_EXTENT / 64];

/// Bit 56 of an entry: mapped by nobody else.
const EXCLUSIVE: u64 = 1 << 56;
/// Bit 63: there.
const PRESENT: u64 = 1 << 63;

/// `PAGEMAP_SCAN` (Linux 6.7, `ioctl_pagemap_scan(2)`): `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// `PAGE_IS_HUGE`: mapped by a huge page.
const IS_HUGE: u64 = 1 << 6;

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

/// The page map of a process.
#[derive(Debug)]
pub struct Pagemap(File);

impl Pagemap {
    /// Opens the map of process `pid`. Needs the right to trace it (access mode read).
    pub fn open(pid: u32) -> io::Result<Pagemap> {
        File::open(format!("/proc/{pid}/pagemap")).map(Pagemap)
    }

    /// The pages of 2 MiB range `range` (address divided by 2 MiB) that nobody else maps.
    pub fn exclusive(&self, range: u64) -> io::Result<PageBits> {
        self.with(range, EXCLUSIVE)
    }

    /// The pages of `range` that are there.
    pub fn present(&self, range: u64) -> io::Result<PageBits> {
        self.with(range, PRESENT)
    }

    /// Whether huge pages map all of the ranges `first..end`. Linux 6.7.
    pub fn huge(&self, first: u64, end: u64) -> io::Result<bool> {
        let mut found = PageRegion::default();
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start: first * EXTENT as u64,
            end: end * EXTENT as u64,
            vec: &raw mut found as u64,
            vec_len: 1,
            category_mask: IS_HUGE,
            return_mask: IS_HUGE,
            ..ScanArgument::default()
        };
        // SAFETY: the kernel reads and writes `argument`, which is as large as it says, and writes at most one region to `found`.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut argument) } {
            0.. => Ok((found.start, found.end) == (argument.start, argument.end)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn with(&self, range: u64, flag: u64) -> io::Result<PageBits> {
        let mut entries = [0u8; PAGES_PER_EXTENT * 8];
        // A process that has ended has an empty map.
        if self.0.read_at(&mut entries, range * (EXTENT / PAGE * 8) as u64)? < entries.len() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let mut bits = PageBits::default();
        for (page, entry) in entries.chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
            bits[page / 64] |= u64::from(entry & flag != 0) << (page % 64);
        }
        Ok(bits)
    }
}
