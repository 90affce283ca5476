//! Counts for each page: the number of windows in which it was touched, with decay.

use std::collections::BTreeMap;

use hiroma_policy::huge::{Change, KEPT_WINDOWS, Usual};
use hiroma_sys::vector::{self, Wide};

use crate::bits::{self, PageBits};
use crate::counts::Counts;
use crate::tracker::RangeView;

/// A range's counts and windows are halved when it was watched for this many windows: a count
/// decays within a few hundred windows.
const WINDOWS_MAX: u16 = 128;

/// Fewer windows do not show which pages are in use at all.
const WINDOWS_KNOWN: u16 = 8;

/// A page is touched often if it was touched in at least one of this many windows.
const OFTEN: u16 = 4;
/// The set of often touched pages is recomputed after this many windows.
pub const USUAL_EVERY: u16 = 8;

/// Shares of windows, in 1/1000, among which the share of the hottest pages is searched.
const TOP_STEPS: [u16; 7] = [500, 400, 300, 250, 200, 150, 100];
/// One in this many pages in use is among the hottest.
const TOP_PART: u64 = 10;

/// What is known about one range.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeHeat {
    /// For each page, the windows in which it was touched; of a huge range, the counts from before
    /// it became huge.
    pub counts: Counts,
    /// Windows in which it was watched, with the same decay.
    pub windows: u16,
    /// Pages that were present when it was last scanned.
    pub present: PageBits,
    /// Whether it was huge when it was last scanned.
    pub huge: bool,
    /// Windows in which it was watched as one huge page …
    pub huge_windows: u32,
    /// … and those of them in which it was touched.
    pub huge_touched: u32,
    /// Pages that are often touched, as of some windows ago, and statistics of its usual windows.
    often: PageBits,
    usual: Usual,
    change: Change,
}

impl RangeHeat {
    /// Records what one window showed.
    #[inline(always)]
    fn note(&mut self, view: &RangeView) {
        (self.present, self.huge) = (view.present, view.huge);
        if view.huge {
            // One bit for 512 pages does not distinguish them: keep the counts from before.
            self.huge_windows += 1;
            self.huge_touched += u32::from(!bits::is_empty(&view.touched));
            return;
        }
        if self.windows >= WINDOWS_MAX {
            self.windows /= 2;
            self.counts.halve();
        }
        self.windows += 1;
        self.counts.add(&view.touched);
        if self.usual.windows > 0 && self.is_another(&view.touched) {
            // Continue as if the last windows had all been like this one.
            self.windows = KEPT_WINDOWS;
            self.counts.set(&view.touched, KEPT_WINDOWS as u8);
            self.usual = Usual::default();
        } else if self.windows % USUAL_EVERY == 0 {
            self.learn_usual();
        }
    }

    /// Whether windows like this one show that the program uses the range differently than before.
    #[inline(always)]
    fn is_another(&mut self, touched: &PageBits) -> bool {
        let often = bits::count(&bits::and(touched, &self.often));
        let others = bits::count(&bits::without(touched, &self.often));
        self.change.note(&self.usual, often, others)
    }

    #[inline(always)]
    fn learn_usual(&mut self) {
        let ever = self.counts.at_least(1);
        self.often = self.counts.at_least(self.windows.div_ceil(OFTEN));
        let seldom = bits::without(&ever, &self.often);
        self.usual = Usual {
            often: bits::count(&self.often),
            often_sum: self.counts.sum_of(&self.often),
            seldom: bits::count(&seldom),
            seldom_sum: self.counts.sum_of(&seldom),
            windows: self.windows,
        };
    }

    /// Translations that the processor needs for what is in use: the pages with a count, or one
    /// huge page. All present pages while fewer than `WINDOWS_KNOWN` windows are known.
    pub fn pages_in_use(&self) -> u64 {
        match self.huge {
            true => u64::from(self.huge_touched > 0),
            false if self.windows < WINDOWS_KNOWN => u64::from(bits::count(&self.present)),
            false => u64::from(bits::count(&self.counts.at_least(1))),
        }
    }

    /// Present pages with a count of at least `least`.
    pub fn hot_pages(&self, least: u16) -> PageBits {
        bits::and(&self.counts.at_least(least), &self.present)
    }

