//! Memory for compressed sectors: slabs of 256 KiB, each divided into objects of one size. Empty
//! slabs are given back to the kernel.
//!
//! Bookkeeping takes about 40 bytes a slab and a bit for each object in it; objects have no
//! headers. The lock is only held for bookkeeping: content is copied outside of it, and a read
//! takes no lock at all, because the size of a slab's objects does not change while one of them is
//! in use.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hiroma_sys::slabmem::SlabMemory;
use hiroma_units::Loc;

/// Bytes in a slab.
pub const SLAB_BYTES: usize = 256 << 10;
/// Largest object: a sixteenth of a slab, so that the unusable ends of slabs stay small.
pub const OBJECT_BYTES_MAX: usize = 16 << 10;
/// Classes are this far apart up to [`STEP_CLASSES_MAX`]; above that they are sized by the number
/// of objects in a slab.
const STEP_BYTES: usize = 128;
const STEP_CLASSES_MAX: usize = 8 << 10;
/// Bits of a `Loc` that identify the object in its slab.
const OBJECT_BITS: u32 = (SLAB_BYTES / STEP_BYTES).trailing_zeros();
const SLABS_MAX: usize = 1 << (Loc::STORE_BITS - OBJECT_BITS);
const NONE: u32 = u32::MAX;

/// The allocator and its memory.
pub struct Slabs {
    memory: SlabMemory,
    /// Object size of each class, ascending.
    classes: Vec<usize>,
    /// Class of each slab in use.
    class_of: Vec<AtomicU8>,
    slabs_max: usize,
    /// Number of slabs that may be in use.
    slabs_allowed: AtomicUsize,
    books: Mutex<Books>,
    /// An allocation failed, and little was freed since.
    exhausted: AtomicBool,
    slabs_in_use: AtomicU64,
    /// Bytes of the objects in use.
    object_bytes_in_use: AtomicU64,
    metadata_bytes: AtomicU64,
    /// Objects at locations from here on are in slabs that are to become empty.
    closed_from: AtomicU32,
}

/// No room: every slab is in use, and none has a free object that is large enough.
#[derive(Debug, PartialEq, Eq)]
pub struct SlabsFull;

struct Books {
    slabs: Vec<Slab>,
    /// First slab of each class that has a free object.
    partial: Vec<u32>,
    /// Slabs that are not in use. The last one may still have its memory.
    spare: Vec<u32>,
    /// Whether the last of `spare` still has its memory.
    spare_is_warm: bool,
    freed_since_full: usize,
}

/// One slab. It is in the list of its class while it has a free object.
struct Slab {
    taken: Box<[u64]>,
    previous: u32,
    next: u32,
    live: u16,
    /// It accepts no more objects, because it is to become empty.
    is_closed: bool,
}

impl Slabs {
    /// Capacity of `capacity_bytes`, rounded down to whole slabs.
    pub fn new(capacity_bytes: u64) -> io::Result<Slabs> {
        let slabs_max = (capacity_bytes / SLAB_BYTES as u64).min(SLABS_MAX as u64) as usize;
        let mut classes: Vec<usize> =
            (1..=STEP_CLASSES_MAX / STEP_BYTES).map(|step| step * STEP_BYTES).collect();
        let wide = (SLAB_BYTES / OBJECT_BYTES_MAX..SLAB_BYTES / STEP_CLASSES_MAX).rev();
        classes.extend(wide.map(|count| (SLAB_BYTES / count) & !63));
        let books = Books {
            slabs: Vec::new(),
            partial: vec![NONE; classes.len()],
            spare: Vec::new(),
            spare_is_warm: false,
            freed_since_full: 0,
        };
        Ok(Slabs {
            memory: SlabMemory::reserve((slabs_max * SLAB_BYTES).max(SLAB_BYTES))?,
            class_of: (0..slabs_max).map(|_| AtomicU8::new(0)).collect(),
            metadata_bytes: AtomicU64::new((slabs_max + classes.len() * 12) as u64),
            classes,
            slabs_max,
            slabs_allowed: AtomicUsize::new(slabs_max),
            books: Mutex::new(books),
            exhausted: AtomicBool::new(slabs_max == 0),
            slabs_in_use: AtomicU64::new(0),
            object_bytes_in_use: AtomicU64::new(0),
            closed_from: AtomicU32::new(u32::MAX),
        })
    }

