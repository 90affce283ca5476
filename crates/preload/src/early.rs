//! Early mappings: memory that the process has mapped while it has no pager, behind the nursery.
//!
//! A bit for each page. Short mappings lie close together at the beginning; each long one has whole
//! extents, so that it can grow in its last one.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hiroma_far::nursery::Mapped;
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

use crate::sys;

/// Pages of the area. Where it is full, the process gets its pager.
const PAGES: usize = (16 << 30) / PAGE;
/// Those for short mappings.
const SHORT_PAGES: usize = (1 << 30) / PAGE;
const BITS: usize = 64;
/// How often a thread looks whether another one has done, which may have been killed in a process
/// that shares this memory.
const LOOKS_MAX: u32 = 200;

/// Some of the area's pages.
struct Bits([AtomicU64; PAGES / BITS]);

impl Bits {
    const fn new() -> Bits {
        Bits([const { AtomicU64::new(0) }; PAGES / BITS])
    }

    /// The first page in `from..to` that is among them, or is not; `to` if there is none.
    fn next(&self, from: usize, to: usize, is_set: bool) -> usize {
        let mut at = from;
        while at < to {
            let word = self.0[at / BITS].load(Ordering::Acquire);
            let wanted = if is_set { word } else { !word } & u64::MAX << (at % BITS);
            if wanted != 0 {
                return (at / BITS * BITS + wanted.trailing_zeros() as usize).min(to);
            }
            at = (at / BITS + 1) * BITS;
        }
        to
    }

    /// Whether all of these pages are among them, or none is.
    fn all(&self, pages: &Range<usize>, are_set: bool) -> bool {
        self.next(pages.start, pages.end, !are_set) == pages.end
    }

    /// Returns how many pages have changed.
    fn set(&self, pages: &Range<usize>, are_set: bool) -> usize {
        let (mut at, mut changed) = (pages.start, 0);
        while at < pages.end {
            let end = ((at / BITS + 1) * BITS).min(pages.end);
            let ones = u64::MAX >> (BITS - (end - at)) << (at % BITS);
            let word = &self.0[at / BITS];
            changed += if are_set {
                ones & !word.fetch_or(ones, Ordering::Release)
            } else {
                ones & word.fetch_and(!ones, Ordering::Release)
            }
            .count_ones() as usize;
            at = end;
        }
        changed
    }

    fn ranges(&self, to: usize) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, to, true);
            at = self.next(start, to, false);
            (start < at).then_some(start..at)
        })
    }
}

/// What becomes of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Address space that is used later.
    None,
    ReadWrite,
    Other,
    /// Something else is mapped there.
    Foreign,
}

impl Access {
    /// Of `PROT_*`.
    pub fn of(prot: i32) -> Access {
        match prot {
            libc::PROT_NONE => Access::None,
            prot if prot == libc::PROT_READ | libc::PROT_WRITE => Access::ReadWrite,
            _ => Access::Other,
        }
    }
}

/// See the module's head.
pub struct Early {
    /// First address of the area; it is that of an extent.
    base: AtomicUsize,
    /// Number of its pages that are in the arena.
    pages: AtomicUsize,
    /// What is mapped.
    mapped: Bits,
    /// What may have content: not what was only reserved.
    committed: Bits,
    /// What may be something else than readable and writable.
    special: Bits,
    /// Where something else is mapped.
    foreign: Bits,
    /// What children do not get.
    unforked: Bits,
    /// Number of pages that are committed.
    used: AtomicUsize,
    /// No page before this one is free for a short mapping.
    short_from: AtomicUsize,
    /// End of the highest mapping ever, in pages.
    high: AtomicUsize,
    /// A thread changes the table.
    is_placing: AtomicBool,
    /// A pager is taking over what is mapped: nothing changes any more.
    is_closed: AtomicBool,
}

