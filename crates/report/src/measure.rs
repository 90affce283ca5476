//! One figure: its value, the spread of its repetitions, and the goals it is compared with.

use serde::{Deserialize, Serialize};

use crate::{Table, figures};

/// Median, smallest and largest of some repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub n: usize,
}

impl Spread {
    /// The spread of `values`; none if there are none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let median =
            if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        Some(Spread { median, min, max, n })
    }

    /// The spread of a ratio: the ratio of the medians, with the range over pairs of repetitions in
    /// the order in which they were run.
    pub fn of_ratio(over: &[f64], under: &[f64]) -> Option<Spread> {
        let median = Spread::of(over)?.median / Spread::of(under)?.median;
        let pairs: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
        let pairs = Spread::of(&pairs)?;
        Some(Spread { median, min: pairs.min.min(median), max: pairs.max.max(median), n: pairs.n })
    }

    /// `1.23 (1.20–1.31)`.
    pub fn to_text(self) -> String {
        if self.n < 2 {
            figures(self.median)
        } else {
            format!("{} ({}–{})", figures(self.median), figures(self.min), figures(self.max))
        }
    }
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Higher,
    Lower,
}

/// Set if the true value was not reached within the time allowed: it is at least, or at most, the
/// given value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    AtLeast,
    AtMost,
}

/// What the literature reports: a number in the measure's unit, or text where the measures differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paper {
    Number(f64),
    Text(String),
}

/// One figure of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Key, in lower case with underscores: stable between versions.
    pub name: String,
    /// Title in reports.
    pub title: String,
    /// The median; none if it could not be measured (`note` states why).
    pub value: Option<f64>,
    /// Unit of value, min, max, must and aim; empty for ratios.
    pub unit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Number of repetitions.
    #[serde(default)]
    pub n: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    pub better: Better,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<Paper>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub must: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
    /// Whether `must` is reached; none if there is no `must` or no certain value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// Whether `aim` is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aim_met: Option<bool>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Measure {
    /// A measure without a value yet.
    pub fn new(
        name: impl Into<String>,
        title: impl Into<String>,
        unit: impl Into<String>,
        better: Better,
    ) -> Measure {
        Measure {
            name: name.into(),
            title: title.into(),
            value: None,
            unit: unit.into(),
            min: None,
            max: None,
            n: 0,
            bound: None,
            better,
            paper: None,
            must: None,
            aim: None,
            met: None,
            aim_met: None,
            note: String::new(),
        }
    }

    /// Sets the goal that has to be reached.
    pub fn must(mut self, must: f64) -> Measure {
        self.must = Some(must);
        self.judged()
    }

    /// Sets the goal that should be reached.
    pub fn aim(mut self, aim: f64) -> Measure {
        self.aim = Some(aim);
        self.judged()
    }

    /// Sets what the paper reports, as text.
    pub fn paper(mut self, text: impl Into<String>) -> Measure {
        self.paper = Some(Paper::Text(text.into()));
        self
    }

    /// Sets what the paper reports, in the measure's unit.
    pub fn paper_number(mut self, number: f64) -> Measure {
        self.paper = Some(Paper::Number(number));
        self
    }

    /// Sets the measured value and its spread.
    pub fn spread(mut self, spread: Option<Spread>) -> Measure {
        if let Some(spread) = spread {
            (self.value, self.min, self.max, self.n) =
                (Some(spread.median), Some(spread.min), Some(spread.max), spread.n);
        }
        self.judged()
    }

    /// Marks the value as a lower or upper bound.
    pub fn bound(mut self, bound: Option<Bound>) -> Measure {
        self.bound = bound;
        self.judged()
    }

    /// Sets a remark: why there is no value, or what else matters.
    pub fn note(mut self, text: impl Into<String>) -> Measure {
        self.note = text.into();
        self
    }

    /// Sets whether `must` is reached where no value can decide it, for example if the reference
    /// did not finish.
    pub fn decided(mut self, met: bool) -> Measure {
        self.met = Some(met);
        self
    }

    fn judged(mut self) -> Measure {
        self.met = self.reaches(self.must);
        self.aim_met = self.reaches(self.aim);
        self
    }

    /// Whether the value is at least as good as `goal`; none if that is undecided.
    fn reaches(&self, goal: Option<f64>) -> Option<bool> {
        let (value, goal) = (self.value?, goal?);
        let good = match self.better {
            Better::Higher => value >= goal,
            Better::Lower => value <= goal,
        };
        // A bound proves a success only if the true value can only be better, and a failure only if
        // it can only be worse.
        let can_be_better = matches!(
            (self.bound, self.better),
            (Some(Bound::AtLeast), Better::Higher) | (Some(Bound::AtMost), Better::Lower)
        );
        match self.bound {
            None => Some(good),
            Some(_) if can_be_better => good.then_some(true),
            Some(_) => (!good).then_some(false),
        }
    }

    /// The value with its spread, as text.
    pub fn value_text(&self) -> String {
        let Some(value) = self.value else { return "–".to_owned() };
        let sign = match self.bound {
            None => "",
            Some(Bound::AtLeast) => "> ",
            Some(Bound::AtMost) => "< ",
        };
        match (self.min, self.max) {
            (Some(min), Some(max)) if self.n > 1 => {
                format!("{sign}{} ({}–{})", figures(value), figures(min), figures(max))
            }
            _ => format!("{sign}{}", figures(value)),
        }
    }
}

