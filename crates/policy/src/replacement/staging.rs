//! How much of local memory is staged, to make use observable.
//!
//! A staged block that is touched proves that it is in use, and costs a fault; one that is not
//! touched is evicted. The counts show what that is worth. With more than one rescue per four
//! fetches, the program pays more for being observed than for its misses, and less is staged; with
//! far fewer, more is staged.

/// Maximum part of local memory that is staged: an eighth, as a shift.
const MOST_SHIFT: u32 = 3;
/// Unit of the share; `PARTS` parts are the eighth.
const PARTS: u64 = 64;
/// Fetches per rescue: with fewer, less is staged; with more than twice as many, more is staged.
const FETCHES_PER_RESCUE: u64 = 4;
/// Faults before the counts are judged.
const JUDGED_FAULTS: u64 = 64;

/// The share that is staged, depending on what observing costs.
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
    /// Starts with the maximum.
    pub fn new() -> Self {
        Staging::default()
    }

    /// Rescued blocks, and blocks that were fetched because a thread waited, both since the start.
    /// In the child of a fork both start from zero.
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

    /// Bytes to keep staged, of `room_bytes` of local memory.
    pub fn target_bytes(&self, room_bytes: usize) -> usize {
        ((room_bytes as u64 >> MOST_SHIFT) * self.parts / PARTS) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_rescues_shrink_staging() {
        let mut staging = Staging::new();
        assert_eq!(staging.target_bytes(64 << 20), 8 << 20);
        (1..20).for_each(|round| staging.observe(round * 100, round * 100));
        assert_eq!(staging.target_bytes(64 << 20), 128 << 10);
        (1..30).for_each(|round| staging.observe(1_900 + round, 1_900 + round * 100));
        assert_eq!(staging.target_bytes(64 << 20), 8 << 20);
    }

    #[test]
    fn restarted_counters_are_accepted() {
        let mut staging = Staging::new();
        staging.observe(1000, 1000);
        let before = staging.target_bytes(64 << 20);
        staging.observe(10, 200);
        assert!(staging.target_bytes(64 << 20) > before);
    }

    #[test]
    fn ratio_within_bounds_keeps_staging_size() {
        let mut staging = Staging::new();
        staging.observe(1000, 1000);
        let before = staging.target_bytes(64 << 20);
        (1..20).for_each(|round| staging.observe(1000 + round * 20, 1000 + round * 100));
        staging.observe(1000 + 19 * 20 + 60, 1000 + 1900);
        assert_eq!(staging.target_bytes(64 << 20), before);
    }
}
