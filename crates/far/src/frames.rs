//! The staging area: frames for blocks that are being evicted, fetched, or staged.
//!
//! A frame is a stretch of address space the size of a block. With memory behind it, it counts as
//! local. Moving a page out of the program gives a frame memory, moving one in takes that away.
//! Frames that have memory but no content are reused first: their pages are cache-warm and need no
//! zeroing.

use std::io;

use hiroma_sys::uffd::{Uffd, Watch};
use hiroma_sys::vm::{Access, Advise, Reservation};
use hiroma_units::{EXTENT, PAGE};

use crate::store::bit_set::BitSet;

/// One frame: its number in its pool, with its order in the low bits. Four bytes, because there is
/// one for each staged block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Frame(u32);

const ORDER_BITS: u32 = 4;
const _: () = assert!(SMALL_AREA / PAGE < 1 << (32 - ORDER_BITS));

impl Frame {
    fn new(order: u8, index: u32) -> Frame {
        Frame(index << ORDER_BITS | u32::from(order))
    }

    fn order(self) -> u8 {
        (self.0 & ((1 << ORDER_BITS) - 1)) as u8
    }

    /// The frame `offset` places behind this one.
    pub fn at(self, offset: usize) -> Frame {
        Frame::new(self.order(), self.index() + offset as u32)
    }

    fn index(self) -> u32 {
        self.0 >> ORDER_BITS
    }

    /// Length in bytes.
    pub fn bytes(self) -> usize {
        PAGE << self.order()
    }
}

/// Frames of one size.
struct Pool {
    area: Reservation,
    order: u8,
    /// With memory, whose content is unused; the last freed first.
    full: Vec<u32>,
    /// With memory, all zero.
    zeroed: Vec<u32>,
    /// Without memory.
    empty: BitSet,
    /// With pages that were the program's: a reader that the kernel does not count (a pipe after
    /// `vmsplice`) may still use them, so they are given back to the kernel and never written. They
    /// wait to be given back in one batch.
    strange: Vec<u32>,
    /// For each frame: whether its pages were the program's.
    is_strange: Vec<u64>,
    /// Frames from here on have never been used.
    unused_from: u32,
}

/// Address space for frames of whole extents, and for those of sectors.
const HUGE_AREA: usize = 64 << 30;
const SMALL_AREA: usize = 32 << 30;

/// All frames.
pub struct Frames {
    /// One for each size of blocks; that of extents first.
    pools: Vec<Pool>,
    /// Where pages are moved that are given back to the kernel at once.
    scratch: Reservation,
    /// Memory behind frames, whatever their content.
    bytes: usize,
}

const EXTENT_ORDER: u8 = 9;

/// Strange frames are given back in batches of this many.
const DROP_BATCH: usize = 64;

impl Frames {
    /// An empty staging area for extents and for blocks of `1 << order` pages for each of `orders`.
    pub fn new(orders: &[u8], huge_pages: bool) -> io::Result<Frames> {
        let mut pools = vec![Pool::new(HUGE_AREA, EXTENT_ORDER, huge_pages)?];
        for &order in orders.iter().filter(|&&order| order < EXTENT_ORDER) {
            pools.push(Pool::new(SMALL_AREA, order, false)?);
        }
        let scratch = Reservation::new(EXTENT, EXTENT, Access::ReadWrite)?;
        let _ = scratch.advise(scratch.base(), EXTENT, Advise::NoHuge);
        Ok(Frames { pools, scratch, bytes: 0 })
    }

    /// Registers the area, so that pages can be moved into it. The events that it is registered for
    /// never happen.
    pub fn register(&self, uffd: &Uffd) -> io::Result<()> {
        for area in self.pools.iter().map(|pool| &pool.area).chain([&self.scratch]) {
            uffd.register(area.base(), area.len(), Watch::WriteProtect)?;
        }
        Ok(())
    }

    fn pool(&self, order: u8) -> &Pool {
        let pool = self.pools.iter().find(|pool| pool.order == order);
        pool.expect("there is a pool for each size of blocks")
    }

    fn pool_mut(&mut self, order: u8) -> &mut Pool {
        let pool = self.pools.iter_mut().find(|pool| pool.order == order);
        pool.expect("there is a pool for each size of blocks")
    }

    /// Changes the protection of a part of the staging area, which is readable and writable.
    pub fn protect(&self, addr: usize, len: usize, prot: i32) -> io::Result<()> {
        let pool =
            self.pools.iter().find(|pool| pool.area.contains(addr)).expect("a frame's address");
        pool.area.protect(addr, len, prot)
    }

    /// Address of a frame.
    pub fn addr(&self, frame: Frame) -> usize {
        self.pool(frame.order()).area.base() + ((frame.index() as usize * PAGE) << frame.order())
    }

