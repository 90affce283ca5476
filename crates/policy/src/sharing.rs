//! How much of local memory holds compressed blocks, where another store follows behind them.
//!
//! Room for compressed blocks avoids waits for what is behind them; the same room for the program
//! avoids fetches of any kind. A smaller share is judged by the curve of fetches that more room
//! would have avoided ([`crate::reuse`]). Of a larger one only the first step is known, from how
//! densely staged blocks, the next to be evicted, are touched. Many programs have an edge, below
//! which they do little but fetch. So the share begins small and grows step by step, when the
//! present one has cost more than the step for long enough; and it is reduced, by as much as
//! seems right, when a larger one has pushed out what the program uses repeatedly.
//!
//! The same curve shows what compressed memory would serve if it always held what was evicted last:
//! the fetches that as much more local memory would have avoided. Where that is clearly more than
//! its part of all far memory, blocks are *demoted*: those that were evicted first move behind.

use crate::loss::Curve;
use crate::working_set::Growth;

/// Shares are counted in parts of local memory.
pub const PARTS: u64 = 32;
/// Initial share.
pub const BEGIN: u64 = PARTS / 16;
/// The share for content that packs well, and how well that is: bytes of the program in a byte of
/// compressed memory.
const AT_FIRST: u64 = PARTS / 4;
const PACKS_WELL: u128 = 4;
/// The smallest (all goes to the store behind) and the largest.
const LEAST: u64 = 0;
const MOST: u64 = PARTS / 4 * 3;
/// Waits before the counts are judged, and fetches of the curve.
const JUDGED_WAITS: u64 = 64;
const JUDGED_SAMPLES: u64 = 48;
/// Cost of a fetch besides its wait: two context switches, and the eviction of another block.
const OVERHEAD_NS: u64 = 15_000;
/// Assumed wait for compressed memory, and for the store behind, before one was measured.
const NEAR_NS: u64 = 10_000;
const BEHIND_NS: u64 = 100_000;
/// Assumed bytes of the program in a byte of compressed memory, before that is known, and the
/// compressed bytes from which on it is.
const PACKING: u128 = 2;
const PACKED_MIN: u64 = 1 << 20;
/// A smaller share must save one part in this many; so must one step to a larger one, and several
/// at a time.
const SPARED_BY_LESS: u128 = 4;
const SPARED_BY_MORE: u128 = 64;
const SPARED_BY_MANY: u128 = 8;
/// Cost of moving 4 KiB from one store to the other. Another share is chosen when the present one
/// has cost as much more than it: so a short phase of the program does not cause much moving, nor
/// does a long one continue with the wrong share.
const MOVED_NS: u64 = 5_000;
/// A wait of many fetches for what is queued before them (a burst of write-back) says nothing
/// about the store: the average of a period counts as this part more than the one before at most.
const BEHIND_GROWTH: u64 = 4;
/// Blocks are demoted where compressed memory would serve this much more of the fetches, in
/// millionths, and until it is less than half of that.
const DEMOTES_PPM: u64 = 125_000;
/// Copies of fetched blocks are dropped while more than one fetch in this many is from behind.
const DROPS_PER_NEAR: u64 = 16;
/// Number of judgements for which a share that was too large is not tried again: initial and
/// maximum.
const BARRED: u32 = 16;
const BARRED_MAX: u32 = 1024;
/// It is tried again before that if the bytes that are absent differ by one part in this many.
const BARRED_PART: u64 = 4;

/// An observation; all counts since the start, all bytes current.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Fetches from compressed memory and from behind it that a thread waited for, with the total
    /// wait.
    pub near: Waits,
    pub behind: Waits,
    /// Staged blocks that were touched.
    pub rescues: u64,
    /// Bytes that are staged.
    pub staged_bytes: u64,
    /// Bytes of the program in compressed memory, and the bytes that they take there.
    pub near_bytes: u64,
    pub packed_bytes: u64,
    /// Bytes of the program that are in a store and not local.
    pub absent_bytes: u64,
    /// The local limit.
    pub limit_bytes: u64,
    /// Compressed memory is full.
    pub is_full: bool,
    /// Fetches that less room for the program would add, where that is known.
    pub growth: Option<Growth>,
}