    /// Marks the range as one huge page; the counts of its pages are kept.
    pub fn became_huge(&mut self) {
        (self.huge, self.present, self.huge_windows, self.huge_touched) = (true, bits::ALL, 0, 0);
    }

    /// Forgets all counts: the range is watched from scratch.
    pub fn forget(&mut self) {
        (self.huge, self.windows, self.huge_windows, self.huge_touched) = (false, 0, 0, 0);
        self.counts.clear();
        (self.usual, self.change) = (Usual::default(), Change::default());
    }
}

/// The counts of all pages of a process, by range (address divided by 2 MiB).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Heat {
    ranges: BTreeMap<u64, RangeHeat>,
}

/// Compiled for wide vectors: counting then takes half the time, and learning what is usual a
/// tenth.
struct Adding<'a> {
    heat: &'a mut Heat,
    views: &'a [RangeView],
}

impl Wide for Adding<'_> {
    type Result = (u64, u64);

    #[inline(always)]
    fn work(self) -> (u64, u64) {
        self.heat.add_views(self.views)
    }
}

impl Heat {
    /// An empty record.
    pub fn new() -> Heat {
        Heat::default()
    }

    /// The share of its windows in which a page of the hottest tenth of those in use was touched,
    /// in 1/1000; 1000 if that is half of them or more. Huge ranges count with their counts from
    /// before they became huge, because they were the hottest.
    pub fn top_permille(&self) -> u16 {
        let pages = |permille: u16| {
            let of = |heat: &RangeHeat| {
                bits::count(&heat.counts.at_least((heat.windows * permille).div_ceil(1000).max(1)))
            };
            self.ranges.values().map(|heat| u64::from(of(heat))).sum::<u64>()
        };
        let enough = pages(0).div_ceil(TOP_PART);
        match TOP_STEPS.into_iter().find(|&permille| pages(permille) >= enough) {
            Some(500) => 1000,
            found => found.unwrap_or(0),
        }
    }

    /// Adds what one window showed of ranges in ascending order. Returns how many pages were
    /// present and how many touched, in ranges that are not huge.
    pub fn add(&mut self, views: &[RangeView]) -> (u64, u64) {
        vector::widest(Adding { heat: self, views })
    }

    #[inline(always)]
    fn add_views(&mut self, views: &[RangeView]) -> (u64, u64) {
        let (mut present, mut touched) = (0, 0);
        for view in views {
            if !view.huge {
                present += u64::from(bits::count(&view.present));
                touched += u64::from(bits::count(&view.touched));
            }
        }
        let (Some(first), Some(last)) = (views.first(), views.last()) else {
            return (present, touched);
        };
        // Both are sorted by address: merge them instead of searching for each range.
        let mut known = self.ranges.range_mut(first.range..=last.range).peekable();
        let mut fresh: Vec<&RangeView> = Vec::new();
        for view in views {
            while known.next_if(|(range, _)| **range < view.range).is_some() {}
            match known.next_if(|(range, _)| **range == view.range) {
                Some((_, heat)) => heat.note(view),
                None if bits::is_empty(&view.present) => {}
                None => fresh.push(view),
            }
        }
        for view in fresh {
            self.ranges.entry(view.range).or_default().note(view);
        }
        (present, touched)
    }

