//! Divides a region into allocations. Pure bookkeeping: it never touches the memory that it hands
//! out.
//!
//! Allocations above [`SMALL_MAX`] are runs of pages. Smaller ones are slots in *spans* of 64 KiB,
//! each for one size class, with a bitmap in ordinary memory. So neither allocating nor freeing
//! fetches a far page, and a pointer that was never handed out is detected.

use std::collections::{BTreeMap, BTreeSet};

use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

use crate::runs::FreeRuns;

/// Largest allocation that shares a span with others.
pub const SMALL_MAX: usize = 8192;
const SPAN_BYTES: usize = 64 << 10;
const SPAN_PAGES: usize = SPAN_BYTES / PAGE;
/// Slots of 16 to 128 bytes by 16, then four sizes for each power of two up to [`SMALL_MAX`].
const CLASSES: usize = 8 + 4 * 6;

/// Bookkeeping of one region of `pages` pages, from address `base`.
#[derive(Debug)]
pub struct Heap {
    base: usize,
    pages: usize,
    free: FreeRuns,
    taken: BTreeMap<usize, Taken>,
    /// Spans with a free slot, by class; the one with the lowest page is filled first.
    partial: [BTreeSet<usize>; CLASSES],
}

#[derive(Debug)]
enum Taken {
    Run { pages: usize },
    Span(Span),
}

#[derive(Debug)]
struct Span {
    class: usize,
    used: usize,
    /// First slot that was never handed out; it and the later ones are zero.
    fresh: usize,
    taken: Box<[u64]>,
}

/// An allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Address of the first byte.
    pub addr: usize,
    /// Whether the bytes are already zero.
    pub zeroed: bool,
}

/// Unused pages. The caller must discard their content, then pass them to [`Heap::give_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Unused {
    /// Address of the first byte.
    pub addr: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// Result of resizing an allocation in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Resized {
    /// The allocation has at least the requested size.
    Done,
    /// The allocation was truncated.
    Cut(Unused),
    /// The allocation has to move; `usable` bytes of it are usable now.
    MustMove { usable: usize },
}

impl Heap {
    /// A heap over `bytes` bytes from `base`, which must be zero.
    pub fn new(base: usize, bytes: usize) -> Heap {
        let pages = bytes / PAGE;
        Heap {
            base,
            pages,
            free: FreeRuns::new(pages),
            taken: BTreeMap::new(),
            partial: std::array::from_fn(|_| BTreeSet::new()),
        }
    }

    /// Length of the region.
    pub fn bytes(&self) -> usize {
        self.pages * PAGE
    }

    /// Allocates `size` bytes at a multiple of `align` (a power of two).
    pub fn allocate(&mut self, size: usize, align: usize) -> Option<Allocated> {
        debug_assert!(align.is_power_of_two());
        let size = size.max(1);
        // A slot whose size is a power of two is aligned to that size.
        let small = if align <= 16 { size } else { size.max(align).checked_next_power_of_two()? };
        if small <= SMALL_MAX && align <= PAGE {
            return self.allocate_small(class_of(small));
        }
        let pages = size.div_ceil(PAGE);
        let align_pages = align.div_ceil(PAGE);
        let skew = self.base / PAGE % align_pages;
        let page = if skew != 0 {
            // The region itself has a weaker alignment.
            let page = self.free.take(pages.checked_add(align_pages)?, 1)?;
            let lead = (align_pages - (skew + page) % align_pages) % align_pages;
            self.free.give(page, lead);
            self.free.give(page + lead + pages, align_pages - lead);
            page + lead
        } else {
            let extent = if pages >= PAGES_PER_EXTENT && self.base % EXTENT == 0 {
                PAGES_PER_EXTENT
            } else {
                1
            };
            self.free
                .take(pages, align_pages.max(extent))
                .or_else(|| self.free.take(pages, align_pages))?
        };
        self.taken.insert(page, Taken::Run { pages });
        Some(Allocated { addr: self.base + page * PAGE, zeroed: true })
    }

    fn allocate_small(&mut self, class: usize) -> Option<Allocated> {
        let page = match self.partial[class].first() {
            Some(&page) => page,
            None => {
                let page = self.free.take_from_end(SPAN_PAGES)?;
                let words = slots(class).div_ceil(64);
                self.taken.insert(
                    page,
                    Taken::Span(Span { class, used: 0, fresh: 0, taken: vec![0; words].into() }),
                );
                self.partial[class].insert(page);
                page
            }
        };
        let Some(Taken::Span(span)) = self.taken.get_mut(&page) else {
            unreachable!("a partial span is taken")
        };
        let slot = span.take_slot();
        if span.used == slots(class) {
            self.partial[class].remove(&page);
        }
        let zeroed = slot >= span.fresh;
        span.fresh = span.fresh.max(slot + 1);
        Some(Allocated { addr: self.base + page * PAGE + slot * slot_bytes(class), zeroed })
    }

