//! Which pages only one process maps (`/proc/PID/pagemap`, Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

/// One bit for each page of a 2 MiB range.
pub type PageBits = [u64; PAGES_PER_EXTENT / 64];

/// Bit 56 of an entry: mapped by nobody else.
const EXCLUSIVE: u64 = 1 << 56;
/// Bit 63: there.
const PRESENT: u64 = 1 << 63;

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