    /// Allocates an object of at least `bytes` and at most `bytes_max`, which is at most
    /// [`OBJECT_BYTES_MAX`].
    pub fn allocate(&self, bytes: usize, bytes_max: usize) -> Result<Loc, SlabsFull> {
        let class = self.classes.partition_point(|&size| size < bytes);
        let mut books = self.books();
        if books.partial[class] == NONE && !self.add_slab(&mut books, class) {
            // A larger object is better than none, but not a much larger one: the room would be
            // missing elsewhere.
            let size_max = bytes_max.min(2 * self.classes[class].max(512));
            let mut larger =
                (class..self.classes.len()).take_while(|&larger| self.classes[larger] <= size_max);
            let Some(class) = larger.find(|&larger| books.partial[larger] != NONE) else {
                books.freed_since_full = 0;
                self.exhausted.store(true, Ordering::Relaxed);
                return Err(SlabsFull);
            };
            return Ok(self.take(&mut books, class));
        }
        Ok(self.take(&mut books, class))
    }

    /// Frees objects. No thread may be reading them.
    pub fn free(&self, locs: impl IntoIterator<Item = Loc>) {
        let mut books = self.books();
        let mut empty = Vec::new();
        for loc in locs {
            let (slab, object) = split(loc);
            let class = self.class(slab);
            let entry = &mut books.slabs[slab];
            assert!(
                entry.taken[object / 64] >> (object % 64) & 1 == 1,
                "object {} was freed although it is not in use",
                loc.0
            );
            entry.taken[object / 64] &= !(1 << (object % 64));
            entry.live -= 1;
            self.object_bytes_in_use.fetch_sub(self.classes[class] as u64, Ordering::Relaxed);
            let (is_empty, was_full) =
                (entry.live == 0, usize::from(entry.live) + 1 == self.objects(class));
            let is_closed = entry.is_closed;
            if was_full && !is_closed {
                books.link(class, slab);
            }
            if is_empty {
                if !is_closed {
                    books.unlink(class, slab);
                }
                books.slabs[slab].is_closed = false;
                books.slabs[slab].taken = Box::default();
                empty.push(slab);
            }
            self.note_freed(&mut books, class);
        }
        self.retire(books, &empty);
    }

    /// Copies `bytes` into an object.
    pub fn write(&self, loc: Loc, bytes: &[u8]) {
        assert!(bytes.len() <= self.object_bytes(loc));
        self.memory.write(self.offset(loc), bytes);
    }

