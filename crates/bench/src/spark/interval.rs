//! The statistical significance of paired repetitions.

use hiroma_report::Spread;

/// An interval that contains the true median with a probability of at least 95 % (from the sign
/// test, without assumptions about the distribution), and that probability; none with fewer than
/// six repetitions.
pub fn of_median(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    // The probability that at most `k` of `n` tosses are heads.
    let below = |k: usize| {
        let mut term = 0.5f64.powi(n as i32);
        let mut sum = term;
        for at in 0..k {
            term *= (n - at) as f64 / (at + 1) as f64;
            sum += term;
        }
        sum
    };
    let outside = (0..n / 2).take_while(|&k| 2.0 * below(k) <= 0.05).last()?;
    Some((sorted[outside], sorted[n - 1 - outside], 1.0 - 2.0 * below(outside)))
}

/// The result as text.
pub fn describe(values: &[f64]) -> String {
    let Some(spread) = Spread::of(values) else { return String::new() };
    match of_median(values) {
        Some((low, high, chance)) => {
            let says = if low > 1.0 {
                "slower"
            } else if high < 1.0 {
                "faster"
            } else {
                "not told apart from 1"
            };
            format!(
                "{} pairs, median between {low:.3} and {high:.3} ({:.0} %): {says}",
                spread.n,
                100.0 * chance
            )
        }
        None => format!("{} pairs: too few for an interval", spread.n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_pairs_leave_two_out_on_each_side() {
        let values: Vec<f64> = (1..=12).map(f64::from).collect();
        let (low, high, chance) = of_median(&values).unwrap();
        assert_eq!((low, high), (3.0, 10.0));
        assert!((chance - 0.961).abs() < 0.001, "{chance}");
        assert_eq!(of_median(&values[..6]).map(|(low, high, _)| (low, high)), Some((1.0, 6.0)));
        assert_eq!(of_median(&values[..5]), None);
    }

    #[test]
    fn interval_including_one_is_not_significant() {
        assert!(describe(&[0.9, 1.1, 0.95, 1.2, 1.0, 0.8, 1.3]).ends_with("not told apart from 1"));
        assert!(describe(&[0.9; 8]).ends_with("faster") && describe(&[1.1; 8]).ends_with("slower"));
        assert!(describe(&[1.0]).contains("too few"));
    }
}
