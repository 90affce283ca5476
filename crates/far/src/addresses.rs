//! Which parts of the arena are in use, and how: sets of address intervals, and the choice of free
//! ones. Pure.

use std::collections::BTreeMap;

use hiroma_units::EXTENT;

/// A set of addresses, as disjoint intervals `start -> end`.
#[derive(Debug, Default, Clone)]
pub struct IntervalSet {
    map: BTreeMap<usize, usize>,
}

impl IntervalSet {
    /// Adds `start..end`.
    pub fn insert(&mut self, start: usize, end: usize) {
        let (mut start, mut end) = (start, end);
        if start >= end {
            return;
        }
        if let Some((&before, &before_end)) = self.map.range(..=start).next_back() {
            if before_end >= start {
                start = before;
                end = end.max(before_end);
            }
        }
        while let Some((&after, &after_end)) = self.map.range(start..=end).next() {
            self.map.remove(&after);
            end = end.max(after_end);
        }
        self.map.insert(start, end);
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: usize, end: usize) {
        for (from, to) in self.overlaps(start, end) {
            let (&whole_start, &whole_end) =
                self.map.range(..=from).next_back().expect("an overlap lies in an interval");
            self.map.remove(&whole_start);
            if whole_start < from {
                self.map.insert(whole_start, from);
            }
            if to < whole_end {
                self.map.insert(to, whole_end);
            }
        }
    }

    /// The parts of `start..end` that are in the set, in order.
    pub fn overlaps(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        if start >= end {
            return Vec::new();
        }
        let first = self.map.range(..=start).next_back().map_or(start, |(&from, _)| from);
        self.map
            .range(first..end)
            .filter(|&(&from, &to)| from < end && to > start)
            .map(|(&from, &to)| (from.max(start), to.min(end)))
            .collect()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Whether a part of `start..end` is in the set.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        start < end && self.map.range(..end).next_back().is_some_and(|(_, &to)| to > start)
    }

    /// Whether all of `start..end` is in the set.
    pub fn covers(&self, start: usize, end: usize) -> bool {
        self.map.range(..=start).next_back().is_some_and(|(_, &to)| to >= end)
    }

    /// Finds space for `len` bytes aligned to `align` in the first interval that has enough.
    fn first_fit(&self, len: usize, align: usize) -> Option<usize> {
        self.map.iter().find_map(|(&start, &end)| {
            let at = start.next_multiple_of(align);
            (at < end && end - at >= len).then_some(at)
        })
    }

    /// Finds space for `len` bytes aligned to `align` at the end of the first interval that has
    /// enough.
    fn first_fit_at_end(&self, len: usize, align: usize) -> Option<usize> {
        self.map.iter().find_map(|(&start, &end)| {
            let at = end.checked_sub(len)? / align * align;
            (at >= start).then_some(at)
        })
    }

    /// The parts of `start..end` that are not in the set.
    pub fn gaps(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut gaps = Vec::new();
        let mut at = start;
        for (from, to) in self.overlaps(start, end) {
            if at < from {
                gaps.push((at, from));
            }
            at = to;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// Adds `start..end`, or removes it.
    pub fn set(&mut self, start: usize, end: usize, on: bool) {
        if on {
            self.insert(start, end);
        } else {
            self.remove(start, end);
        }
    }

    /// Total length.
    pub fn bytes(&self) -> usize {
        self.map.iter().map(|(start, end)| end - start).sum()
    }
}

/// Where an allocation was placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// First address.
    pub addr: usize,
    /// Extents that were not in use before and must be made accessible: start and length.
    pub opened: Option<(usize, usize)>,
}

/// Whose a range of the arena is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// All of it is managed.
    Pager,
    /// Something else was mapped over all of it.
    Foreign,
    /// It has parts of both, or some that are not mapped.
    Mixed,
}

/// The arena's addresses.
#[derive(Clone, Debug)]
pub struct Addresses {
    base: usize,
    len: usize,
    /// Whole extents that are unused.
    free: IntervalSet,
    /// Free parts of the extents that small mappings share.
    pool_free: IntervalSet,
    /// All extents that small mappings share.
    pool: IntervalSet,
    /// What the program has mapped.
    pub mapped: IntervalSet,
    /// Parts with another protection than readable and writable.
    pub special: IntervalSet,
    /// Parts over which something else was mapped, or that were unmapped by system calls that
    /// bypassed the pager.
    pub foreign: IntervalSet,
    /// Parts that the program has locked.
    pub pinned: IntervalSet,
    /// Parts that may be executed.
    pub code: IntervalSet,
    /// Parts that are zeros in a forked child.
    pub wiped: IntervalSet,
    /// Parts that a forked child does not inherit.
    pub unforked: IntervalSet,
    /// Maximum of mapped bytes: a limit that the program has set for itself.
    pub mapped_max: usize,
    /// Mapped bytes that do not count: a nursery's, most of which are not in use.
    pub uncounted: usize,
}

