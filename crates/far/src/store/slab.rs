//! Memory for compressed sectors: slabs, each divided into objects of one size. Empty slabs are
//! given back to the kernel. Free objects in slabs in use are lost to all other sizes, so slabs are
//! small where memory is ([`slab_bytes`]), and objects are taken from the fullest slabs.
//!
//! Bookkeeping takes about 40 bytes a slab and a bit for each object in it; objects have no
//! headers. The lock is only held for bookkeeping: content is copied outside of it, and a read
//! takes no lock at all, because the size of a slab's objects does not change while one of them is
//! in use.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hiroma_sys::slabmem::SlabMemory;
use hiroma_units::Loc;

/// Bytes in a slab, at most and at least.
pub const SLAB_BYTES_MAX: usize = 256 << 10;
const SLAB_BYTES_MIN: usize = 32 << 10;
/// Slabs into which a small capacity is divided.
const SLABS_WANTED: u64 = 16 << 10;
/// Largest object.
pub const OBJECT_BYTES_MAX: usize = 16 << 10;
/// Classes are this far apart up to a 32nd of a slab; above that they are sized by the number of
/// objects in a slab, so that the unusable ends of slabs stay small.
const STEP_BYTES: usize = 128;
const STEP_PART: usize = 32;
/// Slabs with free objects are listed by how full they are, in so many groups.
const GROUPS: usize = 4;
/// Slabs whose classes are kept together: those of slabs that are never used take no memory.
const CHUNK: usize = 4096;
const NONE: u32 = u32::MAX;
/// Bytes of bookkeeping for each class.
const CLASS_BYTES: usize = 8 + 4 * GROUPS;

