//! What the engine reports to its owner.

/// The state of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Watching.
    Tracking,
    /// Nothing is left to do for now; the engine watches again later, or never
    /// ([`crate::Options::recheck_ns`]).
    Settled,
    /// It stopped by itself, for this reason.
    Stopped(String),
    /// The process has ended.
    Gone,
}

/// What a step did, and what follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// When to call again, on the caller's clock; `u64::MAX` for never. An earlier call does no
    /// harm.
    pub next_ns: u64,
    pub state: State,
    /// Ranges collapsed in this step, and split.
    pub collapsed: u32,
    pub split: u32,
    /// Whether a pass is over: counts, active pages and requests to regroup are new.
    pub pass_over: bool,
}

/// A page that is hot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActivePage {
    pub address: u64,
    /// Windows in which it was touched, with decay; of a huge page, before it became huge.
    pub count: u32,
}

/// How a process uses huge pages, to divide them among processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes in huge pages that we made.
    pub huge_bytes: u64,
    /// Those of them that were touched when they were last watched.
    pub used_bytes: u64,
    /// Bytes that deserve huge pages and have none because the budget is used up.
    pub wanted_bytes: u64,
}
