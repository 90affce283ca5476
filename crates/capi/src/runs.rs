//! Free runs of pages, kept outside the memory that they describe.
//!
//! Two ordered trees of the standard library: by start, to merge neighbours, and by length, for
//! best fit. Allocators with tables of their own (`offset-allocator`) fix the number of allocations
//! in advance, and those with links inside the memory (`talc`, `dlmalloc`) would fetch far pages
//! merely to free them.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs of pages; page numbers count from the start of the region.
#[derive(Debug, Default, Clone)]
pub struct FreeRuns {
    by_start: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
}

/// Number of tightly fitting candidates that are tried before one that fits with any alignment is
/// used.
const TRIES: usize = 16;

impl FreeRuns {
    /// A set in which all of `pages` pages are free.
    pub fn new(pages: usize) -> FreeRuns {
        let mut runs = FreeRuns::default();
        runs.give(0, pages);
        runs
    }

    /// Number of pages in free runs.
    pub fn pages(&self) -> usize {
        self.by_start.values().sum()
    }

    /// Takes `pages` pages that start at a multiple of `align` pages, from the tightest run that
    /// fits.
    pub fn take(&mut self, pages: usize, align: usize) -> Option<usize> {
        let aligned = |&(len, start): &(usize, usize)| -> Option<(usize, usize, usize)> {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(pages)? <= start + len).then_some((start, len, at))
        };
        let tight = self.by_len.range((pages, 0)..).take(TRIES).find_map(aligned);
        let roomy =
            || self.by_len.range((pages.checked_add(align - 1)?, 0)..).next().and_then(aligned);
        let (start, len, at) = tight
            .or_else(roomy)
            .or_else(|| self.by_len.range((pages, 0)..).skip(TRIES).find_map(aligned))?;
        self.remove(start, len);
        self.insert(start, at - start);
        self.insert(at + pages, start + len - at - pages);
        Some(at)
    }

    /// Takes `pages` pages from the end of the tightest run that fits; separates small objects from
    /// large ones.
    pub fn take_from_end(&mut self, pages: usize) -> Option<usize> {
        let &(len, start) = self.by_len.range((pages, 0)..).next()?;
        self.remove(start, len);
        self.insert(start, len - pages);
        Some(start + len - pages)
    }

    /// Takes exactly the `pages` pages from `start`, if they are free (to grow the run before
    /// them).
    pub fn take_at(&mut self, start: usize, pages: usize) -> bool {
        match self.by_start.get(&start) {
            Some(&len) if len >= pages => {
                self.remove(start, len);
                self.insert(start + pages, len - pages);
                true
            }
            _ => false,
        }
    }

    /// Returns `pages` pages from `start`, and merges them with free neighbours.
    pub fn give(&mut self, start: usize, pages: usize) {
        let (mut first, mut end) = (start, start + pages);
        if let Some((&before, &len)) = self.by_start.range(..start).next_back() {
            assert!(before + len <= start, "pages given back twice");
            if before + len == start {
                self.remove(before, len);
                first = before;
            }
        }
        if let Some((&after, &len)) = self.by_start.range(start..).next() {
            assert!(after >= end, "pages given back twice");
            if after == end {
                self.remove(after, len);
                end = after + len;
            }
        }
        self.insert(first, end - first);
    }

    fn insert(&mut self, start: usize, len: usize) {
        if len != 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_run_merges_with_both_neighbours() {
        let mut runs = FreeRuns::new(30);
        let taken: Vec<usize> = (0..3).map(|_| runs.take(10, 1).unwrap()).collect();
        assert_eq!(runs.take(1, 1), None);
        runs.give(taken[0], 10);
        runs.give(taken[2], 10);
        assert_eq!(runs.take(11, 1), None);
        runs.give(taken[1], 10);
        assert_eq!(runs.take(30, 1), Some(0));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn double_free_panics() {
        let mut runs = FreeRuns::new(8);
        let at = runs.take(4, 1).unwrap();
        runs.give(at, 4);
        runs.give(at, 4);
    }

    proptest! {
        #[test]
        fn runs_match_a_page_map(ops in proptest::collection::vec((0u8..4, 1usize..40, 0u32..6), 1..200)) {
            let mut runs = FreeRuns::new(256);
            let mut used = [false; 256];
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (op, pages, order) in ops {
                let align = 1 << order;
                let fits = |at: usize, used: &[bool; 256]| at + pages <= 256 && used[at..at + pages].iter().all(|&u| !u);
                let taken = match op {
                    0 => {
                        let taken = runs.take(pages, align);
                        prop_assert_eq!(taken.is_some(), (0..256).step_by(align).any(|at| fits(at, &used)));
                        prop_assert!(taken.is_none_or(|at| at % align == 0));
                        taken
                    }
                    1 => runs.take_from_end(pages),
                    2 => {
                        let at = held.first().map_or(0, |&(at, len)| at + len);
                        let took = runs.take_at(at, pages);
                        prop_assert!(!took || fits(at, &used));
                        took.then_some(at)
                    }
                    _ => {
                        if !held.is_empty() {
                            let (at, len) = held.swap_remove(pages % held.len());
                            used[at..at + len].fill(false);
                            runs.give(at, len);
                        }
                        None
                    }
                };
                if let Some(at) = taken {
                    prop_assert!(fits(at, &used));
                    used[at..at + pages].fill(true);
                    held.push((at, pages));
                }
                prop_assert_eq!(runs.pages(), used.iter().filter(|&&u| !u).count());
            }
        }
    }
}
