//! Whether local blocks keep their copies in compressed memory, where these take room that the
//! program could use.
//!
//! A copy that is kept saves compressing the block when it is evicted unchanged; how often that is
//! so is counted. A copy that is dropped makes room for other blocks; how many fetches that saves
//! follows from how densely staged blocks, the next to be evicted, are touched. Linux makes the same
//! decision by how full the swap area is (`mem_cgroup_swap_full`).
//!
//! While copies are dropped, those of a sample of blocks are kept: nothing else tells how many
//! blocks are evicted unchanged.

/// Cost of a fetch that more room would have avoided: two context switches, decompression, and the
/// eviction of another block.
const FETCH_NS: u64 = 20_000;
/// Cost of compressing a block once more.
const PACK_NS: u64 = 5_000;
/// One block in this many keeps its copy in any case.
const SAMPLED: u64 = 32;
/// Evictions of blocks with a copy before their counts replace the assumption that all of them are
/// unchanged, and before older ones count less.
const LEFT_MIN: u64 = 16;
const LEFT_MAX: u64 = 1024;
/// Fetches before the counts are judged.
const JUDGED_FETCHES: u64 = 256;
/// The other choice must be this much better, in quarters.
const BETTER_QUARTERS: u64 = 5;

/// How much is where, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Mapped into the program.
    pub resident_bytes: u64,
    /// Out of the program, but still in a frame.
    pub staged_bytes: u64,
    /// Bytes of the program in compressed memory, and the bytes that they take there.
    pub near_bytes: u64,
    pub packed_bytes: u64,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Duplication {
    keeps: bool,
    /// Counts at the last observation.
    before: (u64, u64),
    /// Touches of staged blocks, and fetches from compressed memory; older ones count less.
    rescues: u64,
    fetches: u64,
    /// Evictions of blocks that had a copy, and how many of those blocks were changed.
    left: u64,
    changed: u64,
}

impl Default for Duplication {
    fn default() -> Duplication {
        Duplication { keeps: true, before: (0, 0), rescues: 0, fetches: 0, left: 0, changed: 0 }
    }
}

impl Duplication {
    /// With another choice at the beginning.
    pub fn beginning(keeps: bool) -> Duplication {
        Duplication { keeps, ..Duplication::default() }
    }

    /// Whether copies are kept.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Whether the block at `page` keeps its copy even where others do not.
    pub fn samples(page: u64) -> bool {
        // The same bits of neighbours differ, and so do those of arrays of structures.
        (page ^ page >> 9) % SAMPLED == 0
    }

    /// A block that has a copy is evicted, changed or not.
    pub fn left(&mut self, changed: bool) {
        if self.left >= LEFT_MAX {
            (self.left, self.changed) = (self.left / 2, self.changed / 2);
        }
        self.left += 1;
        self.changed += u64::from(changed);
    }

    /// The part of the blocks with copies that are evicted unchanged, in millionths.
    fn unchanged_ppm(&self) -> u64 {
        if self.left < LEFT_MIN {
            return 1_000_000;
        }
        (self.left - self.changed) * 1_000_000 / self.left
    }

    /// Takes an observation: touches of staged blocks and fetches from compressed memory, both
    /// since the start, and what is where now.
    pub fn observe(&mut self, rescues: u64, fetches: u64, held: &Held) {
        // In the child of a fork the pager's counts start from zero.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        self.rescues += since(rescues, self.before.0);
        self.fetches += since(fetches, self.before.1);
        self.before = (rescues, fetches);
        if self.fetches < JUDGED_FETCHES || held.staged_bytes == 0 || held.near_bytes == 0 {
            return;
        }
        let wide = |value: u64| u128::from(value);
        // Room that copies of local blocks take, and the fetches that it would save.
        let room = wide(held.resident_bytes) * wide(held.packed_bytes) / wide(held.near_bytes);
        let spared = (room * wide(self.rescues) / wide(held.staged_bytes)).min(wide(self.fetches));
        let packed = wide(self.fetches) * wide(self.unchanged_ppm()) / 1_000_000;
        let (gain, cost) = (spared * wide(FETCH_NS), packed * wide(PACK_NS));
        let is_better = |one: u128, other: u128| one * 4 > other * wide(BETTER_QUARTERS);
        self.keeps = if self.keeps { !is_better(gain, cost) } else { is_better(cost, gain) };
        // Half of the counts carry over to the next judgement.
        (self.rescues, self.fetches) = (self.rescues / 2, self.fetches / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::{Duplication, Held};

    const MIB: u64 = 1 << 20;

    fn after(mut decision: Duplication, rescues: u64, fetches: u64, held: &Held) -> Duplication {
        let (before_rescues, before_fetches) = decision.before;
        (1..20).for_each(|turn| {
            decision.observe(before_rescues + rescues * turn, before_fetches + fetches * turn, held)
        });
        decision
    }

    /// A quarter of 512 MiB is resident, half a MiB staged.
    fn held(packed_mib: u64) -> Held {
        Held {
            resident_bytes: 128 * MIB,
            staged_bytes: MIB / 2,
            near_bytes: 384 * MIB,
            packed_bytes: packed_mib * MIB,
        }
    }

    #[test]
    fn copies_are_kept_under_uniform_access() {
        // One touch for half a MiB of staged blocks corresponds to 768 fetches of the 384 MiB that
        // are far.
        assert!(after(Duplication::default(), 2, 2 * 768, &held(230)).keeps());
    }

    #[test]
    fn copies_follow_density_of_touches_in_staging() {
        let given_up = after(Duplication::default(), 300, 2000, &held(150));
        assert!(!given_up.keeps());
        assert!(after(given_up, 1, 2000, &held(150)).keeps());
    }

    #[test]
    fn copies_of_changed_blocks_are_dropped() {
        let sparse = |decision| after(decision, 2, 2 * 768, &held(230));
        let mut writes = Duplication::default();
        (0..5000).for_each(|turn| writes.left(turn % 20 > 0));
        let mut writes = sparse(writes);
        assert!(!writes.keeps());
        writes.before = (0, 0);
        (0..5000).for_each(|_| writes.left(false));
        assert!(sparse(writes).keeps());
        let sampled = (0..4096).filter(|&page| Duplication::samples(page)).count();
        assert!((64..256).contains(&sampled), "{sampled}");
    }

    #[test]
    fn few_fetches_or_no_packed_bytes_keep_copies() {
        let mut decision = Duplication::default();
        decision.observe(10, 20, &held(150));
        assert!(decision.keeps());
        assert!(
            after(decision, 300, 2000, &Held { near_bytes: 0, packed_bytes: 0, ..held(0) }).keeps()
        );
    }

    #[test]
    fn restarted_counters_are_counted_from_zero() {
        let mut decision = after(Duplication::default(), 300, 2000, &held(150));
        decision.observe(0, 0, &held(150));
        decision.observe(1, 300, &held(150));
        assert!(decision.rescues < 300 * 20);
    }
}
