//! Byte rings in memory that two processes share: one for each direction, with one writer and one
//! reader each.
//!
//! A ring has two positions that only grow, its writer's and its reader's; their difference is the
//! number of bytes in it. Each side keeps its own position to itself and only publishes it: what it
//! reads in the shared memory is the other side's position, once, and checks it. So a peer that
//! writes anything into the memory at any time can confuse the bytes that it sends, and end the
//! connection, but nothing else.
//!
//! A side that is going to sleep announces that (`reader_waits`, `writer_waits`); the other side then
//! rings its bell, once. While both are busy, neither makes a system call.
//!
//! Contract: the mapping lives as long as its [`Region`], and its file can neither shrink nor be of a
//! kind whose pages can be missing. Its control lines are accessed with atomic operations only, its
//! bytes only by copying between them and memory of the caller's, never by reference: the other
//! process may write to them meanwhile.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use hiroma_units::PAGE;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::hugepool::{HugePool, PoolRange};
use crate::territory;

/// The control lines of both rings come first.
const CONTROL_BYTES: usize = 4096;
const CONTROL_STEP: usize = CONTROL_BYTES / 2;
/// The largest ring that is accepted from a peer.
const RING_BYTES_MAX: usize = 16 << 20;
/// Bytes are published in pieces of this size, so that the other side copies at the same time.
const PIECE: usize = 16 << 10;
/// `f_type` of memory files; those on huge pages have another one.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Bytes of the two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// From the client to the server.
    pub to_server: usize,
    /// From the server to the client.
    pub to_client: usize,
}

impl Sizes {
    fn are_valid(self) -> bool {
        [self.to_server, self.to_client]
            .iter()
            .all(|&size| size.is_power_of_two() && (PAGE..=RING_BYTES_MAX).contains(&size))
    }

    /// Length of the file.
    fn total(self) -> usize {
        CONTROL_BYTES + self.to_server + self.to_client
    }
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It made the memory.
    Server,
    /// It was given the memory.
    Client,
}

/// The peer has published a position that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

impl From<Damaged> for io::Error {
    fn from(_: Damaged) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, "the shared memory was damaged by the other end")
    }
}

/// A value alone in its cache line, and the one beside it, which processors fetch together.
#[repr(C, align(128))]
struct Line<T>(T);

#[repr(C)]
struct Control {
    tail: Line<AtomicU64>,
    /// The processor of the writer when it last published.
    writer_cpu: Line<AtomicU32>,
    reader_waits: Line<AtomicU32>,
    head: Line<AtomicU64>,
    writer_waits: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Control>() <= CONTROL_STEP);

struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: see the contract; nothing in it belongs to a thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn map(file: &OwnedFd, len: usize) -> io::Result<Region> {
        let (place, fixed) = territory::place(len);
        // SAFETY: a new mapping in our territory, or at an address of the kernel's choice, touches
        // nothing that is in use.
        let start = unsafe {
            mmap(
                place,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE | fixed,
                file.as_fd(),
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the last one that used it is gone.
        unsafe { territory::unmap(self.start.as_ptr() as usize, self.len) };
    }
}

/// Makes the memory of a connection: the file for the peer, and this end of the rings.
pub fn create(sizes: Sizes) -> io::Result<(OwnedFd, Writer, Reader)> {
    assert!(sizes.are_valid(), "rings of {sizes:?}");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("hiroma-rings", flags)?;
    // Not only its length is set: its memory exists from now on, or this fails.
    fallocate(&file, FallocateFlags::empty(), 0, sizes.total() as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let (writer, reader) = ends(&file, sizes, End::Server)?;
    Ok((file, writer, reader))
}

/// The other end, in a file that the peer has made.
pub fn open(file: &OwnedFd, sizes: Sizes) -> io::Result<(Writer, Reader)> {
    let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason.to_owned()));
    if !sizes.are_valid() || fstat(file)?.st_size != sizes.total() as i64 {
        return refuse("the shared memory has not the size that was announced");
    }
    // Memory that its maker can cut off, or that is not backed by plain pages, would end this process
    // when it is accessed.
    if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK)
        || fstatfs(file)?.f_type as u64 != TMPFS_MAGIC
    {
        return refuse("the shared memory is not sealed");
    }
    ends(file, sizes, End::Client)
}