    /// Address of an extent without memory, for pages that `empty_scratch` gives back to the kernel.
    pub fn scratch(&self) -> usize {
        self.scratch.base()
    }

    /// Gives the memory of the first `len` bytes of the scratch extent back to the kernel.
    pub fn empty_scratch(&self, len: usize) {
        let _ = self.scratch.advise(self.scratch.base(), len, Advise::Drop);
    }

    /// Memory behind frames.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The part of that in frames without content.
    pub fn spare_bytes(&self) -> usize {
        let spare = |pool: &Pool| {
            (pool.full.len() + pool.zeroed.len() + pool.strange.len()) * (PAGE << pool.order)
        };
        self.pools.iter().map(spare).sum()
    }

    /// A frame without memory, for a page to be moved into.
    pub fn take_empty(&mut self, order: u8) -> Option<Frame> {
        let pool = self.pool_mut(order);
        let index = match pool.empty.first() {
            Some(index) => {
                pool.empty.set(index, false);
                index as u32
            }
            None if ((pool.unused_from as usize + 1) * PAGE) << order <= pool.area.len() => {
                pool.unused_from += 1;
                pool.unused_from - 1
            }
            None => return None,
        };
        Some(Frame::new(order, index))
    }

    /// `count` (at most 64) frames in a row without memory, for small blocks. The first is returned,
    /// and [`Frame::at`] gives the others.
    pub fn take_empty_run(&mut self, order: u8, count: usize) -> Option<Frame> {
        let pool = self.pool_mut(order);
        let unused = pool.unused_from as usize;
        let first = match pool.empty.run(count, unused) {
            Some(first) => {
                (first..first + count).for_each(|index| pool.empty.set(index, false));
                first
            }
            None if ((unused + count) * PAGE) << order <= pool.area.len() => {
                pool.unused_from += count as u32;
                unused
            }
            None => return None,
        };
        Some(Frame::new(order, first as u32))
    }

    /// A frame with memory whose content is unused. The flag: it is all zero.
    pub fn take_full(&mut self, order: u8, zero_wanted: bool) -> Option<(Frame, bool)> {
        let pool = self.pool_mut(order);
        let (index, zero) = if let Some(index) = zero_wanted.then(|| pool.zeroed.pop()).flatten() {
            (index, true)
        } else if let Some(index) = pool.full.pop() {
            (index, false)
        } else {
            (pool.zeroed.pop()?, true)
        };
        Some((Frame::new(order, index), zero))
    }

    /// Returns a frame whose content is no longer needed. Pages that were the program's are never
    /// reused: a pipe or a socket may still read them, and the kernel does not show that.
    pub fn put_full(&mut self, frame: Frame) {
        let order = frame.order();
        let pool = self.pool_mut(order);
        if !pool.is_strange(frame.index()) {
            pool.full.push(frame.index());
            return;
        }
        pool.strange.push(frame.index());
        if pool.strange.len() >= DROP_BATCH || order == 9 {
            self.bytes -= self.pool_mut(order).drop_strange();
        }
    }

    /// The frame's pages were the program's until now.
    pub fn moved_in(&mut self, frame: Frame) {
        self.gained(frame);
        self.pool_mut(frame.order()).mark(frame.index(), true);
    }

    /// Whether the frame's pages were the program's.
    pub fn is_strange(&self, frame: Frame) -> bool {
        self.pool(frame.order()).is_strange(frame.index())
    }

    /// Returns a frame whose memory is all zero.
    pub fn put_zeroed(&mut self, frame: Frame) {
        self.pool_mut(frame.order()).zeroed.push(frame.index());
    }

    /// Returns a frame that has no memory any more.
    pub fn put_empty(&mut self, frame: Frame) {
        let pool = self.pool_mut(frame.order());
        pool.mark(frame.index(), false);
        pool.empty.insert(frame.index() as usize);
    }

    /// How many whole-extent frames are all zero.
    pub fn zeroed_extents(&self) -> usize {
        self.pools[0].zeroed.len()
    }

    /// A frame received memory (a page moved in, or it is about to be written for the first time).
    pub fn gained(&mut self, frame: Frame) {
        self.bytes += frame.bytes();
    }

    /// A frame's memory moved into the program.
    pub fn lost(&mut self, frame: Frame) {
        self.bytes -= frame.bytes();
    }

    /// Gives the memory of all strange frames back to the kernel. Returns how many bytes.
    pub fn drop_strange(&mut self) -> usize {
        let dropped = self.pools.iter_mut().map(Pool::drop_strange).sum();
        self.bytes -= dropped;
        dropped
    }

