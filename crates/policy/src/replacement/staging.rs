//! How much of local memory is staged, so that use shows itself.
//!
//! A staged block that is touched proves that it is in use, and costs a fault; one that is not
//! touched leaves. What that is worth shows in the numbers: where more than a quarter as many
//! faults only bring staged blocks back as fetch anything, the program pays more to be watched than
//! for what it misses, and less is staged; where it is much less, more is.

/// Part of local memory that is staged at most: an eighth, as a shift.
const MOST_SHIFT: u32 = 3;
/// Parts in which the share is counted; all of them are the eighth.
const PARTS: u64 = 64;
/// Fetches for each fault that brings a staged block back: with fewer less is staged, with more
/// than twice as many more is.
const FETCHES_PER_RESCUE: u64 = 4;
/// Faults after which the numbers say something.
const JUDGED_FAULTS: u64 = 64;

/// The share that is staged, by what watching costs.
#[derive(Clone, Debug)]
pub struct Staging {
    parts: u64,
    rescues: u64,
    fetches: u64,
}

impl Default for Staging {
    fn default() -> Self {
        Staging { parts: PARTS, rescues: 0, fetches: 0 }
    }
}

impl Staging {
    /// The most that it starts with.
    pub fn new() -> Self {
        Staging::default()
    }

    /// Staged blocks that were brought back, and blocks that were fetched because somebody waited,
    /// both since the start. In the child of a fork they start again.
    pub fn observe(&mut self, rescues: u64, fetches: u64) {
        if rescues < self.rescues || fetches < self.fetches {
            (self.rescues, self.fetches) = (0, 0);
        }
        let (rescued, fetched) = (rescues - self.rescues, fetches - self.fetches);
        if rescued + fetched < JUDGED_FAULTS {
            return;
        }
        (self.rescues, self.fetches) = (rescues, fetches);
        if FETCHES_PER_RESCUE * rescued > fetched {
            self.parts = (self.parts / 2).max(1);
        } else if 2 * FETCHES_PER_RESCUE * rescued < fetched {
            self.parts = (self.parts + self.parts.div_ceil(4)).min(PARTS);
        }
    }

    /// Bytes to keep staged of `room_bytes` of local memory.
    pub fn target_bytes(&self, room_bytes: usize) -> usize {
        ((room_bytes as u64 >> MOST_SHIFT) * self.parts / PARTS) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_staged_where_rescues_cost_more_than_they_spare() {
        let mut staging = Staging::new();
        assert_eq!(staging.target_bytes(64 << 20), 8 << 20);
        (1..20).for_each(|round| staging.observe(round * 100, round * 100));
        assert_eq!(staging.target_bytes(64 << 20), 128 << 10);
        (1..30).for_each(|round| staging.observe(1_900 + round, 1_900 + round * 100));
        assert_eq!(staging.target_bytes(64 << 20), 8 << 20);
    }

    #[test]
    fn counts_that_start_again_are_no_surprise() {
        let mut staging = Staging::new();
        staging.observe(1000, 1000);
        let before = staging.target_bytes(64 << 20);
        staging.observe(10, 200);
        assert!(staging.target_bytes(64 << 20) > before);
    }

    #[test]
    fn a_ratio_within_bounds_and_a_few_faults_change_nothing() {
        let mut staging = Staging::new();
        staging.observe(1000, 1000);
        let before = staging.target_bytes(64 << 20);
        (1..20).for_each(|round| staging.observe(1000 + round * 20, 1000 + round * 100));
        staging.observe(1000 + 19 * 20 + 60, 1000 + 1900);
        assert_eq!(staging.target_bytes(64 << 20), before);
    }
}