/// Mappings below this size share extents.
const SHARED_BELOW: usize = 1 << 20;
/// Extents are opened for small mappings in steps of this many bytes.
const POOL_STEP: usize = 16 * EXTENT;

impl Addresses {
    /// All of `base..base + len` is free; both are multiples of an extent.
    pub fn new(base: usize, len: usize) -> Addresses {
        let mut free = IntervalSet::default();
        free.insert(base, base + len);
        let empty = IntervalSet::default;
        Addresses {
            base,
            len,
            free,
            pool_free: empty(),
            pool: empty(),
            mapped: empty(),
            special: empty(),
            foreign: empty(),
            pinned: empty(),
            code: empty(),
            wiped: empty(),
            unforked: empty(),
            mapped_max: usize::MAX,
            uncounted: 0,
        }
    }

    /// Finds space for `len` bytes (a multiple of the page) at a multiple of `align`. `alone`: in
    /// extents of its own.
    pub fn place(&mut self, len: usize, align: usize, alone: bool) -> Option<Placed> {
        if len < SHARED_BELOW && align <= EXTENT && !alone {
            return self.place_shared(len, align);
        }
        let whole = len.checked_next_multiple_of(EXTENT)?;
        let addr = self.free.first_fit(whole, align.max(EXTENT))?;
        self.free.remove(addr, addr + whole);
        self.mapped.insert(addr, addr + len);
        Some(Placed { addr, opened: Some((addr, whole)) })
    }

    /// Whether the program's own limit allows `more` bytes to be mapped.
    pub fn may_map(&self, more: usize) -> bool {
        self.mapped_max == usize::MAX
            || (self.mapped.bytes().checked_add(more))
                .is_some_and(|bytes| bytes.saturating_sub(self.uncounted) <= self.mapped_max)
    }

    /// From above, as the kernel does: who wants aligned memory maps more, and returns what is below
    /// and above it; then the next one is directly below this one.
    fn place_shared(&mut self, len: usize, align: usize) -> Option<Placed> {
        let mut opened = None;
        let addr = match self.pool_free.first_fit_at_end(len, align) {
            Some(addr) => addr,
            None => {
                let start = self.free.first_fit(POOL_STEP, EXTENT)?;
                self.free.remove(start, start + POOL_STEP);
                self.pool.insert(start, start + POOL_STEP);
                self.pool_free.insert(start, start + POOL_STEP);
                opened = Some((start, POOL_STEP));
                self.pool_free.first_fit_at_end(len, align)?
            }
        };
        self.pool_free.remove(addr, addr + len);
        self.mapped.insert(addr, addr + len);
        Some(Placed { addr, opened })
    }

    /// Extends the mapping that ends at `end` (rounded up to extents) by `more` bytes in place.
    /// Returns the opened extents.
    pub fn extend(&mut self, end: usize, more: usize) -> Option<Option<(usize, usize)>> {
        let new_end = end.checked_add(more).filter(|_| self.may_map(more))?;
        let (whole, new_whole) =
            (end.next_multiple_of(EXTENT), new_end.checked_next_multiple_of(EXTENT)?);
        if self.pool.touches(end - 1, end)
            || self.mapped.touches(end, new_end.min(whole))
            || new_end > self.base + self.len
        {
            return None;
        }
        let opened = (new_whole > whole).then_some((whole, new_whole - whole));
        if opened.is_some() {
            if !self.free.covers(whole, new_whole) {
                return None;
            }
            self.free.remove(whole, new_whole);
        }
        self.mapped.insert(end, new_end);
        Some(opened)
    }

    /// Reserves `start..end` at the program's choice, whatever was there. Returns extents that were
    /// not in use before and must be made accessible.
    pub fn claim(&mut self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let opened = self.free.overlaps(start / EXTENT * EXTENT, end.next_multiple_of(EXTENT));
        for &(from, to) in &opened {
            self.free.remove(from, to);
        }
        self.pool_free.remove(start, end);
        self.mapped.insert(start, end);
        opened
    }

    /// What is mapped in `start..end`, widened to whole extents where nothing else is mapped in
    /// them: `unmap` will return these.
    pub fn closing(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let is_alone = |extent: usize| {
            !self.pool.touches(extent, extent + EXTENT)
                && !self.mapped.touches(extent, extent.max(start))
                && !self.mapped.touches(end.min(extent + EXTENT), extent + EXTENT)
        };
        let mut closing = IntervalSet::default();
        for (from, to) in self.mapped.overlaps(start, end) {
            let (first, last) = (from / EXTENT * EXTENT, (to - 1) / EXTENT * EXTENT);
            let from = if is_alone(first) { first } else { from };
            let to = if is_alone(last) { last + EXTENT } else { to };
            closing.insert(from, to);
        }
        closing.overlaps(0, usize::MAX)
    }

