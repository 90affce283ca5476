//! What the pager asks of the kernel about the program's memory. Its state decides, this acts; a
//! test puts a kernel of its own here.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use hiroma_kernel::uffd::{Message, Outcome, Stop, Uffd};
use hiroma_kernel::vm::{self, Advise, Reservation};
use hiroma_kernel::{maps, wait};
use hiroma_units::PAGE;

use crate::canary;

/// The program's memory. Addresses and lengths are in bytes and whole pages; nobody is woken but by
/// `wake`.
pub trait Memory: Send + Sync {
    /// Moves pages out of the program, to where nothing is; holes stay holes (`UFFDIO_MOVE`).
    fn move_out(&self, dst: usize, src: usize, len: usize) -> Outcome;

    /// Moves pages into the program. `holes`: some may be missing at `src`, and stay so.
    fn move_in(&self, dst: usize, src: usize, len: usize, holes: bool) -> Outcome;

    /// Copies pages into the program (`UFFDIO_COPY`).
    fn copy_in(&self, dst: usize, src: usize, len: usize) -> Outcome;

    /// Protects pages of the program against writing, or lifts that.
    fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Stop>;

    /// Copies a page to where none is in the program, protected against writing.
    fn copy_in_protected(&self, dst: usize, src: usize) -> Outcome;

    /// Copies one page that is there out of the program.
    fn copy_present_out(&self, dst: usize, src: usize);

    /// Copies one page that is write-protected out of the program; zeros if there is none. Faults
    /// never. An error: to be tried again.
    fn copy_page_out(&self, dst: usize, src: usize) -> Result<(), Stop> {
        if self.is_absent(src, PAGE) {
            vm::zero(dst, PAGE);
            // Canary "swapped out is no hole": its content is lost.
            if !self.has_swap() || canary::is_broken("swapped out is no hole") {
                return Ok(());
            }
            // Only one that was swapped out stands in the way of another. It is safe to touch: the
            // kernel brings it back, and asks nobody.
            match self.copy_in_protected(src, dst).stop {
                Some(Stop::Exists) => {}
                Some(stop @ (Stop::Again | Stop::NoMemory)) => return Err(stop),
                _ => return Ok(()),
            }
        }
        self.copy_present_out(dst, src);
        Ok(())
    }

    /// Drops pages of the program. On the full path an event tells of it and the call waits until
    /// that was read.
    fn discard(&self, start: usize, len: usize) -> io::Result<()>;

    /// Whether none of these pages is in memory. What was swapped out is not, and there all the
    /// same.
    fn is_absent(&self, start: usize, len: usize) -> bool;

    /// Whether pages can be swapped out to a device of the kernel's.
    fn has_swap(&self) -> bool;

    /// Whether it is certain that none of these pages is there.
    fn is_empty(&self, start: usize, len: usize) -> bool {
        // Canary "swapped out is there": it passes for gone.
        (!self.has_swap() || canary::is_broken("swapped out is there"))
            && self.is_absent(start, len)
    }

    /// Makes a page that is shared after a fork the program's own again. It must be there, and may
    /// be protected.
    fn unshare(&self, addr: usize);

    /// Makes the page at `addr` one of its own, if it is part of a huge page that is mapped page by
    /// page.
    fn split(&self, addr: usize);

    /// End and protection of the mapping at `addr`.
    fn protection(&self, addr: usize) -> Option<(usize, i32)>;

    /// Changes the protection of a part of the arena.
    fn protect(&self, start: usize, len: usize, prot: i32) -> io::Result<()>;

    /// Lets threads go on that wait for pages.
    fn wake(&self, start: usize, len: usize);

    /// Whether the kernel has something to say.
    fn has_messages(&self) -> bool;

    /// Appends what the kernel has to say; never blocks.
    fn read(&self, out: &mut Vec<Message>) -> io::Result<()>;
}

/// The kernel that we run on.
pub struct Kernel {
    pub uffd: Arc<Uffd>,
    /// Watches the staging area. Full path only.
    pub staging: Option<Arc<Uffd>>,
    pub arena: Arc<Reservation>,
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

    fn has_swap(&self) -> bool {
        rustix::system::sysinfo().totalswap > 0
    }

    fn unshare(&self, addr: usize) {
        // The kernel makes a page private that it reads for somebody else (`gup_must_unshare`):
        // also one that is not to be written. Where a seccomp filter forbids that, only a write is
        // left.
        if !vm::fault_in(addr)
            && self.protection(addr).is_some_and(|(_, prot)| prot & libc::PROT_WRITE != 0)
        {
            vm::touch(addr, PAGE);
        }
    }

    fn split(&self, addr: usize) {
        // If it fails, the page stays where it is.
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

    fn read(&self, out: &mut Vec<Message>) -> io::Result<()> {
        self.uffd.read(out)
    }
}
