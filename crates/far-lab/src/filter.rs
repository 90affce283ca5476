//! Removes touches that make no difference to any local memory of more than a few pages.
//!
//! Of three touches of one page with fewer than `window` other pages between the first and the
//! last, the middle one is removed. For any memory of at least `window` pages the misses of LRU and
//! of Belady's optimum stay exactly the same (Kaplan, Smaragdakis and Wilson, "Trace reduction for
//! virtual memory simulations", 1999): the page cannot be evicted between the first and the last
//! touch, and the last one puts it where it was. Policies that do not depend on recency may differ
//! slightly, by the order of two touches within `window` pages. A write that is removed is recorded
//! with the next touch of the page that is kept.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One touch that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub page: u64,
    pub write: bool,
}

/// A page that was touched recently. Between its last touch and the last one that was kept there is
/// at most one that is undecided.
#[derive(Clone, Copy)]
struct Entry {
    page: u64,
    last: u64,
    kept: u64,
    /// The last touch, or one removed before it, was a write that was not recorded yet; for a kept
    /// touch: whether it was a write.
    write: bool,
}

/// The filter: as many pages as the window, most recent first.
pub struct Filter {
    window: usize,
    entries: Vec<Entry>,
    now: u64,
    /// Last touch of the page that most recently left the window.
    fell: u64,
    /// Kept touches, in order of time; those kept early wait for any that may still precede them.
    kept: BinaryHeap<Reverse<(u64, u64, bool)>>,
}

/// Kept touches that may wait before the filter checks whether they can be released.
const WAITING_MAX: usize = 256;

impl Filter {
    /// A filter of `window` pages.
    pub fn new(window: usize) -> Filter {
        let window = window.max(1);
        Filter {
            window,
            entries: Vec::with_capacity(window),
            now: 0,
            fell: 0,
            kept: BinaryHeap::new(),
        }
    }

    /// Processes a touch; `out` receives the touches that are now decided.
    pub fn touch(&mut self, page: u64, write: bool, out: &mut impl FnMut(Touch)) {
        if let Some(front) = self.entries.first().filter(|front| front.page == page) {
            if front.write || !write {
                return;
            }
        }
        self.now += 1;
        match self.entries.iter().position(|entry| entry.page == page) {
            Some(at) => self.again(at, write),
            None => self.enter(page, write),
        }
        if self.kept.len() > WAITING_MAX {
            self.release(out);
        }
    }

    fn again(&mut self, at: usize, write: bool) {
        let mut entry = self.entries[at];
        if entry.last == entry.kept {
            entry.write = write;
        } else if self.fell > entry.kept {
            self.kept.push(Reverse((entry.last, entry.page, entry.write)));
            (entry.kept, entry.write) = (entry.last, write);
        } else {
            entry.write |= write;
        }
        entry.last = self.now;
        self.entries.copy_within(0..at, 1);
        self.entries[0] = entry;
    }

    fn enter(&mut self, page: u64, write: bool) {
        if self.entries.len() == self.window {
            if let Some(fallen) = self.entries.pop() {
                self.fell = fallen.last;
                self.settle(fallen);
            }
        }
        self.entries.insert(0, Entry { page, last: self.now, kept: self.now, write });
        self.kept.push(Reverse((self.now, page, write)));
    }

    /// The last touch before the page left the window is kept.
    fn settle(&mut self, entry: Entry) {
        if entry.last != entry.kept {
            self.kept.push(Reverse((entry.last, entry.page, entry.write)));
        }
    }

    /// Outputs the touches that no undecided one can precede.
    fn release(&mut self, out: &mut impl FnMut(Touch)) {
        let waiting =
            self.entries.iter().filter(|entry| entry.last != entry.kept).map(|entry| entry.last);
        let first = waiting.min().unwrap_or(u64::MAX);
        while let Some(&Reverse((time, page, write))) = self.kept.peek() {
            if time > first {
                break;
            }
            self.kept.pop();
            out(Touch { page, write });
        }
    }