    /// Frees the allocation at `addr`. `Err` if there is none.
    pub fn release(&mut self, addr: usize) -> Result<Option<Unused>, NotAllocated> {
        let (page, slot) = self.find(addr)?;
        let unused = match self.taken.get_mut(&page) {
            Some(Taken::Span(span)) => {
                span.taken[slot / 64] &= !(1 << (slot % 64));
                span.used -= 1;
                let class = span.class;
                let (empty, others) =
                    (span.used == 0, self.partial[class].iter().any(|&other| other != page));
                // One span with a free slot is kept, so that a pair of malloc and free does not
                // discard pages each time.
                if !empty || !others {
                    self.partial[class].insert(page);
                    return Ok(None);
                }
                self.partial[class].remove(&page);
                SPAN_PAGES
            }
            Some(Taken::Run { pages }) => *pages,
            None => return Err(NotAllocated),
        };
        self.taken.remove(&page);
        Ok(Some(self.unused(page, unused)))
    }

    /// Makes pages that were discarded available again.
    pub fn give_back(&mut self, unused: Unused) {
        self.free.give((unused.addr - self.base) / PAGE, unused.bytes / PAGE);
    }

    /// Number of usable bytes of the allocation at `addr`.
    pub fn usable(&self, addr: usize) -> Result<usize, NotAllocated> {
        let (page, _) = self.find(addr)?;
        Ok(match &self.taken[&page] {
            Taken::Run { pages } => pages * PAGE,
            Taken::Span(span) => slot_bytes(span.class),
        })
    }

    /// Resizes the allocation at `addr` to `size` bytes in place, if possible.
    pub fn resize(&mut self, addr: usize, size: usize) -> Result<Resized, NotAllocated> {
        let size = size.max(1);
        let (page, _) = self.find(addr)?;
        match self.taken.get_mut(&page) {
            Some(Taken::Run { pages }) if size > SMALL_MAX => {
                let (old, new) = (*pages, size.div_ceil(PAGE));
                if new < old {
                    *pages = new;
                    return Ok(Resized::Cut(self.unused(page + new, old - new)));
                }
                if new > old && !self.free.take_at(page + old, new - old) {
                    return Ok(Resized::MustMove { usable: old * PAGE });
                }
                *pages = new;
                Ok(Resized::Done)
            }
            Some(Taken::Run { pages }) => Ok(Resized::MustMove { usable: *pages * PAGE }),
            Some(Taken::Span(span)) => {
                let slot = slot_bytes(span.class);
                // Moving is worthwhile only if it saves half.
                Ok(if size <= slot && size > slot / 2 {
                    Resized::Done
                } else {
                    Resized::MustMove { usable: slot }
                })
            }
            None => Err(NotAllocated),
        }
    }

    fn unused(&self, page: usize, pages: usize) -> Unused {
        Unused { addr: self.base + page * PAGE, bytes: pages * PAGE }
    }

    /// Start page, and slot in a span, of the allocation that begins exactly at `addr`.
    fn find(&self, addr: usize) -> Result<(usize, usize), NotAllocated> {
        let offset = addr
            .checked_sub(self.base)
            .filter(|&offset| offset < self.bytes())
            .ok_or(NotAllocated)?;
        let (&page, taken) = self.taken.range(..=offset / PAGE).next_back().ok_or(NotAllocated)?;
        let within = offset - page * PAGE;
        match taken {
            Taken::Run { .. } if within == 0 => Ok((page, 0)),
            Taken::Span(span) if within < SPAN_BYTES && within % slot_bytes(span.class) == 0 => {
                let slot = within / slot_bytes(span.class);
                let live =
                    slot < slots(span.class) && span.taken[slot / 64] >> (slot % 64) & 1 == 1;
                if live { Ok((page, slot)) } else { Err(NotAllocated) }
            }
            _ => Err(NotAllocated),
        }
    }
}

/// No allocation begins at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllocated;

impl Span {
    fn take_slot(&mut self) -> usize {
        let word = self
            .taken
            .iter()
            .position(|&word| word != u64::MAX)
            .expect("a partial span has a free slot");
        let slot = word * 64 + self.taken[word].trailing_ones() as usize;
        self.taken[word] |= 1 << (slot % 64);
        self.used += 1;
        slot
    }
}

/// The class of the smallest slot that fits `size` bytes (1 to [`SMALL_MAX`]).
fn class_of(size: usize) -> usize {
    if size <= 128 {
        return size.div_ceil(16) - 1;
    }
    let power = (size - 1).ilog2() as usize;
    let quarter = (size - 1) >> (power - 2) & 3;
    8 + (power - 7) * 4 + quarter
}

fn slot_bytes(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * 16;
    }
    let (power, quarter) = (7 + (class - 8) / 4, (class - 8) % 4);
    (5 + quarter) << (power - 2)
}