impl Seen {
    /// Bytes of the program in a byte of compressed memory, times 2^8, once that is known.
    fn packing(&self) -> Option<u128> {
        let is_known = self.packed_bytes >= PACKED_MIN;
        is_known.then(|| (wide(self.near_bytes) << 8) / wide(self.packed_bytes))
    }
}

/// Fetches that a thread waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub count: u64,
    pub total_ns: u64,
}

impl Waits {
    /// Adds one wait.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.total_ns += ns;
    }

    fn average_ns(self, otherwise: u64) -> u64 {
        self.total_ns.checked_div(self.count).unwrap_or(otherwise)
    }

    /// Half of these, plus newer ones.
    fn fading(self, newer: Waits) -> Waits {
        Waits { count: self.count / 2 + newer.count, total_ns: self.total_ns / 2 + newer.total_ns }
    }

    fn since(self, before: Waits) -> Waits {
        // These counts continue in a child.
        Waits { count: self.count - before.count, total_ns: self.total_ns - before.total_ns }
    }
}

/// The share of compressed memory.
#[derive(Clone, Debug)]
pub struct Sharing {
    parts: u64,
    before: Seen,
    /// Recent counts; older ones count less.
    near: Waits,
    behind: Waits,
    rescues: u64,
    staged_bytes: u64,
    near_ns: u64,
    behind_ns: u64,
    /// Fetched bytes by the local memory that would have avoided them, and the number of those
    /// fetches; older ones count less.
    spared: Curve,
    samples: u64,
    bar: Bar,
    /// How much more the present share has cost than each smaller one and the next larger one, in
    /// ns.
    regrets: [u128; PARTS as usize],
    demotes: bool,
    drops: bool,
    /// Another share than the initial one has been in use.
    is_tried: bool,
    /// Bytes of the program that a byte of compressed memory held, times 2^8, when that was last
    /// known.
    packing: u128,
}

impl Default for Sharing {
    fn default() -> Self {
        Sharing {
            parts: BEGIN,
            before: Seen::default(),
            near: Waits::default(),
            behind: Waits::default(),
            rescues: 0,
            staged_bytes: 0,
            near_ns: NEAR_NS,
            behind_ns: BEHIND_NS,
            spared: Curve::default(),
            samples: 0,
            bar: Bar { parts: MOST + 1, judgements: 0, next: BARRED, absent_bytes: 0 },
            regrets: [0; PARTS as usize],
            demotes: false,
            drops: false,
            is_tried: false,
            packing: PACKING << 8,
        }
    }
}

/// A share that was too large, and all larger ones are not tried for a while.
#[derive(Clone, Debug)]
struct Bar {
    parts: u64,
    /// Number of judgements that are left, and number for the next time.
    judgements: u32,
    next: u32,
    /// How much was absent then.
    absent_bytes: u64,
}

impl Bar {
    fn set(&mut self, parts: u64, absent_bytes: u64) {
        let next = (self.next * 2).min(BARRED_MAX);
        *self = Bar { parts, judgements: self.next, next, absent_bytes };
    }

    /// A program whose data has grown or shrunk is another one.
    fn judged(&mut self, absent_bytes: u64) {
        let differs = self.absent_bytes.abs_diff(absent_bytes) > self.absent_bytes / BARRED_PART;
        if differs {
            self.next = BARRED;
        }
        self.judgements = if differs { 0 } else { self.judgements.saturating_sub(1) };
        if self.judgements == 0 {
            self.parts = MOST + 1;
        }
    }
}

/// One period: numbers of fetches, and the cost of each.
#[derive(Clone, Copy, Debug)]
struct Period {
    near: u64,
    behind: u64,
    near_ns: u64,
    behind_ns: u64,
    /// Additional fetches per MiB less for the program.
    edge_per_mib: u64,
}

impl Sharing {
    /// Starts with a small share.
    pub fn new() -> Self {
        Sharing::default()
    }

