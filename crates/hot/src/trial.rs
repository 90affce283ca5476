//! Whether huge pages help a process: turns with and without them, on the process itself.
//!
//! Where the processor has no counters that could be read, the only honest measure is the process's
//! own work. Each turn compares the processor time that it took with the calls that it made. Turns
//! alternate (with, without, without, with, ...), so that what changes slowly by itself cancels out.
//! A process that makes few calls shows no progress, and nothing is said about it.

use std::fmt;

use hiroma_report::{Estimate, Spread};

use crate::work::Work;

/// Calls or waits in a second from which on they measure progress.
const UNITS_PER_S_MIN: u64 = 100;
/// Ticks of processor time in a turn, at a hundred a second, from which on the time says something.
const CPU_NS_MIN: u64 = 200_000_000;
/// Part of a turn that is not counted, because the change itself is felt in it.
const SETTLING_PART: u64 = 4;
/// Least number of pairs of turns.
pub const PAIRS_MIN: usize = 3;

/// How to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrialOptions {
    /// Length of a turn.
    pub turn_ns: u64,
    /// Pairs of a turn with and one without huge pages, [`PAIRS_MIN`] at least.
    pub pairs: usize,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Todo {
    /// All ranges become huge, or small; then call [`Trial::changed`].
    Change { huge: bool },
    /// Nothing until then.
    Wait { until_ns: u64 },
    /// The trial is over, and the ranges are huge.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Changing,
    Settling {
        until_ns: u64,
    },
    Measuring {
        until_ns: u64,
    },
    /// The last change, back to huge pages.
    Restoring,
    Over,
}

/// A trial in progress.
#[derive(Clone, Debug)]
pub struct Trial {
    options: TrialOptions,
    turn: usize,
    phase: Phase,
    began: Work,
    turns: Vec<Work>,
    gain: Option<Gain>,
}

impl Trial {
    /// A trial of a process whose ranges are huge.
    pub fn new(options: TrialOptions) -> Trial {
        let pairs = options.pairs.max(PAIRS_MIN);
        Trial {
            options: TrialOptions { pairs, ..options },
            turn: 0,
            phase: Phase::Changing,
            began: Work::default(),
            turns: Vec::new(),
            gain: None,
        }
    }

    /// Whether turn `turn` is one with huge pages: the first of every second pair is not.
    fn is_huge(turn: usize) -> bool {
        turn % 4 == 0 || turn % 4 == 3
    }

    /// What is to be done at `now_ns`. `work`: what the process has done so far.
    pub fn next(&mut self, now_ns: u64, work: Work) -> Todo {
        match self.phase {
            Phase::Changing => return Todo::Change { huge: Trial::is_huge(self.turn) },
            Phase::Restoring => return Todo::Change { huge: true },
            Phase::Settling { until_ns } if now_ns >= until_ns => {
                self.began = work;
                self.phase = Phase::Measuring { until_ns: now_ns + self.options.turn_ns };
            }
            Phase::Measuring { until_ns } if now_ns >= until_ns => {
                self.turns.push(work.since(&self.began));
                self.turn += 1;
                // What the first turn does not show, the others will not either.
                let is_over = self.turn == 2 * self.options.pairs
                    || self.turn == 1 && unit_of(&self.turns, self.options.turn_ns).is_none();
                if is_over {
                    self.gain = Some(Gain::of(&self.turns, self.options));
                }
                self.phase = if is_over { Phase::Restoring } else { Phase::Changing };
                return self.next(now_ns, work);
            }
            Phase::Over => return Todo::Nothing,
            Phase::Settling { .. } | Phase::Measuring { .. } => {}
        }
        match self.phase {
            Phase::Settling { until_ns } | Phase::Measuring { until_ns } => Todo::Wait { until_ns },
            _ => Todo::Nothing,
        }
    }

