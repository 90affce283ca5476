//! Whether the way in which a range is used has changed.
//!
//! Counts are forgotten slowly, because many windows show better than few how hot pages are. When a
//! hot set moves, that is wrong: what was hot continues to count as hot for three times as long as
//! it was watched. So each window is compared with the usual windows of the range. Windows that
//! differ widely also happen by chance; but seldom several in a row, and how seldom follows from
//! the counts. Where chance is ruled out, the old counts are obsolete.

use super::decide::Settings;

/// Windows that count when all but the present is forgotten: the number that a decision needs
/// ([`Settings::windows_min`]).
pub const KEPT_WINDOWS: u16 = Settings::WINDOWS_MIN;

/// Below this probability, in millionths, a run of windows is no longer attributed to chance.
const CHANCE_PPM: u32 = 250;
/// Lower bound of the probability of a single window: a change takes at least three windows, even
/// where all were alike so far.
const WINDOW_PPM_MIN: u32 = 62_500;
/// Seldom touched pages that may be touched in one window without any significance.
const STRAY_PAGES: u32 = 16;
const WHOLE_PPM: u32 = 1_000_000;

/// The usual windows of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usual {
    /// Pages that are touched in many windows …
    pub often: u16,
    /// … and the sum of their counts.
    pub often_sum: u32,
    /// Pages that are touched in few windows …
    pub seldom: u16,
    /// … and the sum of their counts.
    pub seldom_sum: u32,
    /// Number of counted windows.
    pub windows: u16,
}

/// Probability of the last windows if the use of the range is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Windows in a row in which pages that are often touched were missing.
    missing_ppm: u32,
    /// Windows in a row in which many pages that are seldom touched were touched.
    surging_ppm: u32,
}

impl Default for Change {
    fn default() -> Change {
        Change { missing_ppm: WHOLE_PPM, surging_ppm: WHOLE_PPM }
    }
}

impl Change {
    /// Records one window, in which `often` of the often touched pages and `others` of all other
    /// pages were touched. Returns true when the use of the range has changed; then counting starts
    /// anew.
    pub fn note(&mut self, usual: &Usual, often: u16, others: u16) -> bool {
        let windows = u32::from(usual.windows.max(1));
        // Fewer than half of the expected number.
        let is_missing = u32::from(often) * windows * 2 < usual.often_sum;
        let touched_ppm = share_ppm(usual.often_sum, usual.often, windows);
        follow(&mut self.missing_ppm, is_missing, WHOLE_PPM - touched_ppm);
        // More than four times as many, and not only a few pages.
        let is_surging =
            u32::from(others).saturating_sub(STRAY_PAGES) * windows > usual.seldom_sum * 4;
        follow(
            &mut self.surging_ppm,
            is_surging,
            share_ppm(usual.seldom_sum, usual.seldom, windows),
        );
        let changed = self.missing_ppm < CHANCE_PPM || self.surging_ppm < CHANCE_PPM;
        if changed {
            *self = Change::default();
        }
        changed
    }
}

/// Mean share of windows in which one of `pages` was touched.
fn share_ppm(sum: u32, pages: u16, windows: u32) -> u32 {
    let all = u64::from(pages.max(1)) * u64::from(windows);
    (u64::from(sum) * u64::from(WHOLE_PPM) / all).min(u64::from(WHOLE_PPM)) as u32
}

/// Adds one window to the run. Pages of a range may be used together, so the window is as probable
/// as one of them.
fn follow(run_ppm: &mut u32, continues: bool, window_ppm: u32) {
    *run_ppm = match continues {
        true => {
            (u64::from(*run_ppm) * u64::from(window_ppm.max(WINDOW_PPM_MIN)) / u64::from(WHOLE_PPM))
                as u32
        }
        false => WHOLE_PPM,
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number of windows like this one after which a change is detected.
    fn noticed_after(usual: Usual, often: u16, others: u16) -> Option<usize> {
        let mut change = Change::default();
        (1..1000).find(|_| change.note(&usual, often, others))
    }

    #[test]
    fn three_windows_suffice_after_uniform_history() {
        let hot = Usual { often: 512, often_sum: 512 * 100, windows: 100, ..Usual::default() };
        assert_eq!(noticed_after(hot, 0, 0), Some(3));
        assert_eq!(noticed_after(hot, 255, 0), Some(3));
        assert_eq!(noticed_after(hot, 256, 0), None);
        let cold = Usual { windows: 100, ..Usual::default() };
        assert_eq!(noticed_after(cold, 0, 512), Some(3));
        assert_eq!(noticed_after(cold, 0, STRAY_PAGES as u16), None);
    }

    #[test]
    fn varying_history_needs_more_windows() {
        // A program that passes through its memory: the range is touched as a whole, in every
        // second window.
        let half = Usual { often: 512, often_sum: 512 * 50, windows: 100, ..Usual::default() };
        assert_eq!(noticed_after(half, 0, 0), Some(12));
        let seldom = Usual { seldom: 512, seldom_sum: 512 * 20, windows: 100, ..Usual::default() };
        assert_eq!(noticed_after(seldom, 0, 512), Some(6));
    }

    #[test]
    fn one_ordinary_window_ends_a_run() {
        let hot = Usual { often: 512, often_sum: 512 * 100, windows: 100, ..Usual::default() };
        let mut change = Change::default();
        for turn in 0..100 {
            assert!(!change.note(&hot, if turn % 3 == 2 { 512 } else { 0 }, 0));
        }
    }

    proptest! {
        #[test]
        fn ordinary_windows_are_never_a_change(often in 0u16..=512, share in 250u32..=1000, windows in 4u16..=128) {
            let often_sum = u32::from(often) * u32::from(windows) * share / 1000;
            let usual = Usual { often, often_sum, seldom: 512 - often, seldom_sum: 0, windows };
            let expected = often_sum.div_ceil(u32::from(windows)) as u16;
            prop_assert_eq!(noticed_after(usual, expected, 0), None);
        }
    }
}
