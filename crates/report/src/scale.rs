//! Numbers in readable form, and the ticks of an axis.

/// A number with three significant figures, without an exponent where that is readable: `0.00123`,
/// `1.23`, `12.3`, `1230`.
pub fn figures(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return "–".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-6..9).contains(&magnitude) {
        return format!("{value:.2e}");
    }
    let step = 10f64.powi(magnitude - 2);
    let rounded = (value / step).round() * step;
    let decimals = (2 - rounded.abs().log10().floor() as i32).max(0) as usize;
    format!("{rounded:.decimals$}")
}

/// A tick's label: like [`figures`], without trailing zeros after the point, and with k, M, G for
/// thousands.
pub(crate) fn tick_label(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let mut text = figures(scaled);
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    text + unit
}

/// The range of an axis, and its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    pub(crate) ticks: Vec<f64>,
}

impl Scale {
    /// An axis from zero (or the lowest value below it) to a round number above the highest value.
    pub(crate) fn linear(values: impl Iterator<Item = f64>) -> Scale {
        let (low, high) = values
            .filter(|v| v.is_finite())
            .fold((0f64, 0f64), |(low, high), v| (low.min(v), high.max(v)));
        let span = if high > low { high - low } else { 1.0 };
        let raw = span / 5.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|&step| step >= raw * 0.999)
            .unwrap_or(power * 10.0);
        let (first, last) =
            ((low / step).floor() as i64, ((low + span) / step * 0.9999).ceil() as i64);
        let ticks = (first..=last).map(|i| i as f64 * step).collect();
        Scale { low: first as f64 * step, high: last as f64 * step, log: false, ticks }
    }

    /// A logarithmic axis that covers all positive values.
    pub(crate) fn log(values: impl Iterator<Item = f64>) -> Scale {
        let (low, high) = values
            .filter(|v| v.is_finite() && *v > 0.0)
            .fold((f64::INFINITY, 0f64), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        let decades = (high / low).log10();
        let marks: &[f64] = if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let first = low.log10().floor() as i32;
        let all: Vec<f64> = (first..=first + decades as i32 + 2)
            .flat_map(|power| marks.iter().map(move |mark| mark * 10f64.powi(power)))
            .collect();
        let from = all.iter().rposition(|&tick| tick <= low * 1.001).unwrap_or(0);
        let to = all
            .iter()
            .position(|&tick| tick >= high * 0.999 && tick > all[from])
            .unwrap_or(all.len() - 1);
        let ticks = all[from..=to].to_vec();
        Scale { low: ticks[0], high: ticks[ticks.len() - 1], log: true, ticks }
    }

    /// The position of a value, from 0 (low end) to 1 (high end).
    pub(crate) fn position(&self, value: f64) -> f64 {
        let at = |v: f64| if self.log { v.max(self.low * 1e-3).log10() } else { v };
        ((at(value) - at(self.low)) / (at(self.high) - at(self.low))).clamp(0.0, 1.0)
    }

    /// The value at the foot of a bar.
    pub(crate) fn base(&self) -> f64 {
        if self.log { self.low } else { 0f64.max(self.low) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_figures() {
        let cases = [
            (0.0, "0"),
            (1.0, "1.00"),
            (0.9999, "1.00"),
            (12.345, "12.3"),
            (603.0, "603"),
            (5891.0, "5890"),
            (0.00123, "0.00123"),
            (-4.2, "-4.20"),
        ];
        for (value, text) in cases {
            assert_eq!(figures(value), text);
        }
        assert_eq!(figures(f64::NAN), "–");
        assert_eq!(figures(1e12), "1.00e12");
    }

    #[test]
    fn linear_axis_spans_zero_to_round_number() {
        let scale = Scale::linear([3.1, 0.4].into_iter());
        assert_eq!(scale.ticks, vec![0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(
            (scale.position(0.0), scale.position(2.0), scale.position(4.0)),
            (0.0, 0.5, 1.0)
        );
    }

    #[test]
    fn log_axis_spaces_equal_ratios_equally() {
        let scale = Scale::log([1.0, 100.0].into_iter());
        assert_eq!((scale.ticks.first(), scale.ticks.last()), (Some(&1.0), Some(&100.0)));
        assert!((scale.position(10.0) - 0.5).abs() < 1e-9);
        let wide = Scale::log([3.0, 200_000.0].into_iter());
        assert_eq!(wide.ticks, vec![1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
    }

    #[test]
    fn axes_of_degenerate_data_have_two_ticks() {
        for values in [vec![], vec![0.0], vec![5.0], vec![f64::NAN], vec![1.0, 1.0]] {
            for scale in [Scale::linear(values.iter().copied()), Scale::log(values.iter().copied())]
            {
                assert!(
                    scale.ticks.len() >= 2 && scale.ticks.iter().all(|tick| tick.is_finite()),
                    "{values:?} {scale:?}"
                );
                assert!((0.0..=1.0).contains(&scale.position(5.0)));
            }
        }
    }
}