    /// A fetch of `bytes` that more local memory would have avoided, in a bucket of [`Curve`].
    pub fn on_fetch(&mut self, bucket: usize, bytes: u64) {
        self.spared.0[bucket] += bytes;
        self.samples += 1;
    }

    /// Whether compressed memory is to hold what was evicted last.
    pub fn demotes(&self) -> bool {
        self.demotes
    }

    /// Whether compressed memory drops its copies of blocks that are fetched: while it is full, they
    /// take the place of others, which are fetched from behind instead.
    pub fn drops_copies(&self) -> bool {
        self.demotes || self.drops
    }

    fn judge_demoting(&mut self, seen: &Seen, period: &Period) {
        if seen.near_bytes == 0 {
            self.demotes = false;
            return;
        }
        if self.samples < JUDGED_SAMPLES {
            return;
        }
        let answered_ppm = 1_000_000 - self.spared.left_ppm(seen.near_bytes);
        let part_ppm = seen.near_bytes * 1_000_000 / seen.absent_bytes.max(seen.near_bytes);
        let more_ppm = if self.demotes { DEMOTES_PPM / 2 } else { DEMOTES_PPM };
        self.demotes = answered_ppm > part_ppm + more_ppm && period.behind_ns > 2 * period.near_ns;
    }

    /// Takes an observation. Returns the share in parts of `PARTS`, if it changed.
    pub fn observe(&mut self, seen: &Seen) -> Option<u64> {
        let (near, behind) =
            (seen.near.since(self.before.near), seen.behind.since(self.before.behind));
        // In the child of a fork the pager's counts start from zero.
        let rescues = seen.rescues.checked_sub(self.before.rescues).unwrap_or(seen.rescues);
        if let Some(parts) = self.first_choice(seen) {
            (self.parts, self.is_tried) = (parts, true);
            return Some(parts);
        }
        if near.count + behind.count < JUDGED_WAITS {
            return None;
        }
        self.before = *seen;
        (self.near, self.behind) = (self.near.fading(near), self.behind.fading(behind));
        self.rescues = self.rescues / 2 + rescues;
        self.staged_bytes = self.staged_bytes / 2 + seen.staged_bytes / 2;
        // Sometimes a fetch waits for much that is queued before it; that says nothing about
        // compressed memory.
        self.near_ns = self.near.average_ns(self.near_ns).min(self.near_ns + self.near_ns / 8);
        self.behind_ns = self
            .behind
            .average_ns(self.behind_ns)
            .min(self.behind_ns + self.behind_ns / BEHIND_GROWTH);
        let near_ns = self.near_ns + OVERHEAD_NS;
        let period = Period {
            near: self.near.count,
            behind: self.behind.count,
            near_ns,
            behind_ns: (self.behind_ns + OVERHEAD_NS).max(near_ns),
            edge_per_mib: (self.rescues << 20) / self.staged_bytes.max(1 << 20),
        };
        self.packing = seen.packing().unwrap_or(self.packing);
        self.judge_demoting(seen, &period);
        self.drops = seen.is_full && period.behind * DROPS_PER_NEAR > period.near;
        let parts = self.choose(seen, &period);
        if self.samples > 4 * JUDGED_SAMPLES {
            self.spared.0.iter_mut().for_each(|bytes| *bytes /= 2);
            self.samples /= 2;
        }
        if parts < self.parts {
            self.bar.set(self.parts, seen.absent_bytes);
        } else {
            self.bar.judged(seen.absent_bytes);
        }
        let changed = parts != self.parts;
        if changed {
            self.is_tried = true;
            // What was observed belongs to the old share.
            (self.spared, self.samples) = (Curve::default(), 0);
            self.regrets = [0; PARTS as usize];
        }
        self.parts = parts;
        changed.then_some(parts)
    }

    /// The share for what has been evicted, when the initial one is full for the first time, if it
    /// packs well.
    fn first_choice(&self, seen: &Seen) -> Option<u64> {
        let is_due = !self.is_tried && seen.is_full;
        (is_due && seen.packing()? >= PACKS_WELL << 8).then_some(AT_FIRST)
    }