    /// Copies from the start of an object until `bytes` is full.
    pub fn read(&self, loc: Loc, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.object_bytes(loc));
        self.memory.read(self.offset(loc), bytes);
    }

    /// The size of the object, which may be more than was requested.
    pub fn object_bytes(&self, loc: Loc) -> usize {
        self.classes[self.class(split(loc).0)]
    }

    /// Whether an allocation is likely to fail; cheap.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Bytes of slabs in use.
    pub fn used_bytes(&self) -> u64 {
        self.slabs_in_use.load(Ordering::Relaxed) * SLAB_BYTES as u64
    }

    /// Bytes of the objects in use: less than their slabs.
    pub fn object_bytes_in_use(&self) -> u64 {
        self.object_bytes_in_use.load(Ordering::Relaxed)
    }

    /// Maximum of `used_bytes`.
    pub fn capacity_bytes(&self) -> u64 {
        (self.slabs_allowed.load(Ordering::Relaxed) * SLAB_BYTES) as u64
    }

    /// Changes the capacity, up to what was reserved. Slabs in use beyond it stay.
    pub fn allow(&self, bytes: u64) {
        let slabs = ((bytes / SLAB_BYTES as u64) as usize).min(self.slabs_max);
        self.slabs_allowed.store(slabs, Ordering::Relaxed);
        self.exhausted.store(false, Ordering::Relaxed);
    }

    /// Closes the last slabs, as many as are in use beyond the allowed number, and opens the
    /// others. Returns false if no more are in use than allowed.
    ///
    /// Closed slabs accept no more objects. They are given back to the kernel when the objects for
    /// which [`Slabs::is_closed`] is true have been freed.
    pub fn close_excess(&self) -> bool {
        let mut books = self.books();
        let allowed = self.slabs_allowed.load(Ordering::Relaxed) as u64;
        let mut excess = self
            .slabs_in_use
            .load(Ordering::Relaxed)
            .saturating_sub(allowed + u64::from(books.spare_is_warm));
        let closes = excess > 0;
        let mut closed_from = u32::MAX;
        for slab in (0..books.slabs.len())
            .rev()
            .filter(|_| closes || self.closed_from.load(Ordering::Relaxed) < u32::MAX)
        {
            let Slab { live, is_closed, .. } = books.slabs[slab];
            if live == 0 {
                continue;
            }
            let (class, close) = (self.class(slab), excess > 0);
            if close {
                excess -= 1;
                closed_from = (slab << OBJECT_BITS) as u32;
            }
            let has_room = usize::from(live) < self.objects(class);
            match (is_closed, close) {
                (false, true) if has_room => books.unlink(class, slab),
                (true, false) if has_room => books.link(class, slab),
                _ => {}
            }
            books.slabs[slab].is_closed = close;
        }
        self.closed_from.store(closed_from, Ordering::Relaxed);
        closes
    }

    /// Whether an object is in a slab that is to become empty.
    pub fn is_closed(&self, loc: Loc) -> bool {
        loc.0 >= self.closed_from.load(Ordering::Relaxed)
    }

    /// Whether it may allocate more slabs.
    pub fn may_grow(&self) -> bool {
        self.slabs_in_use.load(Ordering::Relaxed)
            < self.slabs_allowed.load(Ordering::Relaxed) as u64
    }

    /// Bytes of bookkeeping.
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes.load(Ordering::Relaxed)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn class(&self, slab: usize) -> usize {
        usize::from(self.class_of[slab].load(Ordering::Relaxed))
    }

    fn objects(&self, class: usize) -> usize {
        SLAB_BYTES / self.classes[class]
    }

    fn offset(&self, loc: Loc) -> usize {
        let (slab, object) = split(loc);
        slab * SLAB_BYTES + object * self.classes[self.class(slab)]
    }

    /// Takes an object of the first slab that has a free one.
    fn take(&self, books: &mut Books, class: usize) -> Loc {
        let slab = books.partial[class] as usize;
        let entry = &mut books.slabs[slab];
        let (word, bits) = entry
            .taken
            .iter_mut()
            .enumerate()
            .find(|(_, bits)| **bits != u64::MAX)
            .expect("a listed slab has room");
        let object = word * 64 + bits.trailing_ones() as usize;
        *bits |= 1 << (object % 64);
        entry.live += 1;
        self.object_bytes_in_use.fetch_add(self.classes[class] as u64, Ordering::Relaxed);
        if usize::from(entry.live) == self.objects(class) {
            books.unlink(class, slab);
        }
        Loc((slab << OBJECT_BITS | object) as u32)
    }

    /// Puts one more slab into use for `class`, if there is one.
    fn add_slab(&self, books: &mut Books, class: usize) -> bool {
        let slab = match books.spare.pop() {
            Some(slab) if books.spare_is_warm || self.may_grow() => slab as usize,
            Some(slab) => {
                books.spare.push(slab);
                return false;
            }
            None if books.slabs.len() < self.slabs_max && self.may_grow() => {
                books.slabs.push(Slab {
                    taken: Box::default(),
                    previous: NONE,
                    next: NONE,
                    live: 0,
                    is_closed: false,
                });
                books.slabs.len() - 1
            }
            None => return false,
        };
        if std::mem::take(&mut books.spare_is_warm) {
            // The one that was just popped; it has been counted as in use all the time.
        } else {
            self.slabs_in_use.fetch_add(1, Ordering::Relaxed);
        }
        books.slabs[slab].taken = vec![0; self.objects(class).div_ceil(64)].into();
        self.class_of[slab].store(class as u8, Ordering::Relaxed);
        books.link(class, slab);
        let bitmaps = books.slabs.len() * (size_of::<Slab>() + 4)
            + self.slabs_in_use.load(Ordering::Relaxed) as usize * 16;
        self.metadata_bytes
            .store((self.slabs_max + self.classes.len() * 12 + bitmaps) as u64, Ordering::Relaxed);
        true
    }

    fn note_freed(&self, books: &mut Books, class: usize) {
        books.freed_since_full += self.classes[class];
        if self.slabs_max > 0
            && books.freed_since_full >= SLAB_BYTES.min(self.slabs_max * SLAB_BYTES / 16)
        {
            self.exhausted.store(false, Ordering::Relaxed);
        }
    }

    /// Gives the memory of empty slabs back to the kernel, outside the lock, except for one that is
    /// reused next.
    fn retire(&self, mut books: MutexGuard<'_, Books>, empty: &[usize]) {
        let Some((&last, rest)) = empty.split_last() else { return };
        let mut cold: Vec<usize> = rest.to_vec();
        if books.spare_is_warm {
            cold.push(last);
        } else {
            books.spare.push(last as u32);
            books.spare_is_warm = true;
        }
        drop(books);
        if cold.is_empty() {
            return;
        }
        for &slab in &cold {
            // This cannot fail on our own mapping; if it did, the memory would merely stay
            // allocated.
            let _ = self.memory.release(slab * SLAB_BYTES, SLAB_BYTES);
        }
        let mut books = self.books();
        self.slabs_in_use.fetch_sub(cold.len() as u64, Ordering::Relaxed);
        let warm = if books.spare_is_warm { books.spare.pop() } else { None };
        books.spare.extend(cold.iter().map(|&slab| slab as u32));
        books.spare.extend(warm);
        self.exhausted.store(false, Ordering::Relaxed);
    }
}

