//! What the engine tells its owner.

/// What the engine is at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Watching.
    Tracking,
    /// There is nothing more to do for now; it looks again later, or never
    /// ([`crate::Options::recheck_ns`]).
    Settled,
    /// It stopped by itself, for this reason.
    Stopped(String),
    /// The process has ended.
    Gone,
}

/// What a step did, and what comes next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// When to call again, on the caller's clock; `u64::MAX` for never. Calling earlier does no
    /// harm.
    pub next_ns: u64,
    pub state: State,
    /// Ranges collapsed, and split, in this step.
    pub collapsed: u32,
    pub split: u32,
    /// Whether a pass is over: counts, active pages and requests to regroup are new.
    pub pass_over: bool,
}

/// A page that is hot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActivePage {
    pub address: u64,
    /// Windows in which it was touched, as far as they are remembered; of a huge page, before it
    /// became huge.
    pub count: u32,
}

/// How a process uses huge pages, for sharing them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes in huge pages that we made.
    pub huge_bytes: u64,
    /// Those of them that were touched when they were last watched.
    pub used_bytes: u64,
    /// Bytes that deserve huge pages and have none for want of budget.
    pub wanted_bytes: u64,
}
