//! Distributions that are the same on every machine: they use only additions, multiplications,
//! divisions and roots, which are exact to the last bit everywhere, and no mathematical library.

use hiroma_policy::placement::Rng;

/// Entries of the table of the normal distribution.
const STEPS: usize = 4096;
/// One standard deviation in the table's unit.
pub const SIGMA: i64 = 1 << 16;

/// Natural logarithm of a number in (0, 1], to about 1e-13.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // ln m = 2 atanh((m - 1) / (m + 1)), and m is in [1, 2).
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut term, mut sum) = (t * t, t, 0.0);
    for odd in 0..16 {
        sum += term / f64::from(2 * odd + 1);
        term *= square;
    }
    2.0 * sum + exponent as f64 * std::f64::consts::LN_2
}

/// Draws from the exponential distribution with mean `mean`, in whole numbers, at least 1.
pub fn exponential(rng: &mut Rng, mean: f64) -> u64 {
    let uniform = ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    ((-ln(uniform) * mean + 0.5) as u64).max(1)
}

/// The normal distribution as a table of quantiles, with linear interpolation.
#[derive(Debug)]
pub struct Normal(Box<[i32]>);

impl Normal {
    /// Computes the table.
    pub fn new() -> Self {
        let at = |step: usize| {
            // The ends of the table represent the last 1/4096 on either side: half a step inwards.
            let p = (step as f64).clamp(0.125, STEPS as f64 - 0.125) / STEPS as f64;
            (quantile(p) * SIGMA as f64) as i32
        };
        Normal((0..=STEPS).map(at).collect())
    }

    /// The quantile of 28 random bits, in units of 1/[`SIGMA`] standard deviations.
    #[inline]
    pub fn quantile(&self, bits: u32) -> i64 {
        let (step, part) = ((bits >> 16) as usize & (STEPS - 1), i64::from(bits & 0xffff));
        let (low, high) = (i64::from(self.0[step]), i64::from(self.0[step + 1]));
        low + (((high - low) * part) >> 16)
    }

    /// Draws with mean `mean` and standard deviation `sd`, rounded to a whole number.
    pub fn draw(&self, rng: &mut Rng, mean: i64, sd: i64) -> i64 {
        mean + (self.quantile((rng.next_u64() >> 36) as u32) * sd + SIGMA / 2).div_euclid(SIGMA)
    }
}

/// Quantile of the standard normal distribution (Acklam 2003, relative error below 1.2e-9).
fn quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.383_577_518_672_69e2,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e+01,
        1.615858368580409e+02,
        -1.556989798598866e+02,
        6.680131188771972e+01,
        -1.328068155288572e+01,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 5] = [
        7.784695709041462e-03,
        3.224671290700398e-01,
        2.445134137142996e+00,
        3.754408661907416e+00,
        1.0,
    ];
    let polynomial =
        |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, factor| sum * x + factor);
    if p > 0.5 {
        return -quantile(1.0 - p);
    }
    if p < 0.02425 {
        let q = (-2.0 * ln(p)).sqrt();
        return polynomial(&C, q) / polynomial(&D, q);
    }
    let q = p - 0.5;
    polynomial(&A, q * q) * q / polynomial(&B, q * q)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_matches_the_library() {
        for number in 1..2000 {
            let x = f64::from(number) / 2000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "{x}");
        }
        assert!((ln(1e-16) - 1e-16f64.ln()).abs() < 1e-11);
    }

    #[test]
    fn exponential_draws_have_their_mean_and_their_median() {
        let mut rng = Rng::new(3);
        let mut draws: Vec<u64> = (0..100_000).map(|_| exponential(&mut rng, 1e6)).collect();
        let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
        draws.sort_unstable();
        let median = draws[draws.len() / 2] as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.015, "{mean}");
        assert!((median / 1e6 - std::f64::consts::LN_2).abs() < 0.015, "{median}");
    }

    #[test]
    fn normal_draws_have_their_spread_and_their_tails() {
        let (normal, mut rng) = (Normal::new(), Rng::new(4));
        let draws: Vec<i64> = (0..200_000).map(|_| normal.draw(&mut rng, 5000, 1000)).collect();
        let mean = draws.iter().sum::<i64>() as f64 / draws.len() as f64;
        let variance = draws.iter().map(|&draw| (draw as f64 - mean).powi(2)).sum::<f64>()
            / draws.len() as f64;
        assert!((mean - 5000.0).abs() < 10.0, "{mean}");
        assert!((variance.sqrt() - 1000.0).abs() < 10.0, "{}", variance.sqrt());
        let beyond_two = draws.iter().filter(|&&draw| (draw - 5000).abs() > 2000).count() as f64
            / draws.len() as f64;
        assert!((beyond_two - 0.0455).abs() < 0.003, "{beyond_two}");
    }
}
