//! Results of the runs, by key.

use std::collections::BTreeMap;

use hiroma_report::{Better, Bound, Measure, Point, Spread, figures};

use crate::children::Failed;
use crate::job::TaskResult;

/// All repetitions of all runs.
#[derive(Default)]
pub struct Results {
    done: BTreeMap<String, Vec<TaskResult>>,
    failed: BTreeMap<String, Failed>,
    /// Number of repetitions that the kernel killed because memory ran out.
    kills: BTreeMap<String, usize>,
    /// Why swap peers could not be measured; none if they could.
    pub no_peers: Option<String>,
}

impl Results {
    /// No results yet.
    pub fn new(no_peers: Option<String>) -> Results {
        Results { no_peers, ..Results::default() }
    }

    /// Records a repetition.
    pub fn add(&mut self, key: &str, outcome: Result<TaskResult, Failed>) {
        match outcome {
            Ok(outcome) => self.done.entry(key.to_owned()).or_default().push(outcome),
            // The kernel does not kill every time; the other repetitions count.
            Err(Failed::OutOfMemory) => *self.kills.entry(key.to_owned()).or_default() += 1,
            Err(failed) => drop(self.failed.insert(key.to_owned(), failed)),
        }
    }

    /// Whether a run has failed, so that it need not be tried again.
    pub fn has_failed(&self, key: &str) -> bool {
        self.failed.contains_key(key)
    }

    /// Runs that failed for a reason that is not expected of a slow peer.
    pub fn surprises(&self) -> impl Iterator<Item = (&str, &Failed)> {
        self.failed
            .iter()
            .filter(|(_, failed)| matches!(failed, Failed::Other(_)))
            .map(|(key, failed)| (key.as_str(), failed))
    }

    /// The repetitions of a run.
    pub fn of(&self, key: &str) -> &[TaskResult] {
        self.done.get(key).map_or(&[], Vec::as_slice)
    }

    /// One number of each repetition, in running order. Empty if the run has failed once.
    pub fn values(&self, key: &str, number: impl Fn(&TaskResult) -> f64) -> Vec<f64> {
        if self.has_failed(key) { Vec::new() } else { self.of(key).iter().map(number).collect() }
    }

    /// The spread of these values.
    pub fn spread(&self, key: &str, number: impl Fn(&TaskResult) -> f64) -> Option<Spread> {
        Spread::of(&self.values(key, number))
    }

    /// A table cell: the spread, or why there is none.
    pub fn cell(&self, key: &str, number: impl Fn(&TaskResult) -> f64) -> String {
        match (self.spread(key, number), self.failed.get(key), self.kills.get(key)) {
            (Some(spread), _, Some(kills)) => format!("{}, killed {kills}×", spread.to_text()),
            (Some(spread), _, None) => spread.to_text(),
            (None, Some(Failed::TimeLimit(_)), _) => "too slow".to_owned(),
            (None, Some(_), _) => "failed".to_owned(),
            (None, None, Some(_)) => "killed".to_owned(),
            (None, None, None) => "–".to_owned(),
        }
    }

    /// The same for durations, where a time limit is informative too.
    pub fn time_cell(&self, key: &str) -> String {
        match self.failed.get(key) {
            Some(Failed::TimeLimit(limit)) => format!("> {}", figures(*limit)),
            _ => self.cell(key, |outcome| outcome.seconds),
        }
    }

    /// A point of a plot, if there is a value.
    pub fn point(&self, x: f64, key: &str, number: impl Fn(&TaskResult) -> f64) -> Option<Point> {
        self.spread(key, number).map(|spread| Point::of(x, spread))
    }

    /// A measure that is the ratio of one number of two runs.
    pub fn ratio(
        &self,
        measure: Measure,
        over: &str,
        under: &str,
        number: impl Fn(&TaskResult) -> f64,
    ) -> Measure {
        let (above, below) = (self.values(over, &number), self.values(under, &number));
        let spread = Spread::of_ratio(&above, &below);
        let missing = [over, under].into_iter().find(|key| self.values(key, |_| 0.0).is_empty());
        match missing {
            None => measure.spread(spread),
            Some(key) => measure.note(self.why_missing(key)),
        }
    }

