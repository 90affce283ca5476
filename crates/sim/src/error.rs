//! Why a run has no outcome, and how far it is.

use std::fmt;

use crate::validate::Problem;

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Simulated time so far, ns.
    pub now_ns: u64,
    /// Simulated time at which the run ends, ns (without draining).
    pub end_ns: u64,
    /// Events so far.
    pub events: u64,
}

/// A rule that the model broke, as seen by the checkers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Simulated time, ns.
    pub now_ns: u64,
    /// Events so far: the same seed comes to the same place.
    pub event: u64,
    /// What rule, and what broke it.
    pub what: String,
}

/// A run that goes on without getting anywhere, or has nothing left to do while faults wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// Simulated time, ns.
    pub now_ns: u64,
    /// Events so far.
    pub event: u64,
    /// Who waits for what.
    pub what: String,
}

/// Why a run has no outcome.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The configuration makes no sense; all that is wrong with it.
    #[error("the configuration cannot be simulated: {}", list(.0))]
    Config(Vec<Problem>),
    /// A fault is not answered.
    #[error(
        "stuck {0}; this is a bug of the model, not of the configuration: keep the configuration and the seed"
    )]
    Stuck(Stuck),
    /// The checkers object.
    #[error(
        "wrong {0}; this is a bug of the model, not of the configuration: keep the configuration and the seed"
    )]
    Wrong(Violation),
    /// `control` said so.
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

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at event {}, {} ns: {}", self.event, self.now_ns, self.what)
    }
}
