//! Which completely present ranges become huge, judged by samples of their pages.
//!
//! A range of which every page is present grows nothing when it is collapsed, so it needs little
//! evidence: the translations that it will save have to be worth the time of the collapse. How
//! often pages are touched is estimated from a few pages of each range. A program is expected to
//! continue as it does for as long as it has already run, but at least [`HORIZON_NS_MIN`].

use std::collections::BTreeMap;

use hiroma_units::PAGES_PER_EXTENT;

/// Time that the program saves for each first touch of a page in a window, after which the
/// processor has the translation in its caches until it needs the place for another one. Random
/// accesses to 4 GiB save 0.17 us each, and more than one access follows each translation.
const SAVED_PER_TOUCH_NS: u64 = 100;
/// Bounds of the time for which the present use is expected to continue.
pub const HORIZON_NS_MIN: u64 = 10_000_000_000;
const HORIZON_NS_MAX: u64 = 600_000_000_000;
/// Duration of a collapse until one was measured; later their moving average, of which a new one is
/// one part in `1 << AVERAGE_SHIFT`.
const COLLAPSE_NS: u64 = 400_000;
const AVERAGE_SHIFT: u32 = 3;
/// One sample is enough if at least one in this many of its pages was touched.
const CLEAR_SHARE: u64 = 2;
const SECOND_NS: u128 = 1_000_000_000;

/// Estimated use of one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Rate {
    /// First touches of pages in a second, all 512 together.
    touches_per_s: u64,
    samples: u8,
    is_clear: bool,
}

/// The use of all completely present ranges, and which of them are worth a collapse.
#[derive(Clone, Debug)]
pub struct Survey {
    rates: BTreeMap<u64, Rate>,
    collapse_ns: u64,
}

impl Default for Survey {
    fn default() -> Survey {
        Survey { rates: BTreeMap::new(), collapse_ns: COLLAPSE_NS }
    }
}

impl Survey {
    /// Of `watched` pages of a completely present range, `touched` were touched within a window.
    pub fn note(&mut self, range: u64, touched: u64, watched: u64, window_ns: u64) {
        let pages = u128::from(touched) * PAGES_PER_EXTENT as u128;
        let time = u128::from(watched.max(1)) * u128::from(window_ns.max(1));
        let now = (pages * SECOND_NS / time).min(u128::from(u64::MAX / 2)) as u64;
        let rate = self.rates.entry(range).or_default();
        // What cools is forgotten quickly, and what gets hot is seen at once.
        rate.touches_per_s =
            if rate.samples == 0 { now } else { now.max(rate.touches_per_s.midpoint(now)) };
        rate.samples = rate.samples.saturating_add(1);
        rate.is_clear = touched * CLEAR_SHARE >= watched;
    }

    /// The range is no longer mapped, or not completely present, or huge.
    pub fn forget(&mut self, range: u64) {
        self.rates.remove(&range);
    }

    /// Keeps only the ranges for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        self.rates.retain(|&range, _| keep(range));
    }

    /// Whether the range is judged here.
    pub fn knows(&self, range: u64) -> bool {
        self.rates.contains_key(&range)
    }

    /// Records the duration of a collapse.
    pub fn collapsed(&mut self, range: u64, duration_ns: u64) {
        self.forget(range);
        let (old, new) = (self.collapse_ns as i64, duration_ns.min(i64::MAX as u64) as i64);
        self.collapse_ns = (old + ((new - old) >> AVERAGE_SHIFT)).max(1) as u64;
    }

    /// Appends the ranges that are worth a collapse and the pages touched in them per second, the
    /// hottest first. `age_ns`: how long the program has run.
    pub fn worthwhile(&self, age_ns: u64, out: &mut Vec<(u64, u64)>) {
        let horizon_ns = age_ns.clamp(HORIZON_NS_MIN, HORIZON_NS_MAX);
        let pays = |rate: &Rate| {
            let saved = u128::from(rate.touches_per_s)
                * u128::from(SAVED_PER_TOUCH_NS)
                * u128::from(horizon_ns)
                / SECOND_NS;
            (rate.samples > 1 || rate.is_clear) && saved > u128::from(self.collapse_ns)
        };
        let begin = out.len();
        out.extend(
            self.rates
                .iter()
                .filter(|(_, rate)| pays(rate))
                .map(|(&range, rate)| (range, rate.touches_per_s)),
        );
        out[begin..].sort_by_key(|&(range, rate)| (std::cmp::Reverse(rate), range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn worthwhile(survey: &Survey, age_ns: u64) -> Vec<u64> {
        let mut out = Vec::new();
        survey.worthwhile(age_ns, &mut out);
        out.into_iter().map(|(range, _)| range).collect()
    }

    #[test]
    fn hottest_ranges_come_first() {
        let mut survey = Survey::default();
        survey.note(1, 8, 16, 20 * MS);
        survey.note(2, 16, 16, 20 * MS);
        survey.note(3, 0, 16, 20 * MS);
        assert_eq!(worthwhile(&survey, 0), [2, 1]);
    }

    #[test]
    fn one_weak_sample_is_no_evidence() {
        let mut survey = Survey::default();
        survey.note(1, 2, 16, 20 * MS);
        assert!(worthwhile(&survey, 0).is_empty());
        survey.note(1, 2, 16, 20 * MS);
        assert_eq!(worthwhile(&survey, 0), [1]);
    }

    #[test]
    fn rare_touches_pay_only_in_old_programs() {
        let mut survey = Survey::default();
        // 100 first touches a second save 10 us a second: 40 s for a collapse of 400 us.
        (0..3).for_each(|_| survey.note(1, 1, 16, 320 * MS));
        assert!(worthwhile(&survey, 30 * 1000 * MS).is_empty());
        assert_eq!(worthwhile(&survey, 60 * 1000 * MS), [1]);
        // Slow collapses have to save more.
        (0..30).for_each(|_| survey.collapsed(9, 8 * MS));
        assert!(worthwhile(&survey, 60 * 1000 * MS).is_empty());
    }

    #[test]
    fn cooled_range_is_no_longer_worthwhile() {
        let mut survey = Survey::default();
        (0..4).for_each(|_| survey.note(1, 16, 16, 20 * MS));
        let samples = (1..100).find(|_| {
            survey.note(1, 0, 16, 20 * MS);
            worthwhile(&survey, 0).is_empty()
        });
        assert!(samples.is_some_and(|samples| samples < 10), "{samples:?}");
    }

    #[test]
    fn forgotten_ranges_are_unknown() {
        let mut survey = Survey::default();
        survey.note(1, 16, 16, 20 * MS);
        survey.note(2, 16, 16, 20 * MS);
        survey.retain(|range| range == 2);
        survey.collapsed(2, MS);
        assert!(!survey.knows(1) && !survey.knows(2) && worthwhile(&survey, 0).is_empty());
    }
}