    /// A measure that is the ratio of two times, either of which may have been cut short.
    pub fn time_ratio(&self, measure: Measure, over: &str, under: &str) -> Measure {
        let limit = |key: &str| match self.failed.get(key) {
            Some(Failed::TimeLimit(limit)) => Some(*limit),
            _ => None,
        };
        let median =
            |key: &str| self.spread(key, |outcome| outcome.seconds).map(|spread| spread.median);
        match (median(over), limit(over), median(under), limit(under)) {
            (Some(over), _, None, Some(limit)) => {
                measure.spread(Spread::of(&[over / limit])).bound(Some(Bound::AtMost))
            }
            (None, Some(limit), Some(under), _) => {
                measure.spread(Spread::of(&[limit / under])).bound(Some(Bound::AtLeast))
            }
            _ => self.ratio(measure, over, under, |outcome| outcome.seconds),
        }
    }

    /// Like [`Results::time_ratio`], for measures where being faster than `under` matters: a run
    /// that finishes is faster than one that was killed, and a run that does not finish has lost.
    pub fn race(&self, measure: Measure, over: &str, under: &str) -> Measure {
        let measure = self.time_ratio(measure, over, under);
        let finished = |key: &str| !self.values(key, |_| 0.0).is_empty();
        let given_up = |key: &str| {
            matches!(self.failed.get(key), Some(Failed::TimeLimit(_)))
                || self.kills.contains_key(key)
        };
        match (finished(over), finished(under)) {
            (true, false) if self.kills.contains_key(under) => measure.decided(true),
            (false, _) if given_up(over) => measure.decided(false),
            _ => measure,
        }
    }

    /// Why a run has no result.
    pub fn why_missing(&self, key: &str) -> String {
        match (self.failed.get(key), &self.no_peers) {
            (Some(failed), _) => format!("{key}: {failed}"),
            (None, _) if self.kills.contains_key(key) => format!("{key}: {}", Failed::OutOfMemory),
            (None, Some(reason)) if key.ends_with("zram") || key.ends_with("swap file") => {
                reason.clone()
            }
            _ => format!("{key} was not run"),
        }
    }
}

/// A ratio that should be small.
pub fn lower(name: &str, title: &str) -> Measure {
    Measure::new(name, title, "", Better::Lower)
}

/// A ratio that should be large.
pub fn higher(name: &str, title: &str) -> Measure {
    Measure::new(name, title, "", Better::Higher)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(seconds: f64) -> Result<TaskResult, Failed> {
        Ok(TaskResult { seconds, ..TaskResult::default() })
    }

    #[test]
    fn timed_out_peer_bounds_the_ratio() {
        let mut results = Results::default();
        [2.0, 3.0, 4.0].into_iter().for_each(|seconds| results.add("ours", took(seconds)));
        results.add("peer", Err(Failed::TimeLimit(30.0)));
        let measure = results.time_ratio(lower("x", "x").must(1.0), "ours", "peer");
        assert_eq!(
            (measure.value, measure.bound, measure.met),
            (Some(0.1), Some(Bound::AtMost), Some(true))
        );
        let measure = results.time_ratio(lower("x", "x").must(1.0), "peer", "ours");
        assert_eq!(
            (measure.value, measure.bound, measure.met),
            (Some(10.0), Some(Bound::AtLeast), Some(false))
        );
    }

    #[test]
    fn oom_killed_run_is_counted_and_loses() {
        let mut results = Results::default();
        results.add("ours", took(1.0));
        results.add("peer", Err(Failed::OutOfMemory));
        let race = |results: &Results| results.race(lower("x", "x").must(1.0), "ours", "peer");
        assert_eq!(
            (race(&results).value, race(&results).met, results.time_cell("peer")),
            (None, Some(true), "killed".into())
        );
        assert!(race(&results).note.contains("killed for want of memory"));
        assert_eq!(results.race(lower("x", "x").must(1.0), "peer", "ours").met, Some(false));
        results.add("peer", took(0.5));
        assert_eq!(
            (race(&results).met, results.time_cell("peer")),
            (Some(false), "0.500, killed 1×".into())
        );
    }

    #[test]
    fn failed_run_has_a_reason_and_no_value() {
        let mut results = Results::default();
        results.add("ours", took(1.0));
        results.add("peer", took(2.0));
        results.add("peer", Err(anyhow::anyhow!("no room").into()));
        let measure = results.time_ratio(lower("x", "x").must(1.0), "ours", "peer");
        assert_eq!((measure.value, measure.met), (None, None));
        assert!(measure.note.contains("no room"));
        assert_eq!(
            (results.time_cell("peer"), results.time_cell("nothing")),
            ("failed".into(), "–".into())
        );
    }
}