impl Books {
    fn link(&mut self, class: usize, slab: usize) {
        let first = std::mem::replace(&mut self.partial[class], slab as u32);
        if first != NONE {
            self.slabs[first as usize].previous = slab as u32;
        }
        (self.slabs[slab].previous, self.slabs[slab].next) = (NONE, first);
    }

    fn unlink(&mut self, class: usize, slab: usize) {
        let (previous, next) = (self.slabs[slab].previous, self.slabs[slab].next);
        match previous {
            NONE => self.partial[class] = next,
            previous => self.slabs[previous as usize].next = next,
        }
        if next != NONE {
            self.slabs[next as usize].previous = previous;
        }
    }
}

fn split(loc: Loc) -> (usize, usize) {
    (loc.0 as usize >> OBJECT_BITS, loc.0 as usize & ((1 << OBJECT_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn objects_of_every_size_fit_and_waste_little() {
        let slabs = Slabs::new(64 << 20).unwrap();
        for bytes in 1..=OBJECT_BYTES_MAX {
            let class = slabs.classes[slabs.classes.partition_point(|&size| size < bytes)];
            assert!(
                class >= bytes && class - bytes < (bytes / 15).max(STEP_BYTES),
                "{bytes}: {class}"
            );
            assert!(SLAB_BYTES % class <= SLAB_BYTES / 16);
        }
    }

    #[test]
    fn allocator_reports_full_until_a_free() {
        let slabs = Slabs::new(1 << 20).unwrap();
        let locs: Vec<Loc> =
            std::iter::from_fn(|| slabs.allocate(8192, OBJECT_BYTES_MAX).ok()).collect();
        assert_eq!((locs.len(), slabs.used_bytes()), (128, 1 << 20));
        assert!(slabs.is_exhausted());
        slabs.free(locs[..64].iter().copied());
        assert!(!slabs.is_exhausted());
        assert!(slabs.allocate(100, OBJECT_BYTES_MAX).is_ok());
    }

    #[test]
    fn freed_slabs_go_back_and_serve_other_sizes() {
        let slabs = Slabs::new(4 << 20).unwrap();
        for bytes in [128, 3000, 16384, 700] {
            let locs: Vec<Loc> =
                std::iter::from_fn(|| slabs.allocate(bytes, OBJECT_BYTES_MAX).ok()).collect();
            assert!(
                locs.len() * bytes > 7 * slabs.used_bytes() as usize / 8,
                "{bytes}: {}",
                locs.len()
            );
            slabs.free(locs);
            assert_eq!(slabs.used_bytes(), SLAB_BYTES as u64, "one is kept at hand");
        }
    }

    #[test]
    fn closed_slabs_drain_without_new_objects() {
        let slabs = Slabs::new(2 << 20).unwrap();
        let locs: Vec<Loc> = std::iter::from_fn(|| slabs.allocate(4096, 4096).ok()).collect();
        assert!(!slabs.close_excess());
        slabs.allow(1 << 20);
        assert!(slabs.close_excess() && slabs.close_excess());
        let (closed, open): (Vec<Loc>, Vec<Loc>) =
            locs.into_iter().partition(|&loc| slabs.is_closed(loc));
        assert_eq!(closed.len(), open.len());
        slabs.free(closed[..8].iter().copied());
        assert_eq!(slabs.allocate(4096, 4096), Err(SlabsFull));
        slabs.free(open[..1].iter().copied());
        assert!(!slabs.is_closed(slabs.allocate(4096, 4096).unwrap()));
        slabs.free(closed[8..].iter().copied());
        assert!(slabs.used_bytes() <= (1 << 20) + SLAB_BYTES as u64 && !slabs.close_excess());
        assert!(!slabs.is_closed(closed[0]));
    }

    #[test]
    fn slightly_larger_slot_is_used_before_failing() {
        let slabs = Slabs::new(SLAB_BYTES as u64).unwrap();
        slabs.allocate(1000, OBJECT_BYTES_MAX).unwrap();
        assert_eq!(slabs.object_bytes(slabs.allocate(700, OBJECT_BYTES_MAX).unwrap()), 1024);
        assert_eq!(slabs.allocate(2000, OBJECT_BYTES_MAX), Err(SlabsFull));
    }

    #[test]
    #[should_panic(expected = "not in use")]
    fn double_free_panics() {
        let slabs = Slabs::new(1 << 20).unwrap();
        let (first, _second) = (
            slabs.allocate(8192, OBJECT_BYTES_MAX).unwrap(),
            slabs.allocate(8192, OBJECT_BYTES_MAX).unwrap(),
        );
        slabs.free([first, first]);
    }

    proptest! {
        #[test]
        fn objects_keep_their_content(ops in proptest::collection::vec((0usize..3, 1usize..OBJECT_BYTES_MAX, any::<u8>()), 1..300)) {
            let slabs = Slabs::new(2 << 20).unwrap();
            let mut model: HashMap<Loc, Vec<u8>> = HashMap::new();
            for (op, size, fill) in ops {
                if op == 0 {
                    let Some(&loc) = model.keys().min_by_key(|loc| loc.0.wrapping_mul(size as u32)) else { continue };
                    slabs.free([loc]);
                    model.remove(&loc);
                } else if let Ok(loc) = slabs.allocate(size, OBJECT_BYTES_MAX) {
                    let content: Vec<u8> = (0..size).map(|index| (index as u8).wrapping_mul(31) ^ fill).collect();
                    slabs.write(loc, &content);
                    prop_assert!(model.insert(loc, content).is_none(), "handed out twice");
                }
                prop_assert!(slabs.used_bytes() <= 2 << 20);
            }
            for (loc, content) in &model {
                let mut back = vec![0; content.len()];
                slabs.read(*loc, &mut back);
                prop_assert_eq!(&back, content);
            }
            slabs.free(model.into_keys());
            prop_assert!(slabs.used_bytes() <= SLAB_BYTES as u64);
        }
    }
}
