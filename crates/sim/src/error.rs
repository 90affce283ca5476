//! Why a run has no outcome, and the progress of a run.

use std::fmt;

use crate::validate::Problem;

/// The progress of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Simulated time so far, ns.
    pub now_ns: u64,
    /// Simulated time at which the run ends, ns (without draining).
    pub end_ns: u64,
    /// Events so far.
    pub events: u64,
}

/// A rule that the model broke, as found by the checkers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Simulated time, ns.
    pub now_ns: u64,
    /// Events so far: the same seed reaches the same place.
    pub event: u64,
    /// Which rule, and what broke it.
    pub what: String,
}

/// A run that makes no progress, or has nothing left to do while faults wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// Simulated time, ns.
    pub now_ns: u64,
    /// Events so far.
    pub event: u64,
    /// What waits for what.
    pub what: String,
}

/// A custom placement policy that gave no answer, or one that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyFailure {
    /// Simulated time, ns.
    pub now_ns: u64,
    /// Events so far: the same seed reaches the same place.
    pub event: u64,
    /// Which policy, and what it did.
    pub what: String,
}

/// Why a run has no outcome.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The configuration is invalid; lists all problems.
    #[error("the configuration cannot be simulated: {}", list(.0))]
    Config(Vec<Problem>),
    /// A fault is never answered.
    #[error(
        "stuck {0}; this is a bug of the model, not of the configuration: keep the configuration and the seed"
    )]
    Stuck(Stuck),
    /// The checkers found a violation.
    #[error(
        "wrong {0}; this is a bug of the model, not of the configuration: keep the configuration and the seed"
    )]
    Wrong(Violation),
    /// A custom placement policy failed.
    #[error("{0}")]
    Policy(PolicyFailure),
    /// `control` stopped the run.
    #[error("stopped at {} ns of {} ns", .0.now_ns, .0.end_ns)]
    Stopped(Progress),
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at event {}, {} ns: {}", self.event, self.now_ns, self.what)
    }
}

impl fmt::Display for PolicyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at event {}, {} ns)", self.what, self.event, self.now_ns)
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at event {}, {} ns: {}", self.event, self.now_ns, self.what)
    }
}
