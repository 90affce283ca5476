//! Means with confidence intervals over seeds or turns, and paired differences.
//!
//! Runs of different seeds are independent, so that Student's t distribution gives the interval of
//! their mean (Law, Simulation Modeling and Analysis, section 4.5). Two policies that ran with the
//! same seeds had the same processes (common random numbers, section 11.2): the paired differences
//! vary less than the runs themselves, and their interval distinguishes the two policies.

use serde::{Deserialize, Serialize};

/// A mean over seeds, and half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub mean: f64,
    /// The true mean is within `mean` ± `half_width` with 95 % confidence; none with fewer than two
    /// seeds.
    pub half_width: Option<f64>,
    /// Number of seeds.
    pub n: usize,
}

/// How two sets of runs with the same seeds compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The first is smaller.
    Smaller,
    /// The first is larger.
    Larger,
    /// The seeds do not distinguish the two.
    NotToldApart,
}

impl Estimate {
    /// The mean of `values`, one per seed; none if there are none.
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let half_width = (n > 1).then(|| {
            let variance =
                values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
            let half_width = student_t_975(n - 1) * (variance / n as f64).sqrt();
            // Equal values differ from their mean only by rounding errors.
            if half_width < 1e-12 * mean.abs() { 0.0 } else { half_width }
        });
        Some(Estimate { mean, half_width, n })
    }

    /// The mean of the differences `first - second`, seed by seed.
    ///
    /// # Panics
    /// If the two have different numbers of seeds.
    pub fn of_differences(first: &[f64], second: &[f64]) -> Option<Estimate> {
        assert_eq!(
            first.len(),
            second.len(),
            "paired differences need the same seeds on both sides"
        );
        let differences: Vec<f64> =
            first.iter().zip(second).map(|(first, second)| first - second).collect();
        Estimate::of(&differences)
    }

    /// The mean of the logarithms of the ratios `over / under`, seed by seed: it represents how
    /// many times as long one takes as the other, where runs of different seeds differ by factors.
    /// None if a ratio is not finite.
    ///
    /// # Panics
    /// If the two have different numbers of seeds.
    pub fn of_log_ratios(over: &[f64], under: &[f64]) -> Option<Estimate> {
        assert_eq!(over.len(), under.len(), "paired ratios need the same seeds on both sides");
        let logs: Vec<f64> =
            over.iter().zip(under).map(|(over, under)| (over / under).ln()).collect();
        Estimate::of(&logs).filter(|estimate| estimate.mean.is_finite())
    }

    /// The lower end of the interval.
    pub fn low(&self) -> f64 {
        self.mean - self.half_width.unwrap_or(0.0)
    }

    /// The upper end of the interval.
    pub fn high(&self) -> f64 {
        self.mean + self.half_width.unwrap_or(0.0)
    }

    /// The verdict of an estimate of differences.
    pub fn verdict(&self) -> Verdict {
        match self.half_width {
            Some(half) if self.mean + half < 0.0 => Verdict::Smaller,
            Some(half) if self.mean - half > 0.0 => Verdict::Larger,
            _ => Verdict::NotToldApart,
        }
    }
}

/// Whether the mean of `first` is smaller than that of `second`, by paired differences over the
/// same seeds.
pub fn compare_paired(first: &[f64], second: &[f64]) -> Verdict {
    Estimate::of_differences(first, second)
        .map_or(Verdict::NotToldApart, |difference| difference.verdict())
}

/// The 97.5 % quantile of Student's t distribution with `degrees` degrees of freedom: a table up to
/// 30, then the expansion by Cornish and Fisher (Abramowitz and Stegun, 26.7.5), whose error there
/// is below 0.0001.
pub fn student_t_975(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010,
        2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739,
        2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
    ];
    assert!(degrees > 0, "one value has no spread");
    if let Some(&quantile) = TABLE.get(degrees - 1) {
        return quantile;
    }
    let (z, v) = (1.959_963_984_540_054_f64, degrees as f64);
    z + (z.powi(3) + z) / (4.0 * v)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * v * v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_printed_tables() {
        for (degrees, quantile) in [
            (1, 12.706),
            (4, 2.776),
            (9, 2.262),
            (30, 2.042),
            (40, 2.021),
            (60, 2.000),
            (120, 1.980),
            (1000, 1.962),
        ] {
            assert!(
                (student_t_975(degrees) - quantile).abs() < 0.0006,
                "{degrees}: {}",
                student_t_975(degrees)
            );
        }
    }

    #[test]
    fn interval_matches_hand_calculation() {
        // Mean 3, variance 2.5, 4 degrees of freedom: 2.7764 * sqrt(2.5 / 5).
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((estimate.mean, estimate.n), (3.0, 5));
        assert!((estimate.half_width.unwrap() - 1.963_21).abs() < 1e-4);
        assert!(
            (estimate.low() - 1.036_79).abs() < 1e-4 && (estimate.high() - 4.963_21).abs() < 1e-4
        );
    }

    #[test]
    fn equal_values_have_a_zero_interval() {
        assert_eq!(Estimate::of(&[0.1, 0.1, 0.1]).unwrap().half_width, Some(0.0));
    }

    #[test]
    fn one_seed_has_a_mean_and_no_interval() {
        assert_eq!(Estimate::of(&[7.0]), Some(Estimate { mean: 7.0, half_width: None, n: 1 }));
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(compare_paired(&[1.0], &[2.0]), Verdict::NotToldApart);
    }

    #[test]
    fn pairing_separates_overlapping_runs() {
        let first = [10.0, 20.0, 30.0, 40.0];
        let second = [11.0, 21.1, 30.9, 41.0];
        let (one, two) = (Estimate::of(&first).unwrap(), Estimate::of(&second).unwrap());
        assert!(one.high() > two.low(), "the intervals overlap");
        assert_eq!(compare_paired(&first, &second), Verdict::Smaller);
        assert_eq!(compare_paired(&second, &first), Verdict::Larger);
        assert_eq!(compare_paired(&first, &[12.0, 18.0, 31.0, 39.0]), Verdict::NotToldApart);
    }

    #[test]
    fn log_ratios_separate_runs_differing_by_factors() {
        let (under, over) = ([1.0, 4.0, 30.0, 2.0], [1.2, 4.9, 35.0, 2.5]);
        let ratio = Estimate::of_log_ratios(&over, &under).unwrap();
        assert!(
            (ratio.mean.exp() - (1.2f64 * 1.225 * 35.0 / 30.0 * 1.25).powf(0.25)).abs() < 1e-12
        );
        assert_eq!(ratio.verdict(), Verdict::Larger);
        assert_eq!(compare_paired(&over, &under), Verdict::NotToldApart);
        assert_eq!(Estimate::of_log_ratios(&[1.0, 0.0], &[1.0, 1.0]), None);
    }

    #[test]
    fn intervals_cover_the_mean_95_percent() {
        // Sums of twelve uniform numbers are nearly normal; their mean is 6.
        let mut random = hiroma_units::Rng::new(1);
        let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut held = 0;
        for _ in 0..2000 {
            let values: Vec<f64> = (0..10).map(|_| (0..12).map(|_| uniform()).sum()).collect();
            let estimate = Estimate::of(&values).unwrap();
            held += u32::from(estimate.low() <= 6.0 && 6.0 <= estimate.high());
        }
        assert!((1870..=1930).contains(&held), "{held} of 2000");
    }
}