    /// Keeps only the ranges for which `keep` returns true; the others are no longer mapped.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.ranges.retain(|&range, _| keep(range));
    }

    /// What is known about `range`.
    pub fn range(&self, range: u64) -> Option<&RangeHeat> {
        self.ranges.get(&range)
    }

    /// What is known about `range`, mutable.
    pub fn range_mut(&mut self, range: u64) -> Option<&mut RangeHeat> {
        self.ranges.get_mut(&range)
    }

    /// All ranges, by address.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, &RangeHeat)> {
        self.ranges.iter().map(|(&range, heat)| (range, heat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(touched: u64, huge: bool) -> RangeView {
        let touched = match (huge, touched) {
            (true, 0) => bits::NONE,
            (true, _) => bits::ALL,
            (false, _) => [touched, 0, 0, 0, 0, 0, 0, 1 << 63],
        };
        RangeView { range: 7, present: bits::ALL, touched, huge }
    }

    #[test]
    fn counts_equal_windows_with_touches() {
        let mut heat = Heat::new();
        heat.add(&[view(0b11, false)]);
        assert_eq!(heat.add(&[view(0b10, false)]), (512, 2));
        let range = heat.range(7).unwrap();
        assert_eq!(
            (range.counts.get(0), range.counts.get(1), range.counts.get(2), range.counts.get(511)),
            (1, 2, 0, 2)
        );
        assert_eq!(range.windows, 2);
        assert_eq!(range.hot_pages(2), [0b10, 0, 0, 0, 0, 0, 0, 1 << 63]);
    }

    #[test]
    fn hottest_pages_are_rated_by_share_of_windows() {
        let mut heat = Heat::new();
        assert_eq!(heat.top_permille(), 1000, "nothing says that they are cold");
        // All pages are touched in every fifth window.
        for window in 0..100 {
            let touched = if window % 5 == 0 { bits::ALL } else { bits::NONE };
            heat.add(&[RangeView { touched, ..view(0, false) }]);
        }
        assert_eq!(heat.top_permille(), 200);
        // The same number of pages in another range.
        (0..100).for_each(|_| {
            _ = heat.add(&[RangeView { range: 8, touched: bits::ALL, ..view(0, false) }])
        });
        assert_eq!(heat.top_permille(), 1000);
        // Its counts are kept once it is huge.
        (0..100).for_each(|_| _ = heat.add(&[RangeView { range: 8, ..view(1, true) }]));
        assert_eq!(heat.top_permille(), 1000);
    }

    /// Whether page 0 is hot by the paper's share of a quarter.
    fn is_hot(heat: &Heat) -> bool {
        let range = heat.range(7).unwrap();
        range.hot_pages(range.windows.div_ceil(4).max(2))[0] & 1 == 1
    }

    #[test]
    fn heat_changes_are_detected_within_few_windows() {
        let (used, unused) = (
            RangeView { touched: bits::ALL, ..view(0, false) },
            RangeView { touched: bits::NONE, ..view(0, false) },
        );
        let mut heat = Heat::new();
        (0..100).for_each(|_| _ = heat.add(&[used]));
        for view in [unused, used, unused] {
            let before = is_hot(&heat);
            let windows = (1..100).find(|_| {
                heat.add(&[view]);
                is_hot(&heat) != before
            });
            assert_eq!(windows, Some(3));
            // Enough is known for a decision, and it is the same as a hundred windows later.
            assert!(heat.range(7).unwrap().windows >= 4);
            (0..100).for_each(|_| _ = heat.add(&[view]));
            assert_ne!(is_hot(&heat), before);
        }
    }

    #[test]
    fn hot_pages_moving_within_a_range_are_detected() {
        let mut heat = Heat::new();
        let half = |at: usize| RangeView {
            touched: std::array::from_fn(|word| if word / 4 == at { u64::MAX } else { 0 }),
            ..view(0, false)
        };
        (0..100).for_each(|_| _ = heat.add(&[half(0)]));
        (0..3).for_each(|_| _ = heat.add(&[half(1)]));
        let range = heat.range(7).unwrap();
        assert_eq!(range.hot_pages(range.windows.div_ceil(4).max(2)), half(1).touched);
    }

    #[test]
    fn old_counts_decay_without_overflow() {
        let mut heat = Heat::new();
        (0..1000).for_each(|_| _ = heat.add(&[view(1, false)]));
        let high = heat.range(7).unwrap().counts.get(0);
        assert!(
            u16::from(high) <= WINDOWS_MAX && u16::from(high) == heat.range(7).unwrap().windows
        );
        (0..300).for_each(|_| _ = heat.add(&[view(0, false)]));
        assert!(heat.range(7).unwrap().counts.get(0) < high / 4);
    }

    #[test]
    fn counts_from_before_a_collapse_are_kept() {
        let mut heat = Heat::new();
        heat.add(&[view(0b1, false)]);
        heat.add(&[view(0b1, true)]);
        heat.add(&[view(0, true)]);
        let range = heat.range(7).unwrap();
        assert_eq!((range.counts.get(0), range.counts.get(1), range.windows), (1, 0, 1));
        assert_eq!((range.huge_windows, range.huge_touched), (2, 1));
    }

    #[test]
    fn empty_ranges_take_no_memory() {
        let mut heat = Heat::new();
        heat.add(&[RangeView { range: 9, ..RangeView::default() }]);
        assert_eq!(heat.ranges().count(), 0);
    }
}