impl Early {
    /// None yet.
    pub const fn new() -> Early {
        Early {
            base: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            mapped: Bits::new(),
            committed: Bits::new(),
            special: Bits::new(),
            foreign: Bits::new(),
            unforked: Bits::new(),
            used: AtomicUsize::new(0),
            short_from: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            is_placing: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Before the first mapping: where the area is.
    pub fn is_at(&self, area: Range<usize>) {
        let base = area.start.next_multiple_of(EXTENT);
        self.base.store(base, Ordering::Relaxed);
        let pages = (area.end.saturating_sub(base) / PAGE).min(PAGES);
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// In a forked child: nobody else changes it.
    pub fn is_mine(&self) {
        self.is_placing.store(false, Ordering::Relaxed);
        self.is_closed.store(false, Ordering::Relaxed);
        let used = self.committed.ranges(self.high.load(Ordering::Acquire));
        self.used.store(used.map(|pages| pages.len()).sum(), Ordering::Relaxed);
    }

    /// Closes the table, and returns what is in it. If another thread has been changing it for long,
    /// that one was killed.
    pub fn take(&self) -> Mapped {
        let take = || {
            self.is_closed.store(true, Ordering::SeqCst);
            let [ranges, foreign, unforked] = [&self.mapped, &self.foreign, &self.unforked]
                .map(|bits| self.ranges_of(bits).collect());
            Mapped { ranges, foreign, unforked, reserved: None }
        };
        self.alone(take).unwrap_or_else(take)
    }

    /// No pager has taken it.
    pub fn reopen(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }

    /// What children do not get.
    pub fn unforked(&self) -> impl Iterator<Item = Range<usize>> {
        self.ranges_of(&self.unforked)
    }

    fn ranges_of<'a>(&'a self, bits: &'a Bits) -> impl Iterator<Item = Range<usize>> + 'a {
        let (base, high) = (self.base.load(Ordering::Relaxed), self.high.load(Ordering::Acquire));
        bits.ranges(high).map(move |pages| base + pages.start * PAGE..base + pages.end * PAGE)
    }

    /// How many bytes may have content.
    pub fn bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed) * PAGE
    }

    fn addr(&self, page: usize) -> usize {
        self.base.load(Ordering::Relaxed) + page * PAGE
    }

    /// The pages of a range of addresses. `None`: it is empty, or not in the area.
    fn pages_of(&self, start: usize, len: usize) -> Option<Range<usize>> {
        let from = start.checked_sub(self.base.load(Ordering::Relaxed))? / PAGE;
        let to = from.checked_add(len / PAGE)?;
        (from < to && to <= self.pages.load(Ordering::Relaxed)).then_some(from..to)
    }

    fn commit(&self, pages: &Range<usize>, is_committed: bool) {
        let changed = self.committed.set(pages, is_committed);
        let change = |used: usize| {
            Some(if is_committed { used + changed } else { used.saturating_sub(changed) })
        };
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Pages have been mapped with this access.
    fn fill(&self, pages: &Range<usize>, access: Access) {
        self.special.set(pages, access != Access::ReadWrite);
        self.foreign.set(pages, access == Access::Foreign);
        self.unforked.set(pages, false);
        self.mapped.set(pages, true);
        self.high.fetch_max(pages.end, Ordering::Release);
        self.commit(pages, matches!(access, Access::ReadWrite | Access::Other));
    }

    /// Does something while no other thread changes the table. `None`: another one does for long, or
    /// it is closed.
    fn alone<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let mut looks = 0..LOOKS_MAX;
        while self.is_placing.swap(true, Ordering::Acquire) {
            looks.next()?;
            sys::nap();
        }
        let done = (!self.is_closed.load(Ordering::SeqCst)).then(act);
        self.is_placing.store(false, Ordering::Release);
        done
    }

    /// The first `count` pages in a row in `area` that are free, from a multiple of `align` on.
    fn find(&self, count: usize, align: usize, area: Range<usize>) -> Option<usize> {
        let mut at = area.start;
        loop {
            at = self.mapped.next(at, area.end, false).next_multiple_of(align);
            let end = at.checked_add(count).filter(|&end| end <= area.end)?;
            let taken = self.mapped.next(at, end, true);
            if taken == end {
                return Some(at);
            }
            at = taken;
        }
    }

    /// Finds room for `len` bytes; `is_long`: in extents of its own.
    pub fn place(&self, len: usize, is_long: bool, access: Access) -> Option<usize> {
        let (count, all) = (len / PAGE, self.pages.load(Ordering::Relaxed));
        let short = SHORT_PAGES.min(all);
        self.alone(|| {
            let page = if is_long {
                let whole = count.checked_next_multiple_of(PAGES_PER_EXTENT)?;
                self.find(whole, PAGES_PER_EXTENT, short..all)?
            } else {
                let from = self.mapped.next(self.short_from.load(Ordering::Relaxed), short, false);
                self.short_from.store(from, Ordering::Relaxed);
                self.find(count, 1, from..short)?
            };
            self.fill(&(page..page + count), access);
            Some(self.addr(page))
        })?
    }

    /// Whether a mapping is one of the long ones.
    pub fn is_long(&self, start: usize) -> bool {
        start >= self.addr(SHORT_PAGES)
    }

    /// Lengthens a mapping where it is, if nothing is behind it and `open` succeeds.
    pub fn grow(
        &self,
        start: usize,
        len: usize,
        new_len: usize,
        open: impl FnOnce() -> bool,
    ) -> bool {
        let Some(new) = self.pages_of(start, new_len) else { return false };
        let behind = new.start + len / PAGE..new.end;
        if behind.start <= SHORT_PAGES && new.end > SHORT_PAGES {
            return false;
        }
        let grown = self.alone(|| {
            let may_grow = self.mapped.all(&behind, false) && self.is_plain(start, len) && open();
            if may_grow {
                self.fill(&behind, Access::ReadWrite);
            }
            may_grow
        });
        grown.unwrap_or(false)
    }

    /// Whether a part of a range is in the area and not mapped.
    pub fn has_hole(&self, start: usize, len: usize) -> bool {
        self.pages_of(start, len).is_some_and(|pages| !self.mapped.all(&pages, true))
    }

    /// Whether all of a range is mapped, readable and writable, and children get it.
    pub fn is_plain(&self, start: usize, len: usize) -> bool {
        self.pages_of(start, len).is_some_and(|pages| {
            self.mapped.all(&pages, true)
                && self.special.all(&pages, false)
                && self.unforked.all(&pages, false)
        })
    }

    /// Whether a range is in the area.
    pub fn contains(&self, start: usize, len: usize) -> bool {
        self.pages_of(start, len).is_some()
    }

    /// The first part of a range in the area that is mapped.
    pub fn first_in(&self, start: usize, len: usize) -> Option<Range<usize>> {
        let pages = self.pages_of(start, len)?;
        let from = self.mapped.next(pages.start, pages.end, true);
        let to = self.mapped.next(from, pages.end, false);
        (from < to).then(|| self.addr(from)..self.addr(to))
    }

    /// How many bytes of a range have not been committed.
    pub fn uncommitted(&self, start: usize, len: usize) -> usize {
        let Some(Range { mut start, end }) = self.pages_of(start, len) else { return 0 };
        let mut pages = 0;
        while start < end {
            let from = self.committed.next(start, end, false);
            start = self.committed.next(from, end, true);
            pages += start - from;
        }
        pages * PAGE
    }

    /// Whether something else is mapped in all of a range.
    pub fn is_foreign(&self, start: usize, len: usize) -> bool {
        self.pages_of(start, len).is_some_and(|pages| self.foreign.all(&pages, true))
    }

    /// Whether nothing else is mapped in a range.
    pub fn is_ours(&self, start: usize, len: usize) -> bool {
        self.pages_of(start, len).is_some_and(|pages| self.foreign.all(&pages, false))
    }

    /// Changes the protection of a range by `change`, whose error is returned. `None`: not all of it
    /// is mapped, or something else is.
    pub fn protect<E>(
        &self,
        start: usize,
        len: usize,
        access: Access,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        self.change(start, len, |pages| {
            if !self.foreign.all(pages, false) {
                return None;
            }
            // First: a child of a fork in between must not take it for plain.
            self.special.set(pages, true);
            let changed = change();
            if changed.is_ok() {
                self.special.set(pages, access != Access::ReadWrite);
                // Content stays that cannot be read for a while.
                if access != Access::None {
                    self.commit(pages, true);
                }
            }
            Some(changed)
        })
    }

    /// Maps something anew over a range by `change`, whose error is returned. `None`: it is not in
    /// the area.
    pub fn replace<E>(
        &self,
        start: usize,
        len: usize,
        access: Access,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let pages = self.pages_of(start, len)?;
        self.alone(|| {
            // First: a child of a fork in between must not take it for plain, nor for ours.
            self.special.set(&pages, true);
            let was_ours = self.foreign.all(&pages, false);
            if access == Access::Foreign {
                self.foreign.set(&pages, true);
            }
            let changed = change();
            if changed.is_ok() {
                self.fill(&pages, access);
            } else if was_ours {
                self.foreign.set(&pages, false);
            }
            changed
        })
    }

    /// Children do not get a range any more, or get it again, by `change`, whose error is returned.
    /// `None`: not all of it is mapped.
    pub fn unfork<E>(
        &self,
        start: usize,
        len: usize,
        is_unforked: bool,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        self.change(start, len, |pages| {
            let changed = change();
            if changed.is_ok() {
                self.unforked.set(pages, is_unforked);
            }
            Some(changed)
        })
    }

    fn change<T>(
        &self,
        start: usize,
        len: usize,
        act: impl FnOnce(&Range<usize>) -> Option<T>,
    ) -> Option<T> {
        let pages = self.pages_of(start, len)?;
        self.alone(|| if self.mapped.all(&pages, true) { act(&pages) } else { None })?
    }

    /// Unmaps a range by `close`, whose error is returned. `None`: not all of it is mapped.
    pub fn cut<E>(
        &self,
        start: usize,
        len: usize,
        close: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        self.change(start, len, |pages| {
            let closed = close();
            if closed.is_ok() {
                self.short_from.fetch_min(pages.start, Ordering::Relaxed);
                self.commit(pages, false);
                self.foreign.set(pages, false);
                self.unforked.set(pages, false);
                self.mapped.set(pages, false);
            }
            Some(closed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 64 * EXTENT;
    const LONG: usize = BASE + SHORT_PAGES * PAGE;

    fn early() -> Box<Early> {
        let early = Box::new(Early::new());
        early.is_at(BASE..LONG + 300 * EXTENT);
        early
    }

    fn cut(early: &Early, start: usize, len: usize) -> bool {
        early.cut(start, len, || Ok::<(), ()>(())).is_some()
    }

    fn known(early: &Early) -> Vec<Range<usize>> {
        let known: Vec<_> = early.ranges_of(&early.mapped).collect();
        assert_eq!(early.bytes(), known.iter().map(|range| range.len()).sum::<usize>());
        known
    }

    #[test]
    fn long_mappings_share_no_extent() {
        let early = early();
        let lens = [3 * PAGE, EXTENT, EXTENT + PAGE, PAGE];
        let placed = lens.map(|len| early.place(len, true, Access::ReadWrite).unwrap());
        assert_eq!(placed, [0, 1, 2, 4].map(|at| LONG + at * EXTENT));
        assert!(early.place(300 * EXTENT, true, Access::ReadWrite).is_none());
        // What is left of a mapping keeps the extents that it touches.
        assert!(cut(&early, LONG + 2 * EXTENT, PAGE));
        assert!(cut(&early, LONG + EXTENT, EXTENT));
        assert_eq!(early.place(EXTENT + PAGE, true, Access::ReadWrite), Some(LONG + 5 * EXTENT));
        assert_eq!(early.place(EXTENT, true, Access::ReadWrite), Some(LONG + EXTENT));
        assert!(placed.iter().all(|&start| early.is_long(start)));
    }

    #[test]
    fn short_mappings_lie_close_together() {
        let early = early();
        let at = |page: usize| BASE + page * PAGE;
        for page in 0..200 {
            assert_eq!(early.place(4 * PAGE, false, Access::ReadWrite), Some(at(4 * page)));
        }
        assert!(!early.is_long(at(0)));
        assert_eq!(known(&early).as_slice(), std::slice::from_ref(&(at(0)..at(800))));
        assert!(cut(&early, at(62), 4 * PAGE));
        assert_eq!(early.place(5 * PAGE, false, Access::ReadWrite), Some(at(800)));
        assert_eq!(early.place(2 * PAGE, false, Access::ReadWrite), Some(at(62)));
        assert_eq!(early.place(2 * PAGE, false, Access::ReadWrite), Some(at(64)));
        assert_eq!(early.place(PAGE, false, Access::ReadWrite), Some(at(805)));
        assert_eq!(early.place(SHORT_PAGES * PAGE, false, Access::ReadWrite), None);
    }

    #[test]
    fn parts_are_cut_out() {
        let early = early();
        let at = |page: usize| LONG + page * PAGE;
        assert_eq!(early.place(10 * PAGE, true, Access::ReadWrite), Some(at(0)));
        assert!(cut(&early, at(3), 2 * PAGE));
        assert_eq!(known(&early), [at(0)..at(3), at(5)..at(10)]);
        assert!(!cut(&early, at(2), 2 * PAGE));
        assert!(!cut(&early, at(20), PAGE));
        assert!(!cut(&early, at(1), 0));
        assert!(!cut(&early, BASE - PAGE, PAGE));
        assert!(!cut(&early, at(300 * 512), PAGE));
        assert!(cut(&early, at(0), PAGE));
        assert!(cut(&early, at(9), PAGE));
        assert!(cut(&early, at(5), 4 * PAGE));
        assert_eq!(known(&early).as_slice(), std::slice::from_ref(&(at(1)..at(3))));
        // What cannot be closed stays mapped.
        assert_eq!(early.cut(at(1), PAGE, || Err(3)), Some(Err(3)));
        assert_eq!(early.first_in(at(0), 10 * PAGE), Some(at(1)..at(3)));
        assert_eq!(early.first_in(at(3), 10 * PAGE), None);
    }

    #[test]
    fn mappings_grow_up_to_the_next_one() {
        let early = early();
        let first = early.place(PAGE, true, Access::ReadWrite).unwrap();
        let second = early.place(PAGE, true, Access::ReadWrite).unwrap();
        assert!(early.grow(first, PAGE, EXTENT, || true));
        assert!(!early.grow(first, EXTENT, EXTENT + PAGE, || true));
        assert!(!early.grow(second, PAGE, 2 * PAGE, || false));
        assert!(!early.grow(second, 2 * PAGE, 3 * PAGE, || true));
        assert!(!early.grow(second, PAGE, 300 * EXTENT, || true));
        assert!(early.grow(second, PAGE, 20 * EXTENT, || true));
        assert_eq!(known(&early).as_slice(), std::slice::from_ref(&(first..second + 20 * EXTENT)));
        // Short ones stay in their part.
        let short = early.place(SHORT_PAGES * PAGE - 8 * PAGE, false, Access::ReadWrite).unwrap();
        let last = early.place(4 * PAGE, false, Access::ReadWrite).unwrap();
        assert!(last > short && early.grow(last, 4 * PAGE, 8 * PAGE, || true));
        assert!(!early.grow(last, 8 * PAGE, 9 * PAGE, || true));
    }

    #[test]
    fn what_is_reserved_counts_when_it_is_committed() {
        let early = early();
        let done = || Ok::<(), ()>(());
        let start = early.place(100 * EXTENT, true, Access::None).unwrap();
        let at = |page: usize| start + page * PAGE;
        assert_eq!((early.bytes(), early.uncommitted(start, EXTENT)), (0, EXTENT));
        assert!(!early.is_plain(start, EXTENT));
        assert_eq!(early.replace(at(10), 20 * PAGE, Access::ReadWrite, done), Some(Ok(())));
        assert_eq!((early.bytes(), early.uncommitted(start, 40 * PAGE)), (20 * PAGE, 20 * PAGE));
        assert!(early.is_plain(at(10), 20 * PAGE));
        // Content stays that cannot be read for a while.
        assert_eq!(early.protect(at(0), 15 * PAGE, Access::None, done), Some(Ok(())));
        assert_eq!(early.bytes(), 20 * PAGE);
        assert!(!early.is_plain(at(14), 2 * PAGE));
        assert_eq!(early.replace(at(0), 15 * PAGE, Access::None, done), Some(Ok(())));
        assert_eq!(early.protect(at(20), 30 * PAGE, Access::Other, done), Some(Ok(())));
        assert_eq!(early.bytes(), 35 * PAGE);
        assert_eq!(early.replace(BASE - PAGE, 2 * PAGE, Access::None, done), None);
        assert_eq!(early.protect(at(100 * 512 - 1), 2 * PAGE, Access::None, done), None);
        let failed = early.protect(start, PAGE, Access::ReadWrite, || Err(7));
        assert_eq!((failed, early.is_plain(start, PAGE)), (Some(Err(7)), false));
        early.is_mine();
        assert_eq!(early.bytes(), 35 * PAGE);
        assert!(cut(&early, start, 100 * EXTENT));
        assert_eq!(early.bytes(), 0);
    }

    #[test]
    fn what_is_foreign_or_not_forked_is_known() {
        let early = early();
        let done = || Ok::<(), ()>(());
        let start = early.place(20 * PAGE, true, Access::ReadWrite).unwrap();
        let at = |page: usize| start + page * PAGE;
        assert_eq!(early.replace(at(2), 4 * PAGE, Access::Foreign, done), Some(Ok(())));
        let foreign = early.take().foreign;
        assert_eq!(foreign.as_slice(), std::slice::from_ref(&(at(2)..at(6))));
        // Nothing changes while a pager starts.
        assert_eq!(early.place(PAGE, true, Access::ReadWrite), None);
        assert!(!cut(&early, at(0), PAGE));
        early.reopen();
        assert!(early.is_foreign(at(3), PAGE) && !early.is_foreign(at(5), 2 * PAGE));
        assert!(!early.is_plain(at(5), 2 * PAGE) && early.bytes() == 16 * PAGE);
        assert_eq!(early.protect(at(5), 2 * PAGE, Access::ReadWrite, done), None);
        assert_eq!(early.unfork(at(19), 2 * PAGE, true, done), None);
        assert_eq!(early.unfork(at(6), 9 * PAGE, true, done), Some(Ok(())));
        assert_eq!(early.unfork(at(7), PAGE, false, done), Some(Ok(())));
        assert_eq!(early.replace(at(5), 4 * PAGE, Access::ReadWrite, done), Some(Ok(())));
        assert_eq!(
            early.unforked().collect::<Vec<_>>().as_slice(),
            std::slice::from_ref(&(at(9)..at(15)))
        );
        assert!(cut(&early, at(0), 20 * PAGE));
        assert_eq!((early.ranges_of(&early.foreign).count(), early.unforked().count()), (0, 0));
        assert_eq!(early.place(20 * PAGE, true, Access::ReadWrite), Some(start));
        assert!(early.is_plain(start, 20 * PAGE));
    }

    #[test]
    fn a_small_area_has_no_long_mappings() {
        let early = Box::new(Early::new());
        early.is_at(BASE..BASE + EXTENT);
        assert_eq!(early.place(PAGE, true, Access::ReadWrite), None);
        assert_eq!(early.place(PAGE, false, Access::ReadWrite), Some(BASE));
        assert!(!early.grow(BASE, PAGE, EXTENT + PAGE, || true));
        assert!(early.grow(BASE, PAGE, EXTENT, || true));
        early.is_mine();
        assert_eq!((early.bytes(), early.place(PAGE, false, Access::ReadWrite)), (EXTENT, None));
    }
}