fn ends(file: &OwnedFd, sizes: Sizes, end: End) -> io::Result<(Writer, Reader)> {
    let region = Arc::new(Region::map(file, sizes.total())?);
    let to_server = (0, CONTROL_BYTES, sizes.to_server);
    let to_client = (CONTROL_STEP, CONTROL_BYTES + sizes.to_server, sizes.to_client);
    let (to_peer, to_us) = match end {
        End::Server => (to_client, to_server),
        End::Client => (to_server, to_client),
    };
    let side = |(control, data, size): (usize, usize, usize)| Side {
        region: Arc::clone(&region),
        control,
        data,
        size,
        own: 0,
        seen: 0,
    };
    Ok((Writer(side(to_peer)), Reader(side(to_us))))
}

/// What both sides of a ring have.
struct Side {
    region: Arc<Region>,
    /// Where its control lines and its bytes are in the region.
    control: usize,
    data: usize,
    size: usize,
    /// Our own position.
    own: u64,
    /// The other side's, as last seen.
    seen: u64,
}

impl Side {
    fn control(&self) -> &Control {
        // SAFETY: inside the region, aligned, and nothing but atomics, for which any bits are valid.
        unsafe { self.region.start.add(self.control).cast::<Control>().as_ref() }
    }

    /// The bytes from our position on that are next to each other, `len` at most.
    fn next(&self, len: usize) -> (*mut u8, usize) {
        let at = (self.own & (self.size as u64 - 1)) as usize;
        // SAFETY: less than the ring's size behind its start, which is inside the region.
        let start = unsafe { self.region.start.add(self.data + at) };
        (start.as_ptr(), len.min(self.size - at))
    }

    /// Room that is known of, after a look at the reader's position if there was none.
    fn room(&mut self) -> Result<usize, Damaged> {
        let Side { own, size, .. } = *self;
        if own.wrapping_sub(self.seen) == size as u64 {
            self.seen = self.control().head.0.load(Ordering::Acquire);
        }
        let used = own.wrapping_sub(self.seen);
        if used > size as u64 { Err(Damaged) } else { Ok(size - used as usize) }
    }

    /// Bytes that are known of, after a look at the writer's position if there were none.
    fn filled(&mut self) -> Result<usize, Damaged> {
        let Side { own, size, .. } = *self;
        if own == self.seen {
            self.seen = self.control().tail.0.load(Ordering::Acquire);
        }
        let filled = self.seen.wrapping_sub(own);
        if filled > size as u64 { Err(Damaged) } else { Ok(filled as usize) }
    }

    /// Publishes the writer's position.
    fn publish_tail(&self, ring: Ring<'_>) {
        let control = self.control();
        control.writer_cpu.0.store(rustix::thread::sched_getcpu() as u32, Ordering::Relaxed);
        control.tail.0.store(self.own, Ordering::Release);
        // Either we see that the reader waits, or it sees the bytes.
        fence(Ordering::SeqCst);
        let waits = &control.reader_waits.0;
        if waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::AcqRel) != 0 {
            ring();
        }
    }

    /// Publishes the reader's position.
    fn publish_head(&self, ring: Ring<'_>) {
        let Side { own, seen, size, .. } = *self;
        let control = self.control();
        control.head.0.store(own, Ordering::Release);
        fence(Ordering::SeqCst);
        // A writer waits when the ring is full. It is woken when there is room for some more, so that
        // it is not woken for each piece.
        let waits = &control.writer_waits.0;
        if waits.load(Ordering::Relaxed) != 0
            && seen.wrapping_sub(own) <= size as u64 / 2
            && waits.swap(0, Ordering::AcqRel) != 0
        {
            ring();
        }
    }

    /// Copies between the parts and the ring by `copy` (part, ring, bytes), until the parts end or
    /// nothing is `available`. Calls `publish` for each piece.
    ///
    /// # Safety
    /// The parts may be accessed as `copy` does, during the call.
    unsafe fn carry(
        &mut self,
        parts: impl Iterator<Item = Part>,
        available: impl Fn(&mut Side) -> Result<usize, Damaged>,
        copy: unsafe fn(*mut u8, *mut u8, usize),
        mut publish: impl FnMut(&Side),
    ) -> Result<usize, Damaged> {
        let (mut total, mut unpublished) = (0, 0);
        'parts: for part in parts {
            let mut done = 0;
            while done < part.len {
                let available = available(self)?;
                if available == 0 {
                    break 'parts;
                }
                let (ring, len) = self.next(available.min(part.len - done).min(PIECE));
                // SAFETY: inside the part, and inside the ring; the two do not overlap.
                unsafe { copy(part.start.add(done), ring, len) };
                self.own = self.own.wrapping_add(len as u64);
                (done, total, unpublished) = (done + len, total + len, unpublished + len);
                if unpublished >= PIECE {
                    publish(self);
                    unpublished = 0;
                }
            }
        }
        if unpublished > 0 {
            publish(self);
        }
        Ok(total)
    }
}