fn slots(class: usize) -> usize {
    SPAN_BYTES / slot_bytes(class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: usize = 0x7000_0020_0000;

    #[test]
    fn every_size_gets_the_smallest_fitting_slot() {
        for size in 1..=SMALL_MAX {
            let class = class_of(size);
            assert!(class < CLASSES && slot_bytes(class) >= size, "{size}");
            assert!(class == 0 || slot_bytes(class - 1) < size, "{size}");
        }
        assert_eq!(class_of(SMALL_MAX), CLASSES - 1);
    }

    #[test]
    fn double_and_interior_frees_are_detected() {
        let mut heap = Heap::new(BASE, 8 << 20);
        for size in [24, 100_000] {
            let at = heap.allocate(size, 16).unwrap().addr;
            assert_eq!(heap.release(at + 8), Err(NotAllocated));
            assert!(heap.release(at).is_ok());
            assert_eq!(heap.release(at), Err(NotAllocated));
        }
        assert_eq!(heap.release(BASE - 1), Err(NotAllocated));
        assert_eq!(heap.release(BASE + (8 << 20)), Err(NotAllocated));
    }

    #[test]
    fn large_allocation_is_aligned_and_grows_in_place() {
        let mut heap = Heap::new(BASE, 64 << 20);
        heap.allocate(20_000, 16).unwrap();
        let at = heap.allocate(4 << 20, 16).unwrap().addr;
        assert_eq!(at % EXTENT, 0);
        assert_eq!(heap.resize(at, 6 << 20), Ok(Resized::Done));
        assert_eq!(heap.usable(at), Ok(6 << 20));
        let Ok(Resized::Cut(unused)) = heap.resize(at, 1 << 20) else { panic!() };
        assert_eq!(unused, Unused { addr: at + (1 << 20), bytes: 5 << 20 });
    }

    #[test]
    fn reused_slot_is_not_reported_as_zeroed() {
        let mut heap = Heap::new(BASE, 1 << 20);
        let first = heap.allocate(32, 16).unwrap();
        assert!(first.zeroed);
        assert_eq!(heap.release(first.addr), Ok(None));
        assert_eq!(heap.allocate(32, 16), Some(Allocated { addr: first.addr, zeroed: false }));
    }

    #[test]
    fn region_serves_larger_alignment_than_its_base() {
        let mut heap = Heap::new(BASE + PAGE, 16 << 20);
        for align in [8192, 65536, EXTENT] {
            let at = heap.allocate(10_000, align).unwrap().addr;
            assert_eq!(at % align, 0);
            let unused = heap.release(at).unwrap().unwrap();
            heap.give_back(unused);
        }
        assert_eq!(heap.free.pages(), (16 << 20) / PAGE);
    }

    proptest! {
        #[test]
        fn allocations_never_overlap_and_all_memory_returns(
            ops in proptest::collection::vec((0u8..4, 1usize..60_000, 0u32..14, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut heap = Heap::new(BASE, 4 << 20);
            let mut live: BTreeMap<usize, usize> = BTreeMap::new();
            for (op, size, order, pick) in ops {
                let pick = (!live.is_empty()).then(|| *live.keys().nth(pick.index(live.len())).unwrap());
                match (op, pick) {
                    (2, Some(addr)) => {
                        live.remove(&addr);
                        if let Some(unused) = heap.release(addr).unwrap() {
                            prop_assert!(live.range(unused.addr..unused.addr + unused.bytes).next().is_none());
                            heap.give_back(unused);
                        }
                    }
                    (3, Some(addr)) => match heap.resize(addr, size).unwrap() {
                        Resized::Done => drop(live.insert(addr, size)),
                        Resized::Cut(unused) => {
                            live.insert(addr, size);
                            heap.give_back(unused);
                        }
                        Resized::MustMove { usable } => prop_assert!(usable >= live[&addr]),
                    },
                    _ => {
                        let size = if op == 0 { size % 600 + 1 } else { size };
                        if let Some(new) = heap.allocate(size, 1 << order) {
                            prop_assert_eq!(new.addr % (1 << order), 0);
                            live.insert(new.addr, size);
                        }
                    }
                }
                let mut end = BASE;
                for (&addr, &size) in &live {
                    prop_assert!(addr >= end, "overlap at {addr:#x}");
                    prop_assert!(heap.usable(addr).unwrap() >= size);
                    end = addr + size;
                }
                prop_assert!(end <= BASE + (4 << 20));
            }
            for addr in live.into_keys() {
                if let Some(unused) = heap.release(addr).unwrap() {
                    heap.give_back(unused);
                }
            }
            let kept: usize = heap.taken.len() * SPAN_PAGES;
            prop_assert!(heap.taken.len() <= CLASSES);
            prop_assert_eq!(heap.free.pages() + kept, heap.pages);
        }
    }
}