    /// What [`Todo::Change`] asked for is done.
    pub fn changed(&mut self, now_ns: u64) {
        self.phase = match self.phase {
            Phase::Changing => {
                Phase::Settling { until_ns: now_ns + self.options.turn_ns / SETTLING_PART }
            }
            Phase::Restoring => Phase::Over,
            other => other,
        };
    }

    /// The result, from when the last turn has ended.
    pub fn gain(&self) -> Option<&Gain> {
        self.gain.as_ref()
    }
}

/// A count that shows progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Call,
    Wait,
}

impl Unit {
    fn of(self, work: &Work) -> u64 {
        match self {
            Unit::Call => work.calls,
            Unit::Wait => work.waits,
        }
    }
}

/// What shows progress in each of the turns.
fn unit_of(turns: &[Work], turn_ns: u64) -> Option<Unit> {
    let units_min = (UNITS_PER_S_MIN * turn_ns / 1_000_000_000).max(1);
    let shows = |unit: &Unit| turns.iter().all(|turn| unit.of(turn) >= units_min);
    if !turns.iter().all(|turn| turn.cpu_ns >= CPU_NS_MIN) {
        return None;
    }
    [Unit::Call, Unit::Wait].into_iter().find(shows)
}

fn median_ns(costs: &[f64]) -> u64 {
    Spread::of(costs).map_or(0, |spread| spread.median as u64)
}

/// What huge pages gain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Gain {
    /// The process does too little that can be counted.
    Unknown,
    /// Processor time for each call or wait.
    Known {
        /// What is counted.
        unit: &'static str,
        /// Processor time for one, with and without huge pages: medians of the turns.
        with_ns: u64,
        without_ns: u64,
        /// By how much less that is with huge pages, and the bounds of its 95 % confidence
        /// interval, in thousandths.
        permille: i64,
        permille_min: i64,
        permille_max: i64,
        pairs: usize,
        turn_ns: u64,
    },
}

impl Gain {
    fn of(turns: &[Work], options: TrialOptions) -> Gain {
        let Some(unit) = unit_of(turns, options.turn_ns).filter(|_| turns.len() >= 2 * PAIRS_MIN)
        else {
            return Gain::Unknown;
        };
        let cost = |turn: usize| turns[turn].cpu_ns as f64 / unit.of(&turns[turn]) as f64;
        let pairs = turns.len() / 2;
        // The turn with huge pages and the one without, of each pair.
        let (with, without): (Vec<f64>, Vec<f64>) = (0..pairs)
            .map(|pair| (cost(2 * pair), cost(2 * pair + 1), Trial::is_huge(2 * pair)))
            .map(|(one, other, is_huge)| if is_huge { (one, other) } else { (other, one) })
            .unzip();
        let Some(log_ratio) = Estimate::of_log_ratios(&with, &without) else {
            return Gain::Unknown;
        };
        let permille = |log: f64| ((1.0 - log.exp()) * 1000.0).round() as i64;
        Gain::Known {
            unit: match unit {
                Unit::Call => "call that reads or writes",
                Unit::Wait => "wait of a thread",
            },
            with_ns: median_ns(&with),
            without_ns: median_ns(&without),
            permille: permille(log_ratio.mean),
            permille_min: permille(log_ratio.high()),
            permille_max: permille(log_ratio.low()),
            pairs,
            turn_ns: options.turn_ns,
        }
    }

    /// By how much less processor time a call or wait takes, in thousandths, if that is known.
    pub fn permille(&self) -> Option<i64> {
        match self {
            Gain::Unknown => None,
            Gain::Known { permille, .. } => Some(*permille),
        }
    }

    /// In a few characters.
    pub fn brief(&self) -> String {
        match self {
            Gain::Unknown => "unknown".to_owned(),
            Gain::Known { permille, permille_min, permille_max, .. } => {
                let percent = |permille: &i64| *permille as f64 / 10.0;
                let (least, most) = (percent(permille_min), percent(permille_max));
                format!("{:.1}% ({least:.1} to {most:.1})", percent(permille))
            }
        }
    }

