//! Which memory of a program is anonymous, and the place of each of its pages in an arena.
//!
//! Far memory manages what programs get from `mmap` as private and anonymous, and from `brk`. The
//! stack of the first thread, the data of the executable and all file mappings are not managed, and
//! do not occur in traces. Each mapping gets its own place in an arena, in the order of the calls,
//! as in the pager: from 1 MiB on aligned to 2 MiB.

use std::collections::BTreeMap;

use hiroma_units::{PAGE, PAGES_PER_EXTENT};

/// A system call of Linux on x86-64 that has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call {
    pub number: u64,
    pub args: [u64; 5],
    pub result: u64,
}

/// The effect of a call on the memory, in pages of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new mapping.
    Map { page: u64, pages: u64 },
    /// The content is discarded.
    Discard { page: u64, pages: u64 },
}

const MMAP: u64 = 9;
const MUNMAP: u64 = 11;
const BRK: u64 = 12;
const MREMAP: u64 = 25;
const MADVISE: u64 = 28;
const MAP_PRIVATE: u64 = 2;
const MAP_ANONYMOUS: u64 = 0x20;
const MADV_DONTNEED: u64 = 4;
const MADV_FREE: u64 = 8;
/// Space reserved for `brk`, which grows.
pub const BRK_PAGES: u64 = 1 << 22;
/// Mappings from this length on are aligned to extents.
const ALIGNED_MIN_PAGES: u64 = 256;
const NO_PAGE: u64 = u64::MAX;
const CACHED: usize = 1 << 12;

/// The anonymous memory of a program.
pub struct Space {
    /// First page to (end, place in the arena).
    pieces: BTreeMap<u64, (u64, u64)>,
    brk_start: Option<u64>,
    brk_end: u64,
    next_place: u64,
    /// Direct-mapped cache of page and place; cleared with every change.
    cache: Vec<(u64, Option<u64>)>,
}

impl Default for Space {
    fn default() -> Self {
        Space {
            pieces: BTreeMap::new(),
            brk_start: None,
            brk_end: 0,
            next_place: BRK_PAGES,
            cache: vec![(NO_PAGE, None); CACHED],
        }
    }
}

impl Space {
    /// A program without mappings.
    pub fn new() -> Space {
        Space::default()
    }

    /// The place of page `page` of the program, if it is anonymous.
    pub fn place(&mut self, page: u64) -> Option<u64> {
        let slot = page as usize % CACHED;
        if self.cache[slot].0 != page {
            let piece = self.pieces.range(..=page).next_back();
            let place = piece
                .and_then(|(&start, &(end, place))| (page < end).then_some(place + page - start));
            self.cache[slot] = (page, place);
        }
        self.cache[slot].1
    }

    /// A call has succeeded.
    pub fn on_call(&mut self, call: &Call, out: &mut impl FnMut(Change)) {
        let [a, b, c, d, _] = call.args;
        let page = PAGE as u64;
        match call.number {
            MMAP => {
                let (start, end) = (call.result / page, (call.result + b).div_ceil(page));
                self.remove(start, end, out);
                if d & MAP_ANONYMOUS != 0 && d & 3 == MAP_PRIVATE {
                    let place = self.new_place(end - start);
                    self.insert(start, end, place);
                    out(Change::Map { page: place, pages: end - start });
                }
            }
            MUNMAP => self.remove(a / page, (a + b).div_ceil(page), out),
            BRK => self.on_brk(call.result, out),
            MREMAP => self.on_mremap(a, b, c, call.result, out),
            MADVISE if c == MADV_DONTNEED || c == MADV_FREE => {
                for (place, pages) in self.places(a / page, (a + b).div_ceil(page)) {
                    out(Change::Discard { page: place, pages });
                }
            }
            _ => {}
        }
    }

    fn on_brk(&mut self, result: u64, out: &mut impl FnMut(Change)) {
        let end = result.div_ceil(PAGE as u64);
        let Some(start) = self.brk_start else {
            (self.brk_start, self.brk_end) = (Some(end), end);
            out(Change::Map { page: 0, pages: BRK_PAGES });
            return;
        };
        if end < self.brk_end {
            self.remove(end, self.brk_end, out);
        } else if end > self.brk_end {
            self.insert(self.brk_end, end, self.brk_end - start);
        }
        self.brk_end = end;
    }

    /// Pages keep their places when they move; the part by which a mapping grows gets a new one.
    fn on_mremap(
        &mut self,
        from: u64,
        old_bytes: u64,
        new_bytes: u64,
        to: u64,
        out: &mut impl FnMut(Change),
    ) {
        let page = PAGE as u64;
        let (start, old_pages, new_pages, to) =
            (from / page, old_bytes.div_ceil(page), new_bytes.div_ceil(page), to / page);
        if new_pages < old_pages {
            self.remove(start + new_pages, start + old_pages, out);
        }
        let kept = old_pages.min(new_pages);
        let mut moved: Vec<(u64, u64, u64)> = Vec::new();
        let mut at = start;
        while at < start + kept {
            let next = self
                .pieces
                .range(..=at)
                .next_back()
                .filter(|(_, (end, _))| *end > at)
                .map(|(&first, &(end, place))| (first, end, place));
            let Some((first, end, place)) = next else { return };
            let end = end.min(start + kept);
            moved.push((at, end, place + at - first));
            at = end;
        }
        if to != start {
            self.remove(to, to + new_pages, out);
            self.remove(start, start + old_pages, &mut |_| {});
            for &(first, end, place) in &moved {
                self.insert(first - start + to, end - start + to, place);
            }
        }
        if new_pages > old_pages {
            let place = self.new_place(new_pages - old_pages);
            self.insert(to + old_pages, to + new_pages, place);
        }
    }

