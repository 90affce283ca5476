//! What waiting for far memory has cost, and how much of it a larger local memory would have
//! avoided.

/// Buckets of a [`Curve`]: four for each doubling of the extra bytes, from [`FIRST_BYTES`] on; the
/// last is for what no size would avoid.
pub const BUCKETS: usize = 96;
/// End of the first bucket.
const FIRST_BYTES: u64 = 256 << 10;

/// The bucket of a fetch that `extra_bytes` more of local memory would have avoided. None: the
/// number is not known.
pub fn bucket(extra_bytes: Option<u64>) -> usize {
    let Some(bytes) = extra_bytes else { return BUCKETS - 1 };
    if bytes <= FIRST_BYTES {
        return 0;
    }
    let below = bytes - 1;
    let power = below.ilog2();
    let quarter = (below >> (power - 2) & 3) as usize;
    ((power - FIRST_BYTES.ilog2()) as usize * 4 + quarter + 1).min(BUCKETS - 1)
}

/// The most extra bytes that a fetch in this bucket needs. None for the last bucket.
pub fn bucket_end(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(FIRST_BYTES),
        _ if bucket >= BUCKETS - 1 => None,
        _ => Some(((5 + (bucket as u64 - 1) % 4) * (FIRST_BYTES / 4)) << ((bucket - 1) / 4)),
    }
}

/// The extra bytes of a limit that keep `kept_bytes` more in local memory, of `far_bytes` that were
/// evicted. A block that was evicted once keeps its compressed copy, also after it was fetched;
/// these copies take `packed_bytes` of the limit. Only a limit at which nothing is evicted at all
/// needs none of them.
pub fn extra_limit(kept_bytes: u64, packed_bytes: u64, far_bytes: u64) -> u64 {
    kept_bytes.min(far_bytes.saturating_sub(packed_bytes).max(far_bytes / 8))
}

/// Amounts (bytes fetched, or time waited) by the extra local memory that would have avoided them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curve(pub [u64; BUCKETS]);

impl Default for Curve {
    fn default() -> Curve {
        Curve([0; BUCKETS])
    }
}

impl Curve {
    /// The sum of all amounts.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The same curve with another total. If nothing is known, all of it is beyond any size.
    pub fn scaled(&self, total: u64) -> Curve {
        let known = u128::from(self.total());
        let mut scaled = Curve(self.0.map(|amount| {
            (u128::from(amount) * u128::from(total)).checked_div(known).unwrap_or(0) as u64
        }));
        scaled.0[BUCKETS - 1] += total - scaled.total();
        scaled
    }

    /// The share that is left with `extra_bytes` more, in millionths.
    pub fn left_ppm(&self, extra_bytes: u64) -> u64 {
        let left: u64 = (0..BUCKETS)
            .filter(|&at| bucket_end(at).is_none_or(|end| end > extra_bytes))
            .map(|at| self.0[at])
            .sum();
        ppm(left, self.total())
    }

    /// Sizes at which something is avoided, with the share that is left at each, in millionths.
    pub fn points(&self) -> Vec<(u64, u64)> {
        let used = (0..BUCKETS).filter(|&at| self.0[at] > 0).filter_map(bucket_end);
        used.map(|extra| (extra, self.left_ppm(extra))).collect()
    }

    /// The smallest extra size that avoids most of what can be avoided, with the share that is left
    /// there in millionths. None: no size avoids much.
    ///
    /// Most is three quarters, because the next quarter often takes as much memory again; and at
    /// least a fifth of the total must be avoided.
    pub fn advice(&self) -> Option<(u64, u64)> {
        let least = self.points().last().map(|&(_, left)| left)?;
        let spared = 1_000_000u64.saturating_sub(least);
        let (extra, left) =
            self.points().into_iter().find(|&(_, left)| (1_000_000 - left) * 4 >= spared * 3)?;
        (1_000_000 - left >= 200_000).then_some((extra, left))
    }
}

/// `part` of `whole`, in millionths; 0 if `whole` is 0.
pub fn ppm(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1_000_000).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// Time that at least one of several intervals covers. Intervals are added in about the order of
/// their ends.
#[derive(Default)]
pub struct Covered {
    /// Disjoint, in order; the oldest are dropped.
    parts: std::collections::VecDeque<(u64, u64)>,
}

/// Intervals that are remembered: no more threads than that wait for so short a time each.
const PARTS_MAX: usize = 64;

impl Covered {
    /// Adds an interval; returns how much of it no other has covered.
    pub fn add(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut from, mut to, mut before) = (start, end, 0);
        let mut later = Vec::new();
        while let Some(&(part_start, part_end)) =
            self.parts.back().filter(|&&(_, part_end)| part_end >= from)
        {
            self.parts.pop_back();
            if part_start > to {
                later.push((part_start, part_end));
                continue;
            }
            before += part_end - part_start;
            (from, to) = (from.min(part_start), to.max(part_end));
        }
        self.parts.push_back((from, to));
        self.parts.extend(later.into_iter().rev());
        if self.parts.len() > PARTS_MAX {
            self.parts.pop_front();
        }
        to - from - before
    }
}