/// Copies from a part into the ring.
///
/// # Safety
/// Both are valid for `len` bytes, and do not overlap.
unsafe fn put_in(part: *mut u8, ring: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { ptr::copy_nonoverlapping(part, ring, len) };
}

/// Copies from the ring to a part.
///
/// # Safety
/// As for `put_in`.
unsafe fn take_out(part: *mut u8, ring: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { ptr::copy_nonoverlapping(ring, part, len) };
}

/// Memory of the caller's to copy from or to.
#[derive(Clone, Copy)]
struct Part {
    start: *mut u8,
    len: usize,
}

fn from_slice(slice: &[u8]) -> Part {
    Part { start: slice.as_ptr().cast_mut(), len: slice.len() }
}

fn from_pool(pool: &HugePool, range: PoolRange) -> Part {
    Part { start: pool.pointer(range).cast(), len: range.len }
}

/// Called when the peer must be woken.
pub type Ring<'a> = &'a mut dyn FnMut();

/// The end of a ring into which bytes are written.
pub struct Writer(Side);

impl Writer {
    /// Writes as much of the parts as there is room for.
    pub fn write(&mut self, parts: &[IoSlice<'_>], ring: Ring<'_>) -> Result<usize, Damaged> {
        // SAFETY: the slices are borrowed, and only read.
        unsafe { self.write_parts(parts.iter().map(|part| from_slice(part)), ring) }
    }

    /// The same with `head` and then a range of a pool.
    pub fn write_from(
        &mut self,
        head: &[u8],
        pool: &HugePool,
        range: PoolRange,
        ring: Ring<'_>,
    ) -> Result<usize, Damaged> {
        let parts = [from_slice(head), from_pool(pool, range)];
        // SAFETY: as above; the pool's range is mapped, see its contract.
        unsafe { self.write_parts(parts.into_iter(), ring) }
    }

    /// # Safety
    /// The parts are readable during the call.
    unsafe fn write_parts(
        &mut self,
        parts: impl Iterator<Item = Part>,
        ring: Ring<'_>,
    ) -> Result<usize, Damaged> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.carry(parts, Side::room, put_in, |side| side.publish_tail(ring)) }
    }

    /// Announces that we wait for room. False: there is some, or the ring is damaged.
    pub fn announce(&self) -> bool {
        let control = self.0.control();
        control.writer_waits.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let head = control.head.0.load(Ordering::Acquire);
        self.0.own.wrapping_sub(head) == self.0.size as u64
    }

    /// Withdraws that. True: the bell was rung for it, or will be at once.
    pub fn withdraw(&self) -> bool {
        self.0.control().writer_waits.0.swap(0, Ordering::AcqRel) == 0
    }
}

/// The end of a ring from which bytes are read.
pub struct Reader(Side);

impl Reader {
    /// Fills the parts with what there is.
    pub fn read(&mut self, parts: &mut [IoSliceMut<'_>], ring: Ring<'_>) -> Result<usize, Damaged> {
        let parts = parts.iter_mut().map(|part| Part { start: part.as_mut_ptr(), len: part.len() });
        // SAFETY: the slices are borrowed, exclusively.
        unsafe { self.read_parts(parts, ring) }
    }

    /// The same with a range of a pool and then `tail`.
    pub fn read_to(
        &mut self,
        pool: &HugePool,
        range: PoolRange,
        tail: &mut [u8],
        ring: Ring<'_>,
    ) -> Result<usize, Damaged> {
        let tail = Part { start: tail.as_mut_ptr(), len: tail.len() };
        // SAFETY: as above; the pool's range is mapped, see its contract.
        unsafe { self.read_parts([from_pool(pool, range), tail].into_iter(), ring) }
    }

    /// # Safety
    /// The parts are writable during the call.
    unsafe fn read_parts(
        &mut self,
        parts: impl Iterator<Item = Part>,
        ring: Ring<'_>,
    ) -> Result<usize, Damaged> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.carry(parts, Side::filled, take_out, |side| side.publish_head(ring)) }
    }

    /// The processor on which the writer last was.
    pub fn writer_cpu(&self) -> usize {
        self.0.control().writer_cpu.0.load(Ordering::Relaxed) as usize
    }

    /// Announces that we wait for bytes. False: there are some, or the ring is damaged.
    pub fn announce(&self) -> bool {
        let control = self.0.control();
        control.reader_waits.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        control.tail.0.load(Ordering::Acquire) == self.0.own
    }

    /// Withdraws that. True: the bell was rung for it, or will be at once.
    pub fn withdraw(&self) -> bool {
        self.0.control().reader_waits.0.swap(0, Ordering::AcqRel) == 0
    }
}

#[cfg(test)]
mod tests;