    fn new_place(&mut self, pages: u64) -> u64 {
        let extent = PAGES_PER_EXTENT as u64;
        if pages >= ALIGNED_MIN_PAGES {
            self.next_place = self.next_place.next_multiple_of(extent);
        }
        let place = self.next_place;
        self.next_place += pages;
        place
    }

    fn insert(&mut self, start: u64, end: u64, place: u64) {
        self.pieces.insert(start, (end, place));
        self.cache.fill((NO_PAGE, None));
    }

    /// The places of what is mapped between two pages.
    fn places(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.pieces.range(..start).next_back();
        let pieces = before.into_iter().chain(self.pieces.range(start..end));
        let cut =
            pieces.map(|(&first, &(last, place))| (first.max(start), last.min(end), first, place));
        cut.filter(|&(from, to, ..)| from < to)
            .map(|(from, to, first, place)| (place + from - first, to - from))
            .collect()
    }

    fn remove(&mut self, start: u64, end: u64, out: &mut impl FnMut(Change)) {
        for (page, pages) in self.places(start, end) {
            out(Change::Discard { page, pages });
        }
        let touched: Vec<(u64, (u64, u64))> = {
            let before = self.pieces.range(..start).next_back();
            before
                .into_iter()
                .chain(self.pieces.range(start..end))
                .map(|(&first, &piece)| (first, piece))
                .collect()
        };
        for (first, (last, place)) in touched.into_iter().filter(|&(_, (last, _))| last > start) {
            self.pieces.remove(&first);
            if first < start {
                self.pieces.insert(first, (start, place));
            }
            if last > end {
                self.pieces.insert(end, (last, place + end - first));
            }
        }
        self.cache.fill((NO_PAGE, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(space: &mut Space, number: u64, args: [u64; 5], result: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        space.on_call(&Call { number, args, result }, &mut |change| changes.push(change));
        changes
    }

    const ANONYMOUS: u64 = MAP_PRIVATE | MAP_ANONYMOUS;

    #[test]
    fn private_anonymous_mappings_are_placed_and_aligned() {
        let mut space = Space::new();
        call(&mut space, MMAP, [0, 0x3000, 3, ANONYMOUS, 0], 0x10000);
        call(&mut space, MMAP, [0, 0x3000, 3, MAP_PRIVATE, 5], 0x13000);
        call(&mut space, MMAP, [0, 0x3000, 3, 1 | MAP_ANONYMOUS, 0], 0x16000);
        let large = call(&mut space, MMAP, [0, 2 << 20, 3, ANONYMOUS, 0], 0x100000);
        assert_eq!(
            (space.place(0x10), space.place(0x12), space.place(0x13), space.place(0x16)),
            (Some(BRK_PAGES), Some(BRK_PAGES + 2), None, None)
        );
        assert_eq!(large, [Change::Map { page: BRK_PAGES + 512, pages: 512 }]);
    }

    #[test]
    fn unmapping_a_hole_keeps_both_ends() {
        let mut space = Space::new();
        call(&mut space, MMAP, [0, 0xa000, 3, ANONYMOUS, 0], 0x10000);
        assert_eq!(
            call(&mut space, MUNMAP, [0x13000, 0x2000, 0, 0, 0], 0),
            [Change::Discard { page: BRK_PAGES + 3, pages: 2 }]
        );
        assert_eq!(
            (space.place(0x12), space.place(0x13), space.place(0x15)),
            (Some(BRK_PAGES + 2), None, Some(BRK_PAGES + 5))
        );
        assert_eq!(
            call(&mut space, MADVISE, [0x15000, 0x1000, MADV_DONTNEED, 0, 0], 0),
            [Change::Discard { page: BRK_PAGES + 5, pages: 1 }]
        );
        assert_eq!(space.place(0x15), Some(BRK_PAGES + 5));
    }

    #[test]
    fn the_heap_grows_and_shrinks_in_place() {
        let mut space = Space::new();
        call(&mut space, BRK, [0; 5], 0x5000);
        call(&mut space, BRK, [0x8000, 0, 0, 0, 0], 0x8000);
        assert_eq!((space.place(5), space.place(7), space.place(8)), (Some(0), Some(2), None));
        assert_eq!(
            call(&mut space, BRK, [0x6000, 0, 0, 0, 0], 0x6000),
            [Change::Discard { page: 1, pages: 2 }]
        );
        assert_eq!(space.place(6), None);
    }

    #[test]
    fn content_moves_with_its_place() {
        let mut space = Space::new();
        call(&mut space, MMAP, [0, 0x4000, 3, ANONYMOUS, 0], 0x10000);
        assert_eq!(call(&mut space, MREMAP, [0x10000, 0x4000, 0x6000, 1, 0], 0x40000), []);
        assert_eq!(
            (space.place(0x10), space.place(0x40), space.place(0x44)),
            (None, Some(BRK_PAGES), Some(BRK_PAGES + 4))
        );
        assert_eq!(call(&mut space, MREMAP, [0x40000, 0x6000, 0x1000, 1, 0], 0x40000).len(), 2);
        assert_eq!((space.place(0x40), space.place(0x41)), (Some(BRK_PAGES), None));
    }
}