    /// The share to use from here on.
    fn choose(&mut self, seen: &Seen, period: &Period) -> u64 {
        let now = self.cost_of_more(seen, period, 0);
        if let Some(parts) = self.choose_smaller(seen, period, now) {
            return parts;
        }
        self.choose_larger(seen, period, now).unwrap_or(self.parts)
    }

    /// The larger share against which the present one has the greatest regret, beyond the cost of
    /// moving there. It can be far from the present one: as long as most fetches are from behind,
    /// each step saves about as much as it costs, and only the last ones save much.
    fn choose_larger(&mut self, seen: &Seen, period: &Period, now: u128) -> Option<u64> {
        if !seen.is_full {
            return None;
        }
        let mut best = (0, None);
        for parts in self.parts + 1..(MOST + 1).min(self.bar.parts) {
            let bytes = seen.limit_bytes / PARTS * (parts - self.parts);
            let spared_min = if parts == self.parts + 1 { SPARED_BY_MORE } else { SPARED_BY_MANY };
            let cost = self.cost_of_more(seen, period, bytes);
            let regret = self.regret(parts, now, cost, spared_min);
            if regret > self.moving(seen, bytes) + best.0 {
                best = (regret - self.moving(seen, bytes), Some(parts));
            }
        }
        best.1
    }

    /// Adds to the regret of not having had a share of `parts`, which would have cost `cost`
    /// instead of `now`, if it would have spared one part in `spared_min`.
    fn regret(&mut self, parts: u64, now: u128, cost: u128, spared_min: u128) -> u128 {
        let regret = &mut self.regrets[parts as usize];
        // Half of the period was counted before.
        *regret =
            if cost < now - now / spared_min { *regret + (now - cost) / 2 } else { *regret / 2 };
        *regret
    }

    /// The smaller share against which the present one has the greatest regret, beyond the cost of
    /// moving there.
    fn choose_smaller(&mut self, seen: &Seen, period: &Period, now: u128) -> Option<u64> {
        // While a larger share fills, what was just evicted for it is fetched again.
        if self.samples < JUDGED_SAMPLES || !seen.is_full {
            return None;
        }
        let mut best = (0, None);
        for parts in LEAST..self.parts {
            let bytes = seen.limit_bytes / PARTS * (self.parts - parts);
            let cost = self.cost_of_less(seen, period, bytes);
            let regret = self.regret(parts, now, cost, SPARED_BY_LESS);
            if regret > self.moving(seen, bytes) + best.0 {
                best = (regret - self.moving(seen, bytes), Some(parts));
            }
        }
        best.1
    }

    /// Cost of the period with `bytes` less for compressed memory.
    fn cost_of_less(&self, seen: &Seen, period: &Period, bytes: u64) -> u128 {
        let packed = self.held_by(bytes);
        let left_ppm = self.spared.left_ppm(bytes);
        let fetches = wide(period.near + period.behind);
        if self.demotes {
            let fetches = fetches * wide(left_ppm) / 1_000_000;
            let behind = self
                .behind_with(period, (seen.near_bytes + bytes).saturating_sub(packed))
                .min(fetches);
            return (fetches - behind) * wide(period.near_ns) + behind * wide(period.behind_ns);
        }
        let moved = (wide(period.near) * wide(packed) / wide(seen.near_bytes.max(1)))
            .min(wide(period.near));
        let near = wide(period.near) - moved;
        let all =
            near * wide(period.near_ns) + (wide(period.behind) + moved) * wide(period.behind_ns);
        all * wide(left_ppm) / 1_000_000
    }

    /// Cost of the period with `bytes` more for compressed memory.
    fn cost_of_more(&self, seen: &Seen, period: &Period, bytes: u64) -> u128 {
        let packed = self.held_by(bytes);
        let fetches = wide(period.near + period.behind);
        // What is behind and also local needs no fetch.
        let absent_behind = seen.absent_bytes.saturating_sub(seen.near_bytes) + bytes;
        let behind = if self.demotes {
            // Compressed memory and the program's memory together hold this much more.
            self.behind_with(period, seen.near_bytes + packed.saturating_sub(bytes))
        } else {
            let moved = wide(period.behind) * wide(packed) / wide(absent_behind.max(1));
            wide(period.behind).saturating_sub(moved)
        };
        let known = (fetches - behind.min(fetches)) * wide(period.near_ns)
            + behind.min(fetches) * wide(period.behind_ns);
        known + known * self.added_ppm(seen, period, bytes) / 1_000_000
    }

