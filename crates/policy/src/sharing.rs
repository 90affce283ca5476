//! How much of local memory holds compressed blocks, where another store follows behind them.
//!
//! Room for compressed blocks spares waits for what is behind them; the same room for what the program uses spares fetches from compressed
//! memory. What a little more of the one gains and of the other loses follows from what was seen: how densely the blocks behind are asked for
//! and how long that takes, and how densely staged blocks, the next that would have to go, are touched.

/// Shares are counted in parts of local memory.
pub const PARTS: u64 = 32;
/// The share at first, which is the smallest, and the largest.
pub const LEAST: u64 = PARTS / 2;
const MOST: u64 = PARTS / 4 * 3;
/// Waits after which the numbers say something.
const JUDGED_WAITS: u64 = 64;
/// What a fetch from compressed memory costs beside its wait: two switches, and another block that has to leave.
const OVERHEAD_NS: u64 = 15_000;

/// What was seen; all counts since the start, all bytes now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Fetches from compressed memory and from behind it that somebody waited for, and for how long in all.
    pub near: Waits,
    pub behind: Waits,
    /// Staged blocks that were touched.
    pub rescues: u64,
    /// Bytes that are staged.
    pub staged_bytes: u64,
    /// Bytes of the program in compressed memory, what they take there, and bytes of the program behind it.
    pub near_bytes: u64,
    pub packed_bytes: u64,
    pub behind_bytes: u64,
    /// Compressed memory takes no more.
    pub is_full: bool,
}

/// Fetches that somebody waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub count: u64,
    pub total_ns: u64,
}

impl Waits {
    /// One more.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.total_ns += ns;
    }

    fn since(self, before: Waits) -> Waits {
        // These go on in a child.
        Waits { count: self.count - before.count, total_ns: self.total_ns - before.total_ns }
    }
}

/// The share of compressed memory.
#[derive(Clone, Debug)]
pub struct Sharing {
    parts: u64,
    before: Seen,
}

impl Default for Sharing {
    fn default() -> Self {
        Sharing { parts: LEAST, before: Seen::default() }
    }
}

impl Sharing {
    /// Half of local memory, at first.
    pub fn new() -> Self {
        Sharing::default()
    }

    /// Takes what was seen into account. The share in parts of `PARTS`, if it is another one now.
    pub fn observe(&mut self, seen: &Seen) -> Option<u64> {
        let (near, behind) = (seen.near.since(self.before.near), seen.behind.since(self.before.behind));
        // In the child of a fork the pager's counts start again.
        let rescues = seen.rescues.checked_sub(self.before.rescues).unwrap_or(seen.rescues);
        if near.count + behind.count < JUDGED_WAITS {
            return None;
        }
        self.before = *seen;
        if !seen.is_full {
            return None;
        }
        // Both per byte of local memory, times 2^20 to stay in integers.
        let near_ns = near.total_ns / near.count.max(1) + OVERHEAD_NS;
        let spared_ns = (behind.total_ns + behind.count * OVERHEAD_NS).saturating_sub(behind.count * near_ns);
        let packing = (u128::from(seen.near_bytes) << 8) / u128::from(seen.packed_bytes.max(1));
        let gain = ((u128::from(spared_ns) << 12) * packing) / u128::from(seen.behind_bytes.max(1));
        let loss = (u128::from(rescues * near_ns) << 20) / u128::from(seen.staged_bytes.max(1 << 20));
        let parts = if 2 * gain > 3 * loss {
            (self.parts + 1).min(MOST)
        } else if 2 * loss > 3 * gain {
            self.parts.saturating_sub(1).max(LEAST)
        } else {
            self.parts
        };
        let changed = parts != self.parts;
        self.parts = parts;
        changed.then_some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(round: u64, behind: u64, rescues: u64) -> Seen {
        Seen {
            near: Waits { count: round * 100, total_ns: round * 100 * 10_000 },
            behind: Waits { count: round * behind, total_ns: round * behind * 90_000 },
            rescues: round * rescues,
            staged_bytes: 4 * MIB,
            near_bytes: 120 * MIB,
            packed_bytes: 50 * MIB,
            behind_bytes: 60 * MIB,
            is_full: true,
        }
    }

    fn last(rounds: u64, at: impl Fn(u64) -> Seen) -> Option<u64> {
        let mut sharing = Sharing::new();
        (1..=rounds).filter_map(|round| sharing.observe(&at(round))).last()
    }

    #[test]
    fn where_much_is_asked_for_from_behind_it_grows_to_three_quarters() {
        assert_eq!(last(40, |round| seen(round, 100, 10)), Some(24));
    }

    #[test]
    fn where_what_is_behind_is_cold_it_stays_at_half() {
        assert_eq!(last(40, |round| seen(round, 1, 50)), None);
    }

    #[test]
    fn it_shrinks_again_when_what_is_behind_has_become_cold() {
        let mut sharing = Sharing::new();
        (1..=40).for_each(|round| {
            sharing.observe(&seen(round, 100, 10));
        });
        let later = |round: u64| Seen {
            near: Waits { count: 4_000 + round * 100, total_ns: 40_000_000 + round * 1_000_000 },
            rescues: 400 + round * 100,
            ..seen(40, 100, 10)
        };
        assert_eq!((1..=40).filter_map(|round| sharing.observe(&later(round))).last(), Some(16));
    }

    #[test]
    fn while_there_is_room_it_stays() {
        assert_eq!(last(40, |round| Seen { is_full: false, ..seen(round, 100, 10) }), None);
    }
}
