//! Distribution of times: a log-linear histogram of whole nanoseconds with an exact sum, small
//! enough to store one per run.

use serde::{Deserialize, Serialize};

/// Base-2 logarithm of the buckets per doubling: the resolution is 1.6 %.
const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;

/// Counts of values by size. The sum, the minimum and the maximum are exact; quantiles are accurate
/// to 1.6 %.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
    /// By bucket, up to the last one that is not empty.
    buckets: Vec<u64>,
}

fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    ((u64::from(shift + 1) << SUB_BITS) + (value >> shift) - SUB) as usize
}

/// Smallest value of a bucket.
fn bucket_start(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB { bucket } else { (SUB + bucket % SUB) << (bucket / SUB - 1) }
}

impl Histogram {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        let bucket = bucket(value);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum += value;
    }

    /// Adds all values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Exact sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Exact mean; none without values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Largest value; 0 without values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Smallest value; 0 without values.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// The `permille`/1000 quantile, accurate to 1.6 %; none without values.
    pub fn quantile(&self, permille: u32) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let wanted = (u128::from(self.count) * u128::from(permille)).div_ceil(1000).max(1) as u64;
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let (start, end) = (bucket_start(index), bucket_start(index + 1));
                return Some((start + (end - start) / 2).clamp(self.min, self.max));
            }
        }
        Some(self.max)
    }

    /// Buckets that are not empty, as (smallest value, count), in order of values.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(index, &count)| (bucket_start(index), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_one_another_without_gaps() {
        for index in 0..2000 {
            let start = bucket_start(index);
            assert_eq!(bucket(start), index);
            assert_eq!(bucket(bucket_start(index + 1) - 1), index);
        }
        assert!(bucket(u64::MAX) < 4000);
    }

    proptest! {
        #[test]
        fn quantiles_are_near_those_of_the_sorted_values(mut values in prop::collection::vec(0u64..1 << 40, 1..300), permille in 0u32..=1000) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|&value| histogram.add(value));
            values.sort_unstable();
            let rank = (values.len() * permille as usize).div_ceil(1000).max(1) - 1;
            let (exact, found) = (values[rank], histogram.quantile(permille).unwrap());
            prop_assert!(exact.abs_diff(found) <= exact / 64 + 1, "{exact} {found}");
            prop_assert_eq!(histogram.sum(), values.iter().sum::<u64>());
        }

        #[test]
        fn merged_histograms_equal_the_whole(values in prop::collection::vec(0u64..1 << 40, 0..100), cut in 0usize..100) {
            let (mut whole, mut left, mut right) = (Histogram::default(), Histogram::default(), Histogram::default());
            for (place, &value) in values.iter().enumerate() {
                whole.add(value);
                if place < cut { left.add(value) } else { right.add(value) }
            }
            left.merge(&right);
            prop_assert_eq!(left, whole);
        }
    }
}