    /// Fetches that `bytes` less for the program would add, in millionths. Without accessed bits
    /// all bytes are assumed to be touched as densely as those that are evicted next.
    fn added_ppm(&self, seen: &Seen, period: &Period, bytes: u64) -> u128 {
        let fetches = wide(period.near + period.behind).max(1);
        match seen.growth {
            Some(growth) => growth.added_ppm(bytes).map_or(u128::from(u64::MAX), wide),
            None => (wide(period.edge_per_mib) * wide(bytes) * 1_000_000 / fetches) >> 20,
        }
    }

    /// Bytes of the program that `bytes` of compressed memory hold.
    fn held_by(&self, bytes: u64) -> u64 {
        ((self.packing * wide(bytes)) >> 8) as u64
    }

    /// Cost of moving what `bytes` of compressed memory hold, in ns.
    fn moving(&self, seen: &Seen, bytes: u64) -> u128 {
        wide(self.held_by(bytes).min(seen.absent_bytes + bytes)) / 4096 * wide(MOVED_NS)
    }

    /// Fetches from behind, if compressed memory held the last evicted `held_bytes`.
    fn behind_with(&self, period: &Period, held_bytes: u64) -> u128 {
        // Relative to what was observed, not to what should have been.
        let now_ppm = self.spared.left_ppm(self.before.near_bytes);
        let then_ppm = self.spared.left_ppm(held_bytes);
        (wide(period.behind) * wide(then_ppm))
            .checked_div(wide(now_ppm))
            .unwrap_or_else(|| wide(period.behind))
    }
}

