//! Memory that is held to make huge pages scarce: the state of a machine with a long uptime.
//!
//! Contract: both reservations belong to this module alone, and no references into them exist;
//! words in them are accessed with volatile accesses. Pages that are moved out of `slots` are
//! pinned by `rings` in `pins`, which stays mapped until the rings are dropped.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use hiroma_units::{EXTENT, PAGE};
use io_uring::IoUring;
use rustix::mm::{Advice, MremapFlags, madvise, mremap_fixed};

use crate::hot::pagemap::Pagemap;
use crate::vm::{Access, Advise, Reservation};

/// The maximum size of one buffer of io_uring (`io_uring_register(2)`).
const BUFFER_MAX: usize = 1 << 30;

/// Slots of 2 MiB, each empty, held, or crumbled.
pub struct Hoard {
    slots: Reservation,
    // Before `pins`, so that it is dropped first.
    rings: Vec<IoUring>,
    pins: Reservation,
    pinned_pages: usize,
    pagemap: Pagemap,
}

impl Hoard {
    /// Address space for `count` slots; all are empty.
    pub fn new(count: usize) -> io::Result<Hoard> {
        let slots = Reservation::new(count * EXTENT, EXTENT, Access::ReadWrite)?;
        slots.advise(slots.base(), slots.len(), Advise::Huge)?;
        let pins = Reservation::new(count * PAGE, PAGE, Access::ReadWrite)?;
        Ok(Hoard {
            slots,
            rings: Vec::new(),
            pins,
            pinned_pages: 0,
            pagemap: Pagemap::open(std::process::id())?,
        })
    }

    /// Number of slots.
    pub fn count(&self) -> usize {
        self.slots.len() / EXTENT
    }

    fn address(&self, slot: usize) -> usize {
        assert!(slot < self.count(), "slot {slot} of {}", self.count());
        self.slots.base() + slot * EXTENT
    }

    fn touch(&self, address: usize) {
        // SAFETY: an aligned word of ours that is mapped writable.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(address).write_volatile(address as u64) };
    }

    /// Allocates memory for an empty slot if the kernel has a huge page for it. Returns whether it
    /// had.
    pub fn take_huge(&self, slot: usize) -> io::Result<bool> {
        let address = self.address(slot);
        self.touch(address);
        let range = (address / EXTENT) as u64;
        let huge = self.pagemap.huge(range, range + 1)?;
        if !huge {
            self.empty(slot)?;
        }
        Ok(huge)
    }

    /// Frees the memory of a slot, except for what is pinned.
    pub fn empty(&self, slot: usize) -> io::Result<()> {
        self.slots.advise(self.address(slot), EXTENT, Advise::Drop)
    }

    /// Splits huge pages of `slots` and frees each of them except for one small page, which is
    /// pinned: it cannot be moved, so no huge page can form there again. The slots cannot be used
    /// any more.
    pub fn crumble(&mut self, slots: &[usize]) -> io::Result<()> {
        let first = self.pins.base() + self.pinned_pages * PAGE;
        for (number, &slot) in slots.iter().enumerate() {
            let kept = ptr::with_exposed_provenance_mut(self.address(slot));
            let place = ptr::with_exposed_provenance_mut(first + number * PAGE);
            // SAFETY: pages of ours; the advice preserves content, and the move is from one of our
            // reservations to an unused page of the other.
            unsafe {
                madvise(kept, PAGE, Advice::LinuxCold)?;
                mremap_fixed(kept, PAGE, PAGE, MremapFlags::MAYMOVE, place)?;
            }
        }
        self.pinned_pages += slots.len();
        let end = self.pins.base() + self.pinned_pages * PAGE;
        for start in (first..end).step_by(BUFFER_MAX) {
            let ring = IoUring::new(1)?;
            let buffer = libc::iovec {
                iov_base: ptr::with_exposed_provenance_mut(start),
                iov_len: BUFFER_MAX.min(end - start),
            };
            // SAFETY: `pins` stays mapped while the ring exists, and nothing is ever submitted to
            // the ring.
            unsafe { ring.submitter().register_buffers(&[buffer])? };
            self.rings.push(ring);
        }
        slots.iter().try_for_each(|&slot| self.empty(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_of_each_split_block_stays() {
        let mut hoard = Hoard::new(4).unwrap();
        match (0..2).map(|slot| hoard.take_huge(slot)).collect::<io::Result<Vec<bool>>>() {
            Ok(huge) if huge == [true, true] => {}
            Ok(_) => {
                return hiroma_testkit::skip!(Machine, "the kernel has no huge page at the moment");
            }
            Err(error) => {
                return hiroma_testkit::skip!(
                    Machine,
                    "{error} (Linux 6.7 tells which pages are huge)"
                );
            }
        }
        hoard.touch(hoard.address(2) + EXTENT - PAGE);
        if let Err(error) = hoard.crumble(&[0, 1]) {
            return hiroma_testkit::skip!(
                Machine,
                "{error} (a kernel that lets io_uring pin memory)"
            );
        }
        let present = |slot: usize| {
            let bits = hoard.pagemap.present((hoard.address(slot) / EXTENT) as u64).unwrap();
            bits.iter().map(|word| word.count_ones()).sum::<u32>()
        };
        assert_eq!([0, 1, 3].map(present), [0, 0, 0]);
        assert!(present(2) > 0);
        for page in 0..2 {
            // SAFETY: a pinned page, mapped and aligned.
            let kept = unsafe {
                ptr::with_exposed_provenance::<u64>(hoard.pins.base() + page * PAGE).read_volatile()
            };
            assert_eq!(kept, hoard.address(page) as u64, "the page is another one");
        }
        hoard.empty(2).unwrap();
        assert_eq!(present(2), 0);
    }
}