    /// Forgets `start..end`. Returns the whole extents that are unused now.
    pub fn unmap(&mut self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let gone = self.mapped.overlaps(start, end);
        self.mapped.remove(start, end);
        let mut closed = IntervalSet::default();
        for &(from, to) in &gone {
            self.pinned.remove(from, to);
            self.code.remove(from, to);
            self.wiped.remove(from, to);
            self.unforked.remove(from, to);
            for (pool_from, pool_to) in self.pool.overlaps(from, to) {
                self.special.remove(pool_from, pool_to);
                self.pool_free.insert(pool_from, pool_to);
            }
            // The pool has whole extents. Elsewhere only the first and the last one can have other
            // mappings: a reservation may have millions.
            let (first, last) = (from / EXTENT * EXTENT, to.next_multiple_of(EXTENT));
            for (from, to) in self.pool.gaps(first, last) {
                let is_shared = |extent| self.mapped.touches(extent, extent + EXTENT);
                let from = if is_shared(from) { from + EXTENT } else { from };
                let to = if is_shared(to - EXTENT) { to - EXTENT } else { to };
                if from < to {
                    closed.insert(from, to);
                }
            }
        }
        let closed = closed.overlaps(self.base, self.base + self.len);
        for &(from, to) in &closed {
            self.special.remove(from, to);
            self.free.insert(from, to);
        }
        closed
    }

    /// Whether a part of `start..end` must stay local.
    pub fn holds(&self, start: usize, end: usize) -> bool {
        self.pinned.touches(start, end) || self.code.touches(start, end)
    }

    /// Whether all of `start..end` must stay local for one reason.
    pub fn holds_all(&self, start: usize, end: usize) -> bool {
        self.pinned.covers(start, end) || self.code.covers(start, end)
    }

    /// Whose `start..end` is.
    pub fn owner(&self, start: usize, end: usize) -> Owner {
        if self.foreign.covers(start, end) {
            Owner::Foreign
        } else if self.foreign.touches(start, end) || !self.mapped.covers(start, end) {
            Owner::Mixed
        } else {
            Owner::Pager
        }
    }