    /// Outputs everything and starts over, because something other than a touch happens.
    pub fn flush(&mut self, out: &mut impl FnMut(Touch)) {
        for entry in std::mem::take(&mut self.entries) {
            self.settle(entry);
        }
        self.fell = self.now;
        self.release(out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filtered(window: usize, touches: &[(u64, bool)]) -> Vec<Touch> {
        let (mut filter, mut kept) = (Filter::new(window), Vec::new());
        for (at, &(page, write)) in touches.iter().enumerate() {
            filter.touch(page, write, &mut |touch| kept.push(touch));
            if at % 997 == 996 {
                filter.flush(&mut |touch| kept.push(touch));
            }
        }
        filter.flush(&mut |touch| kept.push(touch));
        kept
    }

    /// Pages that miss, in order, and whether each was written when it was evicted: LRU as a plain
    /// list.
    fn lru(
        size: usize,
        touches: impl Iterator<Item = (u64, bool)>,
    ) -> (Vec<u64>, Vec<(u64, bool)>) {
        let (mut list, mut missed, mut left) = (Vec::<(u64, bool)>::new(), Vec::new(), Vec::new());
        for (page, write) in touches {
            let before =
                list.iter().position(|&(known, _)| known == page).map(|at| list.remove(at).1);
            if before.is_none() {
                missed.push(page);
                if list.len() == size {
                    left.push(list.remove(0));
                }
            }
            list.push((page, write | before.unwrap_or(false)));
        }
        (missed, left)
    }

    /// Misses of the optimum, computed naively.
    fn optimum(size: usize, pages: &[u64]) -> usize {
        let (mut list, mut misses) = (Vec::<u64>::new(), 0);
        for (at, page) in pages.iter().enumerate() {
            if list.contains(page) {
                continue;
            }
            misses += 1;
            if list.len() == size {
                let next = |page: &u64| {
                    pages[at..].iter().position(|later| later == page).unwrap_or(usize::MAX)
                };
                let farthest = (0..size).max_by_key(|&slot| next(&list[slot])).unwrap();
                list.swap_remove(farthest);
            }
            list.push(*page);
        }
        misses
    }

    #[test]
    fn alternating_pages_collapse_to_first_and_last_touch() {
        let touches: Vec<_> = (0..1000).map(|at| (at % 2, at == 500)).collect();
        let mut filter = Filter::new(8);
        let mut kept = Vec::new();
        touches
            .iter()
            .for_each(|&(page, write)| filter.touch(page, write, &mut |touch| kept.push(touch)));
        filter.flush(&mut |touch| kept.push(touch));
        let expected = [(0, false), (1, false), (0, true), (1, false)];
        assert_eq!(kept, expected.map(|(page, write)| Touch { page, write }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn filter_preserves_lru_and_optimal_misses_beyond_window(
            window in 1usize..12,
            steps in proptest::collection::vec((0u64..40, 0u64..4, 0u8..8), 1..1500),
        ) {
            // Most touches are of a few pages that change slowly, as in real programs.
            let touches: Vec<(u64, bool)> = steps.iter().enumerate()
                .map(|(at, &(far, near, kind))| (if kind < 6 { at as u64 / 100 + near } else { far }, kind % 2 == 1)).collect();
            let kept = filtered(window, &touches);
            prop_assert!(kept.len() <= touches.len());
            let pages: Vec<u64> = touches.iter().map(|&(page, _)| page).collect();
            let kept_pages: Vec<u64> = kept.iter().map(|touch| touch.page).collect();
            for size in [window, window + 1, 2 * window, 20] {
                let size = size.max(window);
                let before = lru(size, touches.iter().copied());
                let after = lru(size, kept.iter().map(|touch| (touch.page, touch.write)));
                prop_assert_eq!(before, after, "LRU of {} pages", size);
                prop_assert_eq!(optimum(size, &pages), optimum(size, &kept_pages), "optimum of {} pages", size);
            }
        }
    }
}