    /// Gives memory of spare frames back to the kernel until at least `wanted` bytes are freed.
    /// Skips frames of order `except`. Returns how many bytes.
    pub fn drop_spare(&mut self, wanted: usize, except: Option<u8>) -> usize {
        let mut dropped = 0;
        for pool in &mut self.pools {
            dropped += pool.drop_strange();
            if Some(pool.order) == except {
                continue;
            }
            while dropped < wanted {
                let Some(index) = pool.full.pop().or_else(|| pool.zeroed.pop()) else { break };
                let len = PAGE << pool.order;
                let addr = pool.area.base() + index as usize * len;
                // This cannot fail for private memory of our own; if it did, the memory would
                // merely remain allocated.
                let _ = pool.area.advise(addr, len, Advise::Drop);
                pool.empty.insert(index as usize);
                dropped += len;
            }
        }
        self.bytes -= dropped;
        dropped
    }

    /// Bytes of tables.
    pub fn metadata_bytes(&self) -> usize {
        let of = |pool: &Pool| {
            (pool.full.capacity() + pool.zeroed.capacity()) * 4
                + pool.empty.bytes()
                + pool.is_strange.capacity() * 8
        };
        self.pools.iter().map(of).sum()
    }
}

/// What fork does to frames, for a model.
#[cfg(any(test, feature = "model"))]
impl Frames {
    /// Copies the tables and the content of frames into `child`, which is empty and at other
    /// addresses.
    pub fn copy_to(&self, child: &mut Frames) {
        child.bytes = self.bytes;
        for (pool, of_child) in self.pools.iter().zip(&mut child.pools) {
            (of_child.full, of_child.zeroed, of_child.empty) =
                (pool.full.clone(), pool.zeroed.clone(), pool.empty.clone());
            (of_child.strange, of_child.is_strange) =
                (pool.strange.clone(), pool.is_strange.clone());
            of_child.unused_from = pool.unused_from;
            let len = PAGE << pool.order;
            for index in (0..pool.unused_from).filter(|index| !pool.empty.contains(*index as usize))
            {
                let offset = index as usize * len;
                hiroma_sys::vm::copy(of_child.area.base() + offset, pool.area.base() + offset, len);
            }
        }
    }

    /// The address in the copy that corresponds to an address of a frame.
    pub fn addr_in(&self, child: &Frames, addr: usize) -> Option<usize> {
        let mut pools = self.pools.iter().zip(&child.pools);
        pools.find_map(|(pool, of_child)| {
            pool.area.contains(addr).then(|| addr - pool.area.base() + of_child.area.base())
        })
    }
}

impl Pool {
    fn new(len: usize, order: u8, huge_pages: bool) -> io::Result<Pool> {
        let area = Reservation::new(len, EXTENT, Access::ReadWrite)?;
        let huge = order == 9 && huge_pages;
        // Without transparent huge pages in the kernel this fails, and small pages are used.
        let _ =
            area.advise(area.base(), area.len(), if huge { Advise::Huge } else { Advise::NoHuge });
        Ok(Pool {
            area,
            order,
            full: Vec::new(),
            zeroed: Vec::new(),
            empty: BitSet::default(),
            strange: Vec::new(),
            is_strange: Vec::new(),
            unused_from: 0,
        })
    }

    fn is_strange(&self, index: u32) -> bool {
        self.is_strange.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn mark(&mut self, index: u32, strange: bool) {
        let place = index as usize / 64;
        if place >= self.is_strange.len() {
            if !strange {
                return;
            }
            self.is_strange.resize(place + 1, 0);
        }
        let word = &mut self.is_strange[place];
        *word = *word & !(1 << (index % 64)) | u64::from(strange) << (index % 64);
    }

    /// Gives the memory of strange frames back to the kernel. Returns how many bytes.
    fn drop_strange(&mut self) -> usize {
        if self.strange.is_empty() {
            return 0;
        }
        let len = PAGE << self.order;
        let ranges =
            self.strange.iter().map(|&index| (self.area.base() + index as usize * len, len));
        self.area.drop_scattered(ranges);
        let dropped = self.strange.len() * len;
        for index in std::mem::take(&mut self.strange) {
            self.mark(index, false);
            self.empty.insert(index as usize);
        }
        dropped
    }
}

impl Frames {
    /// Gives the memory of a frame back to the kernel, and the frame to the empty ones.
    pub fn discard(&mut self, addr: usize, frame: Frame) {
        let _ = self.pool(frame.order()).area.advise(addr, frame.bytes(), Advise::Drop);
        self.lost(frame);
        self.put_empty(frame);
    }

    /// Ensures that a frame without memory has none (after a move that was undone).
    pub fn scrub(&mut self, frame: Frame) {
        let addr = self.addr(frame);
        let _ = self.pool(frame.order()).area.advise(addr, frame.bytes(), Advise::Drop);
    }
}
