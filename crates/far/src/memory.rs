//! The operations of the kernel on the program's memory that the pager uses. The pager's state
//! decides, this module acts; tests substitute a model of the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use hiroma_sys::hot::pagemap::{PageBits, Pagemap};
use hiroma_sys::uffd::{Message, Outcome, Stop, Uffd};
use hiroma_sys::vm::{self, Advise, Reservation};
use hiroma_sys::{maps, wait};
use hiroma_units::{EXTENT, PAGE};

use crate::canary;

/// The program's memory. Addresses and lengths are in bytes, of whole pages. Only `wake` wakes
/// threads.
pub trait Memory: Send + Sync {
    /// Moves pages out of the program to a range without pages; holes remain holes (`UFFDIO_MOVE`).
    fn move_out(&self, dst: usize, src: usize, len: usize) -> Outcome;

    /// Moves pages into the program. With `holes`, pages may be missing at `src`, and remain
    /// missing.
    fn move_in(&self, dst: usize, src: usize, len: usize, holes: bool) -> Outcome;

    /// Copies pages into the program (`UFFDIO_COPY`).
    fn copy_in(&self, dst: usize, src: usize, len: usize) -> Outcome;

    /// Write-protects pages of the program, or removes that protection.
    fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Stop>;

    /// Copies a page into the program where it has none, write-protected.
    fn copy_in_protected(&self, dst: usize, src: usize) -> Outcome;

    /// Copies one page that is present out of the program.
    fn copy_present_out(&self, dst: usize, src: usize);

    /// Copies one write-protected page out of the program; zeros if there is none. Never faults.
    /// After an error the caller must retry.
    fn copy_page_out(&self, dst: usize, src: usize) -> Result<(), Stop> {
        if self.is_absent(src, PAGE) {
            vm::zero(dst, PAGE);
            // Canary "swapped out is no hole": its content is lost.
            if !self.has_swap() || canary::is_broken("swapped out is no hole") {
                return Ok(());
            }
            // Only a page that was swapped out refuses another one in its place. It is safe to
            // touch: the kernel swaps it in without involving userfaultfd.
            match self.copy_in_protected(src, dst).stop {
                Some(Stop::Exists) => {}
                Some(stop @ (Stop::Again | Stop::NoMemory)) => return Err(stop),
                _ => return Ok(()),
            }
        }
        self.copy_present_out(dst, src);
        Ok(())
    }

    /// Drops pages of the program. On the full path this raises an event, and the call waits until
    /// the event has been read.
    fn discard(&self, start: usize, len: usize) -> io::Result<()>;

    /// Whether none of these pages is in memory. A page that was swapped out is not in memory,
    /// although it exists.
    fn is_absent(&self, start: usize, len: usize) -> bool;

    /// Whether the kernel can swap pages out to a device.
    fn has_swap(&self) -> bool;

    /// Whether it is certain that none of these pages exists.
    fn is_empty(&self, start: usize, len: usize) -> bool {
        // Canary "swapped out is there": it counts as gone.
        (!self.has_swap() || canary::is_broken("swapped out is there"))
            && self.is_absent(start, len)
    }

    /// Appends the extents of `start..end`, as addresses divided by their size, in which the process
    /// has any page, with a bit for each page that it has. False if that is not known.
    fn pages_there(&self, start: usize, end: usize, out: &mut Vec<(u64, PageBits)>) -> bool;

    /// Whether the extent at `start` is mapped as one huge page, without a page table. True if that
    /// is not known.
    fn is_huge(&self, start: usize) -> bool;

    /// Unshares a page that is shared after a fork. It must be present, and may be write-protected.
    fn unshare(&self, addr: usize);

    /// Splits the huge page that contains `addr`, if it is mapped page by page.
    fn split(&self, addr: usize);

    /// End and protection of the mapping at `addr`.
    fn protection(&self, addr: usize) -> Option<(usize, i32)>;

