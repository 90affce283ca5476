//! Confidence intervals of medians, for effects that are smaller than the differences between
//! rounds.

use hiroma_report::Spread;
use hiroma_units::Rng;

/// Number of times that rounds are resampled.
const DRAWS: usize = 2000;
const SEED: u64 = 19;

/// The median of `of` over the rounds, with its 95 % confidence interval (percentile bootstrap:
/// Efron, 1979). `of` gets as many indices of rounds, below `rounds`, as there are rounds; it
/// returns none where it has no value.
pub fn interval(rounds: usize, of: impl Fn(&[usize]) -> Option<f64>) -> Option<Spread> {
    let all: Vec<usize> = (0..rounds).collect();
    let median = of(&all)?;
    let mut random = Rng::new(SEED);
    let mut drawn = vec![0; rounds];
    let mut values: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            drawn.iter_mut().for_each(|round| *round = random.below_u64(rounds as u64) as usize);
            of(&drawn)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    let at = |percent: f64| values.get((values.len() as f64 * percent / 100.0) as usize).copied();
    // If many of the samples have no value, there is no interval.
    if values.len() * 20 < DRAWS * 19 {
        return None;
    }
    Some(Spread { median, min: at(2.5)?.min(median), max: at(97.5)?.max(median), n: rounds })
}

/// The median of the values themselves, with its interval.
pub fn of_median(values: &[f64]) -> Option<Spread> {
    interval(values.len(), |rounds| median(values, rounds))
}

/// The median of the values with the given indices.
pub fn median(values: &[f64], rounds: &[usize]) -> Option<f64> {
    let chosen: Vec<f64> = rounds.iter().map(|&round| values[round]).collect();
    Spread::of(&chosen).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_interval_is_narrower_than_the_spread() {
        let values: Vec<f64> = (0..99).map(f64::from).collect();
        let found = of_median(&values).unwrap();
        assert_eq!((found.median, found.n), (49.0, 99));
        // By order statistics: 49 +- 1.96 * sqrt(99) / 2, about 39 to 59.
        assert!(
            (36.0..42.0).contains(&found.min) && (56.0..62.0).contains(&found.max),
            "{found:?}"
        );
        let alike = of_median(&[7.0; 5]).unwrap();
        assert_eq!((alike.min, alike.max), (7.0, 7.0));
    }

    #[test]
    fn missing_value_has_no_interval() {
        assert_eq!(of_median(&[]), None);
        let seldom = |rounds: &[usize]| (rounds[0] == 0).then_some(1.0);
        assert_eq!(interval(4, seldom), None);
    }
}
