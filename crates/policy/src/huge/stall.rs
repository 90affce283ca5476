//! Whether collapsing has become too slow to continue: while a range is collapsed, a thread of the
//! program that touches it waits.

/// Durations that are remembered.
pub(super) const KEPT: usize = 128;
/// Fewer durations do not give a 99th percentile.
const ENOUGH: usize = 100;
/// This many slow ones in a row are not chance, whatever was before.
const IN_A_ROW: u32 = 16;

/// The last durations.
#[derive(Clone, Debug)]
pub struct Stall {
    limit_ns: u64,
    last: Vec<u64>,
    next: usize,
    slow_in_a_row: u32,
}

impl Stall {
    /// Collapsing continues while the 99th percentile of its durations stays below `limit_ns`.
    pub fn new(limit_ns: u64) -> Stall {
        Stall { limit_ns, last: Vec::with_capacity(KEPT), next: 0, slow_in_a_row: 0 }
    }

    /// Records the duration of a collapse.
    pub fn note(&mut self, duration_ns: u64) {
        self.slow_in_a_row = if duration_ns > self.limit_ns { self.slow_in_a_row + 1 } else { 0 };
        if self.last.len() < KEPT {
            self.last.push(duration_ns);
        } else {
            self.last[self.next] = duration_ns;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// The 99th percentile of the last durations in nanoseconds; 0 if there are none.
    pub fn p99_ns(&self) -> u64 {
        let mut sorted = self.last.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * 99).div_ceil(100);
        rank.checked_sub(1).map_or(0, |at| sorted[at])
    }

    /// Whether to stop.
    pub fn is_stalled(&self) -> bool {
        self.slow_in_a_row >= IN_A_ROW || self.last.len() >= ENOUGH && self.p99_ns() > self.limit_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_slow_collapses_stall_but_one_does_not() {
        let mut stall = Stall::new(10);
        (0..99).for_each(|_| stall.note(1));
        stall.note(50);
        assert!(!stall.is_stalled());
        stall.note(1);
        stall.note(50);
        assert!(stall.is_stalled());
    }

    #[test]
    fn consecutive_slow_collapses_stall_until_they_age_out() {
        let mut stall = Stall::new(10);
        (0..15).for_each(|_| stall.note(11));
        assert!(!stall.is_stalled());
        stall.note(11);
        assert!(stall.is_stalled());
        (0..KEPT).for_each(|_| stall.note(10));
        assert!(!stall.is_stalled());
    }
}