    /// Changes the protection of a part of the arena.
    fn protect(&self, start: usize, len: usize, prot: i32) -> io::Result<()>;

    /// Wakes the threads that wait for pages.
    fn wake(&self, start: usize, len: usize);

    /// Whether the kernel has queued messages.
    fn has_messages(&self) -> bool;

    /// Appends queued messages of the kernel, at most `most`; never blocks.
    fn read(&self, out: &mut Vec<Message>, most: usize) -> io::Result<()>;
}

/// The running kernel.
pub struct Kernel {
    pub uffd: Arc<Uffd>,
    /// Watches the staging area. Full path only.
    pub staging: Option<Arc<Uffd>>,
    pub arena: Arc<Reservation>,
    /// The process's page map, where it can be opened.
    pub pagemap: Option<Pagemap>,
}

impl Memory for Kernel {
    fn move_out(&self, dst: usize, src: usize, len: usize) -> Outcome {
        self.staging
            .as_ref()
            .expect("the full path has a staging descriptor")
            .move_quietly(dst, src, len, true)
    }

    fn move_in(&self, dst: usize, src: usize, len: usize, holes: bool) -> Outcome {
        self.uffd.move_quietly(dst, src, len, holes)
    }

    fn copy_in(&self, dst: usize, src: usize, len: usize) -> Outcome {
        self.uffd.copy_quietly(dst, src, len)
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Stop> {
        self.uffd.write_protect(start, len, on)
    }

    fn copy_in_protected(&self, dst: usize, src: usize) -> Outcome {
        self.uffd.copy_protected_quietly(dst, src, PAGE)
    }

    fn copy_present_out(&self, dst: usize, src: usize) {
        vm::copy(dst, src, PAGE);
    }

    fn discard(&self, start: usize, len: usize) -> io::Result<()> {
        self.arena.advise(start, len, Advise::Drop)
    }

    fn is_absent(&self, start: usize, len: usize) -> bool {
        vm::is_empty(start, len)
    }

    fn is_huge(&self, start: usize) -> bool {
        let range = (start / EXTENT) as u64;
        self.pagemap.as_ref().is_none_or(|map| map.huge(range, range + 1).unwrap_or(true))
    }

    fn pages_there(&self, start: usize, end: usize, out: &mut Vec<(u64, PageBits)>) -> bool {
        let (first, end) = ((start / EXTENT) as u64, end.div_ceil(EXTENT) as u64);
        let used = |map: &Pagemap, out| map.used_ranges(first, end, out).is_ok();
        match &self.pagemap {
            Some(map) => used(map, out),
            None => Pagemap::own().is_ok_and(|map| used(&map, out)),
        }
    }

    fn has_swap(&self) -> bool {
        rustix::system::sysinfo().totalswap > 0
    }

    fn unshare(&self, addr: usize) {
        // The kernel unshares a page when it reads it on behalf of another process
        // (`gup_must_unshare`), also one that is not writable. If a seccomp filter forbids that,
        // only a write remains.
        if !vm::fault_in(addr)
            && self.protection(addr).is_some_and(|(_, prot)| prot & libc::PROT_WRITE != 0)
        {
            vm::touch(addr, PAGE);
        }
    }

    fn split(&self, addr: usize) {
        // If it fails, the page stays in place.
        let _ = self.arena.advise(addr, PAGE, Advise::Split);
    }

    fn protection(&self, addr: usize) -> Option<(usize, i32)> {
        maps::area_at(addr).map(|area| (area.end, area.prot))
    }

    fn protect(&self, start: usize, len: usize, prot: i32) -> io::Result<()> {
        self.arena.protect(start, len, prot)
    }

    fn wake(&self, start: usize, len: usize) {
        self.uffd.wake(start, len);
    }

    fn has_messages(&self) -> bool {
        wait::readable(&[self.uffd.as_fd().as_raw_fd()], 0) != 0
    }

    fn read(&self, out: &mut Vec<Message>, most: usize) -> io::Result<()> {
        self.uffd.read(out, most)
    }
}