    /// Whether it is nearly certain that nothing worthwhile is gained: one percent at most.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Gain::Known { permille_max, .. } if *permille_max < 10)
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gain::Known {
            unit,
            with_ns,
            without_ns,
            permille,
            permille_min,
            permille_max,
            pairs,
            turn_ns,
        } = self
        else {
            return f.write_str(
                "what huge pages gain is not known: the process makes too few calls, or uses the processor too \
                 little, to show its progress, and no counters are read",
            );
        };
        let percent = |permille: &i64| *permille as f64 / 10.0;
        let verdict = match (*permille_min, *permille_max) {
            (min, _) if min > 0 => "they gain",
            (_, max) if max < 0 => "they cost",
            _ => "no difference is certain:",
        };
        write!(
            f,
            "{verdict} {:.1} % of the processor time ({:.1} to {:.1}, 95 % confidence): {:.2} us for each {unit} with huge \
             pages, {:.2} without; {pairs} pairs of turns of {:.1} s, measured on the process itself",
            percent(permille).abs(),
            percent(permille_min),
            percent(permille_max),
            *with_ns as f64 / 1e3,
            *without_ns as f64 / 1e3,
            *turn_ns as f64 / 1e9,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const OPTIONS: TrialOptions = TrialOptions { turn_ns: 2 * S, pairs: 4 };

    /// Runs a trial of a process that takes `cost_ns` for a call, huge or not, and is always busy.
    fn run(cost_ns: impl Fn(bool, u64) -> u64) -> (Trial, usize) {
        let (mut trial, mut now, mut huge, mut changes) = (Trial::new(OPTIONS), 0, true, 0);
        let mut work = Work::default();
        loop {
            match trial.next(now, work) {
                Todo::Change { huge: wanted } => {
                    changes += usize::from(huge != wanted);
                    huge = wanted;
                    trial.changed(now);
                }
                Todo::Wait { until_ns } => {
                    assert!(until_ns > now);
                    work.cpu_ns += until_ns - now;
                    work.calls += (until_ns - now) / cost_ns(huge, now);
                    now = until_ns;
                }
                Todo::Nothing => break,
            }
        }
        assert!(huge, "it ends with huge pages");
        (trial, changes)
    }

    #[test]
    fn gain_is_measured_although_the_work_becomes_slower() {
        let (trial, changes) = run(|huge, now| 10_000 + now / S * 50 - u64::from(huge) * 1500);
        let gain = trial.gain().unwrap();
        let Gain::Known { permille, permille_min, permille_max, pairs, .. } = *gain else {
            panic!("{gain:?}")
        };
        assert!((120..170).contains(&permille) && permille_min > 100, "{gain:?}");
        assert!(permille_max < 200 && pairs == 4 && changes == 4, "{gain:?} {changes}");
        assert!(!gain.is_nothing() && gain.to_string().starts_with("they gain 1"), "{gain}");
    }

    #[test]
    fn nothing_gained_is_recognised() {
        let (trial, _) = run(|_, now| 10_000 + now / S % 2);
        let gain = trial.gain().unwrap();
        assert!(gain.is_nothing(), "{gain}");
        assert!(gain.to_string().contains("no difference is certain"), "{gain}");
    }

    #[test]
    fn uncertain_gain_is_not_nothing() {
        // In every second pair the turn with huge pages is the slower one.
        let is_odd = |now: u64| now / (5 * S) % 2 == 1;
        let (trial, _) = run(|huge, now| 10_000 + u64::from(huge == is_odd(now)) * 2000);
        let gain = trial.gain().unwrap();
        assert!(!gain.is_nothing() && gain.to_string().contains("no difference"), "{gain}");
    }

    #[test]
    fn process_without_calls_is_not_changed() {
        let (trial, changes) = run(|_, _| S);
        assert_eq!((trial.gain(), changes), (Some(&Gain::Unknown), 0));
    }
}