/// The allocator and its memory.
pub struct Slabs {
    memory: SlabMemory,
    slab_bytes: usize,
    /// Bits of a `Loc` that identify the object in its slab.
    object_bits: u32,
    /// Object size of each class, ascending.
    classes: Vec<usize>,
    /// Class of each slab in use, in chunks of [`CHUNK`] slabs.
    class_of: Vec<OnceLock<Box<[AtomicU8; CHUNK]>>>,
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
    /// First slab of each class that has a free object, by how full it is.
    partial: Vec<[u32; GROUPS]>,
    /// Slabs that are not in use. The last ones still have their memory.
    spare: Vec<u32>,
    /// How many of `spare` still have their memory.
    warm: usize,
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
    /// Capacity of `capacity_bytes`, rounded down to whole slabs, for objects of at most
    /// `object_bytes_max`, which is at most [`OBJECT_BYTES_MAX`]. About `expected_bytes` will be
    /// used.
    pub fn new(
        capacity_bytes: u64,
        expected_bytes: u64,
        object_bytes_max: usize,
    ) -> io::Result<Slabs> {
        let slab_bytes = slab_bytes(expected_bytes, object_bytes_max);
        let object_bits = (slab_bytes / STEP_BYTES).trailing_zeros();
        let slabs_max = 1usize << (Loc::STORE_BITS - object_bits);
        let slabs_max = (capacity_bytes / slab_bytes as u64).min(slabs_max as u64) as usize;
        let steps = object_bytes_max.div_ceil(STEP_BYTES).min(slab_bytes / STEP_PART / STEP_BYTES);
        let mut classes: Vec<usize> = (1..=steps).map(|step| step * STEP_BYTES).collect();
        let wide = (slab_bytes / object_bytes_max.max(STEP_BYTES)..STEP_PART).rev();
        classes.extend(wide.map(|count| (slab_bytes / count) & !63));
        classes.dedup();
        let books = Books {
            slabs: Vec::new(),
            partial: vec![[NONE; GROUPS]; classes.len()],
            spare: Vec::new(),
            warm: 0,
            freed_since_full: 0,
        };
        Ok(Slabs {
            memory: SlabMemory::reserve((slabs_max * slab_bytes).max(slab_bytes))?,
            slab_bytes,
            object_bits,
            class_of: (0..slabs_max.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            metadata_bytes: AtomicU64::new((classes.len() * CLASS_BYTES) as u64),
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
        if !books.has_room(class) && !self.add_slab(&mut books, class) {
            // A larger object is better than none, but not a much larger one: the room would be
            // missing elsewhere.
            let size_max = bytes_max.min(2 * self.classes[class].max(512));
            let mut larger =
                (class..self.classes.len()).take_while(|&larger| self.classes[larger] <= size_max);
            let Some(class) = larger.find(|&larger| books.has_room(larger)) else {
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
            let (slab, object) = self.split(loc);
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
            let (is_empty, is_closed, live) =
                (entry.live == 0, entry.is_closed, usize::from(entry.live));
            if !is_closed {
                let from = self.group(class, live + 1);
                books.relist(class, slab, from, self.group(class, live).filter(|_| !is_empty));
            }
            if is_empty {
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
        self.classes[self.class(self.split(loc).0)]
    }

    /// Whether an allocation is likely to fail; cheap.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Bytes of slabs in use.
    pub fn used_bytes(&self) -> u64 {
        self.slabs_in_use.load(Ordering::Relaxed) * self.slab_bytes as u64
    }

    /// Bytes of the objects in use: less than their slabs.
    pub fn object_bytes_in_use(&self) -> u64 {
        self.object_bytes_in_use.load(Ordering::Relaxed)
    }

    /// Maximum of `used_bytes`.
    pub fn capacity_bytes(&self) -> u64 {
        (self.slabs_allowed.load(Ordering::Relaxed) * self.slab_bytes) as u64
    }

    /// Changes the capacity, up to what was reserved. Slabs in use beyond it stay.
    pub fn allow(&self, bytes: u64) {
        let slabs = ((bytes / self.slab_bytes as u64) as usize).min(self.slabs_max);
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
        let mut excess =
            self.slabs_in_use.load(Ordering::Relaxed).saturating_sub(allowed + books.warm as u64);
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
                closed_from = (slab << self.object_bits) as u32;
            }
            let group = self.group(class, usize::from(live));
            match (is_closed, close) {
                (false, true) => books.relist(class, slab, group, None),
                (true, false) => books.relist(class, slab, None, group),
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

    fn class_of(&self, slab: usize) -> &AtomicU8 {
        let chunk = self.class_of[slab / CHUNK]
            .get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU8::new(0))));
        &chunk[slab % CHUNK]
    }

    fn class(&self, slab: usize) -> usize {
        usize::from(self.class_of(slab).load(Ordering::Relaxed))
    }

    fn objects(&self, class: usize) -> usize {
        self.slab_bytes / self.classes[class]
    }

    /// The list that a slab with so many objects in use belongs to; none if it is full.
    fn group(&self, class: usize, live: usize) -> Option<usize> {
        let objects = self.objects(class);
        (live < objects).then_some(live * GROUPS / objects)
    }

    fn split(&self, loc: Loc) -> (usize, usize) {
        (loc.0 as usize >> self.object_bits, loc.0 as usize & ((1 << self.object_bits) - 1))
    }

    fn offset(&self, loc: Loc) -> usize {
        let (slab, object) = self.split(loc);
        slab * self.slab_bytes + object * self.classes[self.class(slab)]
    }

    /// Takes an object of one of the fullest slabs that have a free one.
    fn take(&self, books: &mut Books, class: usize) -> Loc {
        let fullest = books.partial[class].iter().rev().find(|&&slab| slab != NONE);
        let slab = *fullest.expect("the class has room") as usize;
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
        let live = usize::from(entry.live);
        books.relist(class, slab, self.group(class, live - 1), self.group(class, live));
        Loc((slab << self.object_bits | object) as u32)
    }

    /// Puts one more slab into use for `class`, if there is one.
    fn add_slab(&self, books: &mut Books, class: usize) -> bool {
        let slab = match books.spare.pop() {
            Some(slab) if books.warm > 0 || self.may_grow() => slab as usize,
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
        if books.warm > 0 {
            // The one that was just popped; it has been counted as in use all the time.
            books.warm -= 1;
        } else {
            self.slabs_in_use.fetch_add(1, Ordering::Relaxed);
        }
        books.slabs[slab].taken = vec![0; self.objects(class).div_ceil(64)].into();
        self.class_of(slab).store(class as u8, Ordering::Relaxed);
        books.relist(class, slab, None, Some(0));
        let chunks = books.slabs.len().div_ceil(CHUNK) * CHUNK;
        let bitmaps = chunks
            + books.slabs.len() * (size_of::<Slab>() + 4)
            + self.slabs_in_use.load(Ordering::Relaxed) as usize * 16;
        self.metadata_bytes
            .store((self.classes.len() * CLASS_BYTES + bitmaps) as u64, Ordering::Relaxed);
        true
    }

    fn note_freed(&self, books: &mut Books, class: usize) {
        books.freed_since_full += self.classes[class];
        if self.slabs_max > 0
            && books.freed_since_full >= SLAB_BYTES_MAX.min(self.slabs_max * self.slab_bytes / 16)
        {
            self.exhausted.store(false, Ordering::Relaxed);
        }
    }

    /// Gives the memory of empty slabs back to the kernel, outside the lock, except for a few that
    /// are reused next.
    fn retire(&self, mut books: MutexGuard<'_, Books>, empty: &[usize]) {
        let warm_max = (SLAB_BYTES_MAX / self.slab_bytes).min(self.slabs_max.div_ceil(16));
        let (warm, cold) = empty.split_at(empty.len().min(warm_max.saturating_sub(books.warm)));
        books.spare.extend(warm.iter().map(|&slab| slab as u32));
        books.warm += warm.len();
        drop(books);
        if cold.is_empty() {
            return;
        }
        for &slab in cold {
            // This cannot fail on our own mapping; if it did, the memory would merely stay
            // allocated.
            let _ = self.memory.release(slab * self.slab_bytes, self.slab_bytes);
        }
        let mut books = self.books();
        self.slabs_in_use.fetch_sub(cold.len() as u64, Ordering::Relaxed);
        let at = books.spare.len() - books.warm;
        books.spare.splice(at..at, cold.iter().map(|&slab| slab as u32));
        self.exhausted.store(false, Ordering::Relaxed);
    }
}

impl Books {
    fn has_room(&self, class: usize) -> bool {
        self.partial[class] != [NONE; GROUPS]
    }

    /// Moves a slab from one list of its class to another, where these differ.
    fn relist(&mut self, class: usize, slab: usize, from: Option<usize>, to: Option<usize>) {
        if from == to {
            return;
        }
        if let Some(group) = from {
            self.unlink(class, group, slab);
        }
        if let Some(group) = to {
            self.link(class, group, slab);
        }
    }

    fn link(&mut self, class: usize, group: usize, slab: usize) {
        let first = std::mem::replace(&mut self.partial[class][group], slab as u32);
        if first != NONE {
            self.slabs[first as usize].previous = slab as u32;
        }
        (self.slabs[slab].previous, self.slabs[slab].next) = (NONE, first);
    }

    fn unlink(&mut self, class: usize, group: usize, slab: usize) {
        let (previous, next) = (self.slabs[slab].previous, self.slabs[slab].next);
        match previous {
            NONE => self.partial[class][group] = next,
            previous => self.slabs[previous as usize].next = next,
        }
        if next != NONE {
            self.slabs[next as usize].previous = previous;
        }
    }
}

/// Bytes of a slab in a store of about this size. In a small store, large slabs of many sizes would
/// be empty in good part.
fn slab_bytes(expected_bytes: u64, object_bytes_max: usize) -> usize {
    if object_bytes_max > SLAB_BYTES_MIN / 8 {
        return SLAB_BYTES_MAX;
    }
    let wanted = usize::try_from(expected_bytes / SLABS_WANTED).unwrap_or(SLAB_BYTES_MAX);
    wanted.clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn new(capacity_bytes: u64, object_bytes_max: usize) -> io::Result<Slabs> {
        Slabs::new(capacity_bytes, capacity_bytes, object_bytes_max)
    }

    #[test]
    fn objects_of_every_size_fit_and_waste_little() {
        let slabs = new(64 << 20, OBJECT_BYTES_MAX).unwrap();
        for bytes in 1..=OBJECT_BYTES_MAX {
            let class = slabs.classes[slabs.classes.partition_point(|&size| size < bytes)];
            assert!(
                class >= bytes && class - bytes < (bytes / 15).max(STEP_BYTES),
                "{bytes}: {class}"
            );
            assert!(SLAB_BYTES_MAX % class <= SLAB_BYTES_MAX / 16);
        }
    }

    #[test]
    fn allocator_reports_full_until_a_free() {
        let slabs = new(1 << 20, OBJECT_BYTES_MAX).unwrap();
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
        let slabs = new(4 << 20, OBJECT_BYTES_MAX).unwrap();
        for bytes in [128, 3000, 16384, 700] {
            let locs: Vec<Loc> =
                std::iter::from_fn(|| slabs.allocate(bytes, OBJECT_BYTES_MAX).ok()).collect();
            assert!(
                locs.len() * bytes > 7 * slabs.used_bytes() as usize / 8,
                "{bytes}: {}",
                locs.len()
            );
            slabs.free(locs);
            assert_eq!(slabs.used_bytes(), SLAB_BYTES_MAX as u64, "one is kept at hand");
        }
    }

    #[test]
    fn closed_slabs_drain_without_new_objects() {
        let slabs = new(2 << 20, OBJECT_BYTES_MAX).unwrap();
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
        assert!(slabs.used_bytes() <= (1 << 20) + SLAB_BYTES_MAX as u64 && !slabs.close_excess());
        assert!(!slabs.is_closed(closed[0]));
    }

    #[test]
    fn churn_leaves_little_unused_in_a_small_store() {
        let slabs = new(128 << 20, 4096).unwrap();
        let (mut live, mut seed) = (Vec::new(), 1u64);
        for step in 0..200_000usize {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Sizes drift, as compressibility does between the phases of a program.
            let bytes = 400 + step / 200 + (seed >> 33) as usize % 1000;
            live.push(slabs.allocate(bytes, 4095).unwrap());
            if live.len() > 10_000 {
                let victim = (seed >> 20) as usize % live.len();
                slabs.free([live.swap_remove(victim)]);
            }
        }
        let (used, objects) = (slabs.used_bytes(), slabs.object_bytes_in_use());
        assert!(used * 100 < objects * 125, "{used} for {objects}");
    }

    #[test]
    fn slightly_larger_slot_is_used_before_failing() {
        let slabs = new(SLAB_BYTES_MAX as u64, OBJECT_BYTES_MAX).unwrap();
        slabs.allocate(1000, OBJECT_BYTES_MAX).unwrap();
        assert_eq!(slabs.object_bytes(slabs.allocate(700, OBJECT_BYTES_MAX).unwrap()), 1024);
        assert_eq!(slabs.allocate(2000, OBJECT_BYTES_MAX), Err(SlabsFull));
    }

    #[test]
    #[should_panic(expected = "not in use")]
    fn double_free_panics() {
        let slabs = new(1 << 20, OBJECT_BYTES_MAX).unwrap();
        let (first, _second) = (
            slabs.allocate(8192, OBJECT_BYTES_MAX).unwrap(),
            slabs.allocate(8192, OBJECT_BYTES_MAX).unwrap(),
        );
        slabs.free([first, first]);
    }

    proptest! {
        #[test]
        fn objects_keep_their_content(bytes_max in prop_oneof![Just(4096), Just(OBJECT_BYTES_MAX)], ops in proptest::collection::vec((0usize..3, 1usize..OBJECT_BYTES_MAX, any::<u8>()), 1..300)) {
            let slabs = new(2 << 20, bytes_max).unwrap();
            let mut model: HashMap<Loc, Vec<u8>> = HashMap::new();
            for (op, size, fill) in ops {
                if op == 0 {
                    let Some(&loc) = model.keys().min_by_key(|loc| loc.0.wrapping_mul(size as u32)) else { continue };
                    slabs.free([loc]);
                    model.remove(&loc);
                } else if let Ok(loc) = slabs.allocate(size % bytes_max + 1, bytes_max) {
                    let size = size % bytes_max + 1;
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
            prop_assert!(slabs.used_bytes() <= SLAB_BYTES_MAX as u64);
        }
    }
}