/// A table of the ranges with the most faults: few entries, whatever the number of ranges (the
/// space-saving algorithm of Metwally, Agrawal and El Abbadi, 2005). A range with more than
/// 1/[`RANGES_MAX`] of all faults is certain to be in it.
#[derive(Default)]
pub struct Busiest {
    entries: Vec<(u64, u64)>,
    last: usize,
}

/// Ranges in the table.
pub const RANGES_MAX: usize = 48;

impl Busiest {
    /// Adds a fault in `range`. Returns its entry, and whether the entry belonged to another range
    /// before.
    pub fn add(&mut self, range: u64) -> (usize, bool) {
        if self.entries.get(self.last).is_none_or(|&(other, _)| other != range) {
            let found = self.entries.iter().position(|&(other, _)| other == range);
            self.last = found.unwrap_or(self.entries.len());
        }
        let is_new = self.last == self.entries.len();
        if is_new && self.entries.len() < RANGES_MAX {
            self.entries.push((range, 0));
        } else if is_new {
            let fewest = self
                .entries
                .iter()
                .enumerate()
                .min_by_key(|&(_, &(_, count))| count)
                .map_or(0, |(at, _)| at);
            self.last = fewest;
            self.entries[fewest].0 = range;
        }
        self.entries[self.last].1 += 1;
        (self.last, is_new)
    }

    /// The faults of an entry, including those of the ranges that it belonged to before.
    pub fn count(&self, entry: usize) -> u64 {
        self.entries[entry].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_lies_in_its_bucket() {
        for bytes in [
            0,
            1,
            262_144,
            262_145,
            327_680,
            327_681,
            524_288,
            1 << 20,
            (1 << 20) + 1,
            1_500_000,
            77 << 30,
            1 << 40,
        ] {
            let at = bucket(Some(bytes));
            assert!(
                bucket_end(at).unwrap() >= bytes
                    && (at == 0 || bucket_end(at - 1).unwrap() < bytes),
                "{bytes} {at}"
            );
        }
        assert!((1..BUCKETS - 1).all(|at| bucket(bucket_end(at)) == at));
        assert_eq!(
            (bucket(None), bucket(Some(u64::MAX)), bucket_end(BUCKETS - 1)),
            (BUCKETS - 1, BUCKETS - 1, None)
        );
    }

    fn curve(parts: &[(u64, u64)]) -> Curve {
        let mut curve = Curve::default();
        parts.iter().for_each(|&(extra, amount)| curve.0[bucket(Some(extra))] += amount);
        curve
    }

    #[test]
    fn advice_is_smallest_size_avoiding_most_loss() {
        // A little early, most at 32 MiB, the rest only at 10 GiB.
        let mut loss = curve(&[(1 << 20, 10), (32 << 20, 80), (10 << 30, 10)]);
        assert_eq!(loss.advice(), Some((32 << 20, 100_000)));
        assert_eq!(
            (loss.left_ppm(0), loss.left_ppm(1 << 20), loss.left_ppm(u64::MAX)),
            (1_000_000, 900_000, 0)
        );
        // Nine tenths of all are beyond any size.
        loss.0[BUCKETS - 1] = 900;
        assert_eq!(loss.advice(), None);
        assert_eq!(Curve::default().advice(), None);
    }

    #[test]
    fn sampled_losses_are_scaled_up() {
        let scaled = curve(&[(1 << 20, 10), (32 << 20, 20)]).scaled(3001);
        assert_eq!(
            (scaled.total(), scaled.left_ppm(1 << 20), scaled.0[BUCKETS - 1]),
            (3001, ppm(2001, 3001), 1)
        );
        assert_eq!(Curve::default().scaled(7).0[BUCKETS - 1], 7);
    }

    #[test]
    fn no_evictions_means_no_packed_copies() {
        assert_eq!(extra_limit(100, 0, 1000), 100);
        assert_eq!((extra_limit(700, 250, 1000), extra_limit(1000, 250, 1000)), (700, 750));
        assert_eq!(extra_limit(1000, 5000, 1000), 125);
        assert_eq!(extra_limit(0, 0, 0), 0);
    }

    #[test]
    fn covered_time_matches_a_bitmap() {
        let mut random = hiroma_units::Rng::new(1);
        let mut next = |below: u64| random.below_u64(below);
        let (mut covered, mut bits, mut sum) = (Covered::default(), vec![false; 40_000], 0);
        for step in 0..1000u64 {
            let end = 200 + step * 30 + next(20);
            let start = end - next(200);
            sum += covered.add(start, end);
            bits[start as usize..end as usize].fill(true);
            assert_eq!(sum, bits.iter().filter(|&&bit| bit).count() as u64, "step {step}");
        }
    }

    #[test]
    fn busiest_ranges_are_in_the_table() {
        let mut busiest = Busiest::default();
        for turn in 0..20_000u64 {
            let range = if turn % 3 == 0 { turn % 5 } else { 100 + turn % 1000 };
            busiest.add(range);
        }
        let find = |range| {
            busiest.entries.iter().find(|&&(other, _)| other == range).map(|&(_, count)| count)
        };
        for range in 0..5 {
            // Each has a fifteenth of the faults, or the table's share more.
            let count = find(range).unwrap();
            assert!((1333..1333 + 20_000 / RANGES_MAX as u64 + 1).contains(&count), "{count}");
        }
    }
}