fn wide(value: u64) -> u128 {
    u128::from(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::bucket;
    use crate::working_set::WorkingSet;
    use hiroma_units::{BlockId, ExtentNo};

    const MIB: u64 = 1 << 20;

    fn seen(round: u64, behind: u64, rescues: u64) -> Seen {
        Seen {
            near: Waits { count: round * 100, total_ns: round * 100 * 10_000 },
            behind: Waits { count: round * behind, total_ns: round * behind * 90_000 },
            rescues: round * rescues,
            staged_bytes: 4 * MIB,
            near_bytes: 30 * MIB,
            packed_bytes: 12 * MIB,
            limit_bytes: 128 * MIB,
            is_full: true,
            growth: None,
            absent_bytes: 150 * MIB,
        }
    }

    fn run(
        sharing: &mut Sharing,
        rounds: std::ops::RangeInclusive<u64>,
        at: impl Fn(u64) -> Seen,
        spared_at: Option<u64>,
    ) -> Option<u64> {
        let mut last = None;
        for round in rounds {
            (0..64).for_each(|_| sharing.on_fetch(bucket(spared_at), 4096));
            last = sharing.observe(&at(round)).or(last);
        }
        last
    }

    #[test]
    fn many_fetches_from_behind_grow_the_share() {
        let at = |round| seen(40 * round, 100, 0);
        assert_eq!(run(&mut Sharing::new(), 1..=60, at, None), Some(24));
        // Few fetches are not worth moving what is in the stores.
        let few = run(&mut Sharing::new(), 1..=10, |round| seen(round, 100, 0), None);
        assert_eq!(few, None);
    }

    /// Uniform accesses: a share of 16 parts is worthwhile, although one more part is not.
    fn uniform(round: u64, is_used: bool) -> Seen {
        let mut set = WorkingSet::default();
        let resident = [u64::MAX; 8];
        for turn in 0..64u64 {
            let used = if is_used { u64::MAX } else { 0x0101_0101_0101_0101 << (turn * 5 % 8) };
            set.read(ExtentNo(0), &[used; 8], &resident);
            (0..400).for_each(|page| set.fetched(BlockId::new(page, 0)));
            set.end_read();
        }
        Seen { growth: set.growth(100 * MIB), packed_bytes: 10 * MIB, ..seen(round, 1000, 0) }
    }

    #[test]
    fn content_that_packs_well_gets_more_room_at_once() {
        let full = |packed_bytes| Seen {
            packed_bytes,
            ..Seen { near: Waits::default(), ..seen(1, 0, 0) }
        };
        assert_eq!(Sharing::new().observe(&full(10 * MIB)), None, "3 bytes in one");
        let mut sharing = Sharing::new();
        assert_eq!(sharing.observe(&Seen { is_full: false, ..full(6 * MIB) }), None);
        assert_eq!(sharing.observe(&full(6 * MIB)), Some(AT_FIRST));
        assert_eq!(sharing.observe(&full(6 * MIB)), None, "once");
    }

    #[test]
    fn share_far_from_the_present_one_is_chosen() {
        let mut sharing = Sharing::new();
        let first = (1..=400).find_map(|round| sharing.observe(&uniform(round, false)));
        assert!(first > Some(12), "{first:?}");
    }

    #[test]
    fn share_leaves_room_for_what_is_always_in_use() {
        let chosen = run(&mut Sharing::new(), 1..=400, |round| uniform(round, true), None);
        assert_eq!(chosen, None);
    }

    #[test]
    fn cold_store_behind_keeps_the_share() {
        assert_eq!(run(&mut Sharing::new(), 1..=40, |round| seen(round, 1, 50), None), None);
    }

    #[test]
    fn share_stays_when_growth_would_evict_hot_data() {
        assert_eq!(run(&mut Sharing::new(), 1..=40, |round| seen(round, 100, 400), None), None);
    }

    #[test]
    fn share_backs_off_beyond_the_edge() {
        let mut sharing = Sharing::new();
        let at = |round| seen(40 * round, 100, 0);
        assert_eq!(run(&mut sharing, 1..=60, at, None), Some(24));
        // 10 MiB more would have avoided nearly all of them.
        let less = run(&mut sharing, 61..=63, at, Some(10 * MIB)).unwrap();
        assert!((12..=21).contains(&less), "{less}");
        let after = run(&mut sharing, 64..=67, at, None);
        assert!(after.is_none_or(|parts| parts < 24), "{after:?}");
    }

    #[test]
    fn few_fetches_move_little() {
        let mut sharing = Sharing::new();
        let at = |round: u64| seen(40 * round.min(60) + round, 100, 0);
        assert_eq!(run(&mut sharing, 1..=60, at, None), Some(24));
        assert_eq!(run(&mut sharing, 61..=62, at, Some(10 * MIB)), None);
    }

    #[test]
    fn burst_of_slow_answers_does_not_set_speed() {
        let slow = |round| Seen {
            behind: Waits { count: round * 10, total_ns: round * 10 * 20_000_000 },
            ..seen(round, 0, 0)
        };
        assert_eq!(run(&mut Sharing::new(), 1..=2, slow, None), None);
    }

    #[test]
    fn share_stays_while_there_is_room() {
        assert_eq!(
            run(
                &mut Sharing::new(),
                1..=40,
                |round| Seen { is_full: false, ..seen(round, 100, 10) },
                None
            ),
            None
        );
    }

    #[test]
    fn blocks_are_demoted_when_recent_evictions_refault() {
        let mut sharing = Sharing::new();
        run(&mut sharing, 1..=2, |round| seen(round, 100, 400), Some(40 * MIB));
        assert!(!sharing.demotes(), "compressed memory holds 30 MiB");
        run(&mut sharing, 3..=12, |round| seen(round, 100, 400), Some(20 * MIB));
        assert!(sharing.demotes());
    }

    #[test]
    fn nothing_is_demoted_under_uniform_fetches() {
        let mut sharing = Sharing::new();
        for round in 1..=20 {
            (0..150).for_each(|distance| sharing.on_fetch(bucket(Some(distance * MIB)), 4096));
            sharing.observe(&seen(round, 100, 400));
        }
        assert!(!sharing.demotes());
    }
}