/// A table of all measures, with their goals.
pub fn measures_table(title: &str, measures: &[Measure]) -> Table {
    let mut table = Table::new(title)
        .text("measure")
        .number("value (min–max)", "")
        .text("unit")
        .number("must", "")
        .number("aim", "")
        .text("met")
        .text("paper");
    let goal = |measure: &Measure, goal: Option<f64>| {
        let sign = if measure.better == Better::Higher { "≥" } else { "≤" };
        goal.map_or(String::new(), |goal| format!("{sign} {}", figures(goal)))
    };
    for measure in measures {
        let met = match (measure.met, measure.aim_met) {
            (Some(false), _) => "NO",
            (_, Some(true)) => "yes, aim too",
            (Some(true), _) => "yes",
            (None, Some(false)) => "aim not",
            (None, None)
                if measure.value.is_none() && (measure.must.is_some() || measure.aim.is_some()) =>
            {
                "not measured"
            }
            (None, None) => "",
        };
        let paper = match &measure.paper {
            None => String::new(),
            Some(Paper::Number(number)) => figures(*number),
            Some(Paper::Text(text)) => text.clone(),
        };
        table.row([
            measure.title.clone(),
            measure.value_text(),
            measure.unit.clone(),
            goal(measure, measure.must),
            goal(measure, measure.aim),
            met.to_owned(),
            paper,
        ]);
        if !measure.note.is_empty() {
            table.note(format!("{}: {}", measure.title, measure.note));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_median_smallest_and_largest() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.n), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN]), None);
    }

    #[test]
    fn ratio_uses_medians_and_paired_spread() {
        let ratio = Spread::of_ratio(&[10.0, 12.0, 14.0], &[5.0, 6.0, 4.0]).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.n), (2.4, 2.0, 3.5, 3));
        assert_eq!(Spread::of_ratio(&[1.0], &[]), None);
    }

    #[test]
    fn goal_is_met_on_its_better_side() {
        let measure = |better| Measure::new("x", "x", "", better).must(0.9).aim(1.0);
        let of = |value: f64| Spread::of(&[value]);
        assert_eq!(
            (
                measure(Better::Higher).spread(of(0.95)).met,
                measure(Better::Higher).spread(of(0.95)).aim_met
            ),
            (Some(true), Some(false))
        );
        assert_eq!(measure(Better::Higher).spread(of(0.89)).met, Some(false));
        assert_eq!(measure(Better::Lower).spread(of(0.89)).met, Some(true));
        assert_eq!(measure(Better::Lower).spread(None).met, None);
    }

    #[test]
    fn a_bound_proves_only_what_it_can() {
        let of = |value: f64, bound| {
            Measure::new("x", "x", "", Better::Higher)
                .spread(Spread::of(&[value]))
                .bound(Some(bound))
                .must(15.0)
                .met
        };
        assert_eq!(of(20.0, Bound::AtLeast), Some(true));
        assert_eq!(of(10.0, Bound::AtLeast), None);
        assert_eq!(of(10.0, Bound::AtMost), Some(false));
        assert_eq!(of(20.0, Bound::AtMost), None);
    }

    #[test]
    fn json_uses_agreed_names_and_omits_unknown() {
        let full = Measure::new("seq", "Sequential", "GB/s", Better::Higher)
            .paper_number(0.603)
            .must(0.9)
            .aim(1.0)
            .spread(Spread::of(&[1.0, 0.8, 0.95]));
        let value = serde_json::to_value(&full).unwrap();
        for name in ["name", "value", "unit", "paper", "must", "aim", "met", "min", "max", "n"] {
            assert!(value.get(name).is_some(), "{name}");
        }
        let bare = serde_json::to_value(Measure::new("x", "x", "", Better::Lower)).unwrap();
        assert!(["paper", "must", "aim", "met"].iter().all(|name| bare.get(name).is_none()));
        assert_eq!(serde_json::from_value::<Measure>(value).unwrap(), full);
    }
}