    /// Whether `start..end` is mapped, and plain: ours, readable and writable.
    pub fn is_plain(&self, start: usize, end: usize) -> bool {
        self.mapped.covers(start, end)
            && !self.special.touches(start, end)
            && !self.foreign.touches(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn interval_set_matches_a_bitmap(steps in prop::collection::vec((any::<bool>(), 0usize..64, 0usize..64), 1..60), probe in (0usize..64, 0usize..64)) {
            let mut set = IntervalSet::default();
            let mut bits = [false; 64];
            for (insert, a, b) in steps {
                let (start, end) = (a.min(b), a.max(b));
                if insert { set.insert(start, end) } else { set.remove(start, end) }
                bits[start..end].fill(insert);
            }
            let (start, end) = (probe.0.min(probe.1), probe.0.max(probe.1));
            let mut seen = [false; 64];
            for (from, to) in set.overlaps(start, end) {
                prop_assert!(from < to && from >= start && to <= end);
                seen[from..to].fill(true);
            }
            prop_assert_eq!(&seen[start..end], &bits[start..end]);
            prop_assert_eq!(set.bytes(), bits.iter().filter(|&&bit| bit).count());
            let mut unseen = [true; 64];
            set.gaps(start, end).into_iter().for_each(|(from, to)| unseen[from..to].fill(false));
            prop_assert_eq!(&unseen[start..end], &bits[start..end]);
            if start < end {
                prop_assert_eq!(set.touches(start, end), bits[start..end].contains(&true));
                prop_assert_eq!(set.covers(start, end), !bits[start..end].contains(&false));
            }
        }
    }

    const BASE: usize = 100 * EXTENT;

    #[test]
    fn what_is_locked_or_executed_stays_until_it_is_unmapped() {
        let mut addresses = Addresses::new(BASE, 100 * EXTENT);
        let at = |page: usize| BASE + page * 4096;
        addresses.place(EXTENT, 4096, false).unwrap();
        addresses.pinned.insert(at(0), at(4));
        addresses.code.insert(at(4), at(8));
        assert!(addresses.holds(at(3), at(4)) && addresses.holds(at(7), at(9)));
        assert!(addresses.holds_all(at(4), at(8)) && !addresses.holds_all(at(3), at(5)));
        assert!(!addresses.holds(at(8), at(9)));
        addresses.unmap(BASE, BASE + EXTENT);
        assert!(!addresses.holds(BASE, BASE + EXTENT));
    }

    #[test]
    fn large_mappings_own_and_release_whole_extents() {
        let mut addresses = Addresses::new(BASE, 100 * EXTENT);
        let a = addresses.place(5 << 20, 4096, false).unwrap();
        assert_eq!(a, Placed { addr: BASE, opened: Some((BASE, 3 * EXTENT)) });
        let b = addresses.place(EXTENT, 4096, false).unwrap();
        assert_eq!(b.addr, BASE + 3 * EXTENT);
        let part = (BASE + EXTENT, BASE + 2 * EXTENT + 4096);
        assert_eq!(addresses.closing(part.0, part.1), vec![part]);
        let all = vec![(BASE, BASE + 4 * EXTENT)];
        assert_eq!(addresses.closing(BASE, BASE + 4 * EXTENT), all);
        let closed = addresses.unmap(BASE + EXTENT, BASE + 2 * EXTENT + 4096);
        assert_eq!(closed, vec![(BASE + EXTENT, BASE + 2 * EXTENT)]);
        let rest = vec![(BASE, BASE + EXTENT), (BASE + 2 * EXTENT, BASE + 4 * EXTENT)];
        assert_eq!(addresses.closing(BASE, BASE + 5 * EXTENT), rest);
        let closed = addresses.unmap(BASE, BASE + 5 * EXTENT);
        assert_eq!(closed, vec![(BASE, BASE + EXTENT), (BASE + 2 * EXTENT, BASE + 4 * EXTENT)]);
        assert_eq!(addresses.place(100 * EXTENT, 4096, false).unwrap().addr, BASE);
        assert_eq!(addresses.place(EXTENT, 4096, false), None);
    }

    #[test]
    fn claimed_addresses_are_not_placed_again() {
        let mut addresses = Addresses::new(BASE, 3 * EXTENT);
        assert_eq!(addresses.place(EXTENT, 4096, false).unwrap().addr, BASE);
        assert_eq!(
            addresses.claim(BASE + EXTENT + 4096, BASE + EXTENT + 8192),
            vec![(BASE + EXTENT, BASE + 2 * EXTENT)]
        );
        assert_eq!(addresses.extend(BASE + EXTENT, EXTENT), None);
        assert_eq!(addresses.place(EXTENT, 4096, false).unwrap().addr, BASE + 2 * EXTENT);
        assert_eq!(
            addresses.unmap(BASE + EXTENT, BASE + 2 * EXTENT),
            vec![(BASE + EXTENT, BASE + 2 * EXTENT)]
        );
    }

    #[test]
    fn small_mappings_share_extents() {
        let mut addresses = Addresses::new(BASE, 100 * EXTENT);
        let a = addresses.place(256 << 10, 4096, false).unwrap();
        let b = addresses.place(256 << 10, 4096, false).unwrap();
        let below = |addr, len| (addr - len, addr);
        assert_eq!((a.opened, b.opened), (Some((BASE, POOL_STEP)), None));
        assert_eq!((b.addr, a.addr), below(a.addr, 256 << 10));
        assert_eq!(addresses.closing(b.addr, a.addr), vec![(b.addr, a.addr)]);
        let closed = addresses.unmap(b.addr, a.addr);
        assert_eq!(closed, vec![]);
        let c = addresses.place(128 << 10, 4096, false).unwrap();
        assert_eq!((c.addr, a.addr), below(a.addr, 128 << 10));
    }

    #[test]
    fn mappings_that_are_trimmed_to_aligned_ones_leave_no_gaps() {
        let mut addresses = Addresses::new(BASE, 100 * EXTENT);
        const WANTED: usize = 64 << 10;
        let kept: Vec<usize> = (0..200)
            .map(|_| {
                let all = addresses.place(2 * WANTED, 4096, false).unwrap().addr;
                // As Ruby does it.
                let at = (all + WANTED) / WANTED * WANTED;
                addresses.unmap(all, at);
                addresses.unmap(at + WANTED, all + 2 * WANTED);
                at
            })
            .collect();
        assert!(kept.windows(2).all(|pair| pair[0] == pair[1] + WANTED));
    }

    #[test]
    fn mapping_grows_in_place_into_free_extents() {
        let mut addresses = Addresses::new(BASE, 10 * EXTENT);
        let a = addresses.place(3 << 20, 4096, false).unwrap();
        assert_eq!(addresses.extend(a.addr + (3 << 20), 1 << 20), Some(None));
        assert_eq!(
            addresses.extend(a.addr + (4 << 20), EXTENT),
            Some(Some((BASE + 2 * EXTENT, EXTENT)))
        );
        let b = addresses.place(EXTENT, 4096, false).unwrap();
        assert_eq!(b.addr, BASE + 3 * EXTENT);
        assert_eq!(addresses.extend(a.addr + 3 * EXTENT, EXTENT), None);
    }
}
