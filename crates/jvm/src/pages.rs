//! Which pages of this process are in memory, and which are huge (`PAGEMAP_SCAN`, Linux 6.7; Documentation/admin-guide/mm/pagemap.rst).
//!
//! Contract: the kernel writes to the two structures whose addresses it is given here, and both outlive the call.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::Error;

const PRESENT: u64 = 1 << 3;
const ZERO: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;

/// Addresses `start..end`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Run {
    pub start: u64,
    pub end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Scan {
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

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = (3 << 30) | ((size_of::<Scan>() as libc::c_ulong) << 16) | ((b'f' as libc::c_ulong) << 8) | 16;

/// What of the pages of `start..end` is on huge pages of its own; the shared huge page of zeros does not count.
pub fn huge_runs(start: u64, end: u64) -> Result<Vec<Run>, Error> {
    runs(start, end, PRESENT | HUGE)
}

/// What of the pages of `start..end` is in memory; shared pages of zeros do not count.
pub fn present_runs(start: u64, end: u64) -> Result<Vec<Run>, Error> {
    runs(start, end, PRESENT)
}

/// Runs of pages of all `categories` that are no shared ones of zeros.
fn runs(start: u64, end: u64, categories: u64) -> Result<Vec<Run>, Error> {
    let map = File::open("/proc/self/pagemap").map_err(Error::Untold)?;
    let mut found = Vec::new();
    let mut runs = [Run::default(); 512];
    // The kernel wants the first address of a page; those of all Linux machines with 2 MiB huge pages have 4 KiB.
    let mut at = start & !4095;
    while at < end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: at,
            end,
            vec: runs.as_mut_ptr().expose_provenance() as u64,
            vec_len: runs.len() as u64,
            category_inverted: ZERO,
            category_mask: categories | ZERO,
            return_mask: categories,
            ..Scan::default()
        };
        // SAFETY: `scan` has the layout and the size that it states, and `vec` has room for `vec_len` runs; both live on this stack.
        let filled = unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let Ok(filled) = usize::try_from(filled) else { return Err(Error::Untold(io::Error::last_os_error())) };
        found.extend_from_slice(runs.get(..filled).unwrap_or_default());
        if scan.walk_end <= at {
            break;
        }
        at = scan.walk_end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::{Advice, advise};

    #[test]
    fn memory_that_was_collapsed_is_a_run_of_huge_pages() {
        const HUGE_PAGE: usize = 2 << 20;
        let mut memory = vec![0u8; 3 * HUGE_PAGE];
        memory.fill(1);
        let at = memory.as_ptr().expose_provenance().next_multiple_of(HUGE_PAGE);
        let (start, end) = (at as u64, (at + HUGE_PAGE) as u64);
        match huge_runs(start, end) {
            Err(error) => return println!("skipped: {error}"),
            // Where every program gets huge pages it is one from the beginning.
            Ok(runs) => assert!(runs.iter().all(|run| run.start >= start && run.end <= end)),
        }
        if let Err(error) = advise(at, HUGE_PAGE, Advice::Collapse) {
            return println!("skipped: no huge page to be had: {error}");
        }
        let runs = huge_runs(start, end).unwrap();
        assert_eq!(runs.iter().map(|run| run.end - run.start).sum::<u64>(), HUGE_PAGE as u64);
        assert_eq!(present_runs(start, end).unwrap().iter().map(|run| run.end - run.start).sum::<u64>(), HUGE_PAGE as u64);
        assert!(memory.iter().all(|&byte| byte == 1));
    }
}
