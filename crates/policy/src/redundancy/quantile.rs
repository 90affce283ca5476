//! A running estimate of the 95th percentile, in integers and constant memory.

/// Rises by an eighth with a larger sample and falls by a 152nd with a smaller one: both balance
/// where one sample in twenty is larger.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantile95 {
    value: u64,
}

impl Quantile95 {
    /// No sample yet.
    pub const ZERO: Quantile95 = Quantile95 { value: 0 };

    /// Takes a sample into account.
    pub fn observe(&mut self, sample: u64) {
        if self.value == 0 {
            self.value = sample.max(1);
        } else if sample > self.value {
            // An outlier counts like any other larger sample.
            self.value = self.value.saturating_add(self.value / 8 + 1);
        } else {
            self.value -= self.value / 152;
        }
    }

    /// The estimate; 0 before the first sample.
    pub fn value(self) -> u64 {
        self.value
    }
}

/// A mean in which the last eight samples or so count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    value: u64,
}

impl Mean {
    /// No sample yet.
    pub const ZERO: Mean = Mean { value: 0 };

    /// Takes a sample into account.
    pub fn observe(&mut self, sample: u64) {
        self.value =
            if self.value == 0 { sample } else { self.value - self.value / 8 + sample / 8 };
    }

    /// The estimate; 0 before the first sample.
    pub fn value(self) -> u64 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_converges_to_the_95th_percentile() {
        let mut random = hiroma_units::Rng::new(7);
        let mut quantile = Quantile95::default();
        let (mut above, rounds) = (0, 40_000u64);
        for round in 0..rounds {
            let sample = 10_000 + random.below_u64(90_000);
            above += u64::from(round > 1000 && sample > quantile.value());
            quantile.observe(sample);
        }
        let share_ppm = above * 1_000_000 / rounds;
        assert!((35_000..70_000).contains(&share_ppm), "{share_ppm}");
    }
}
