//! When free frames reach a high watermark from below, or a low one from above.

use std::sync::Arc;

use super::Information;

/// Watermarks in frames, made once for all nodes of a size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watermarks {
    high: Box<[u32]>,
    low: Box<[u32]>,
}

impl Watermarks {
    /// Watermarks in thousandths of `frames`.
    pub fn new(high_permille: &[u32], low_permille: &[u32], frames: u32) -> Self {
        let in_frames = |permille: &[u32]| {
            permille
                .iter()
                .map(|&mark| (u64::from(mark) * u64::from(frames) / 1000) as u32)
                .collect()
        };
        Watermarks { high: in_frames(high_permille), low: in_frames(low_permille) }
    }

    /// Whether a change from `before` to `after` free frames reaches a watermark.
    #[inline]
    pub fn reached(&self, before: u32, after: u32) -> bool {
        if after > before {
            self.high.iter().any(|&mark| before < mark && mark <= after)
        } else {
            self.low.iter().any(|&mark| after <= mark && mark < before)
        }
    }
}

/// Informs peers when a watermark is reached.
#[derive(Clone, Debug)]
pub struct OnChange {
    marks: Arc<Watermarks>,
    free: u32,
}

impl OnChange {
    /// A node that has `free` frames now.
    pub fn new(marks: Arc<Watermarks>, free: u32) -> Self {
        OnChange { marks, free }
    }
}

impl Information for OnChange {
    #[inline]
    fn free_changed(&mut self, free: u32) -> bool {
        let before = std::mem::replace(&mut self.free, free);
        before != free && self.marks.reached(before, free)
    }

    fn tick(&mut self, _: u64) -> bool {
        false
    }

    fn deadline_ns(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(frees: &[u32]) -> Vec<u32> {
        let mut on_change =
            OnChange::new(Arc::new(Watermarks::new(&[250, 1000], &[125, 0], 64)), 64);
        frees.iter().copied().filter(|&free| on_change.free_changed(free)).collect()
    }

    #[test]
    fn paper_watermarks_report_at_the_expected_levels() {
        let down_and_up: Vec<u32> = (0..64).rev().chain(1..=64).collect();
        assert_eq!(told(&down_and_up), [8, 0, 16, 64]);
    }

    #[test]
    fn oscillation_between_watermarks_reports_nothing() {
        assert_eq!(told(&[15, 12, 15, 12, 9, 15, 16]), [16]);
    }

    proptest! {
        #[test]
        fn jump_across_a_watermark_reports(high in prop::collection::vec(0u32..=1000, 0..4), low in prop::collection::vec(0u32..=1000, 0..4), before in 0u32..=64, after in 0u32..=64) {
            let marks = Watermarks::new(&high, &low, 64);
            let steps: Vec<u32> = if before <= after { (before..=after).collect() } else { (after..=before).rev().collect() };
            prop_assert_eq!(marks.reached(before, after), steps.windows(2).any(|pair| marks.reached(pair[0], pair[1])));
        }
    }
}
