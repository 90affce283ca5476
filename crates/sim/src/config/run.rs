//! Duration of a run, and what is measured and checked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A bug built in on purpose, to test that the checkers find it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Canary {
    /// None.
    #[default]
    None,
    /// A page that arrives is lost.
    LosePage,
    /// A copy of a page remains where it was fetched from.
    KeepCopy,
    /// A node stores one page more than it has frames.
    OverfillNode,
    /// A fault is never answered.
    DropAnswer,
    /// An old content of a page is delivered.
    StaleContent,
    /// One page in a hundred vanishes where it arrives.
    VanishPage,
    /// One owner in ten is not told where its page is.
    SkipPlaced,
    /// One frame in a hundred stays in use when its page has left it.
    LeakFrame,
    /// The frame of a page that was discarded stays in use.
    KeepGuestFrame,
    /// Every second page that is no longer needed is not discarded.
    DropDiscard,
    /// Reservations that are not used are not released.
    KeepReservation,
    /// With `policy.confirm`: a page is not kept until its receipt is confirmed.
    ForgetEarly,
    /// With `policy.confirm`: pages that are not needed are not discarded, even when asked for.
    KeepOrphans,
    /// With `policy.confirm`: an old message that discards a page also discards newer ones.
    BelieveOld,
    /// With `policy.confirm`: questions without an answer are not repeated.
    NeverRepeat,
    /// With `policy.confirm`: one host in ten denies to have a page.
    DenyPage,
    /// With `policy.confirm`: a node that restarts does not say so.
    SameEpoch,
    /// With `policy.confirm`: while its thread waits, a node does a minute late what is due at a
    /// deadline.
    LateDeadline,
    /// With `policy.confirm`: a host that gets a newer version of a page keeps the older one.
    KeepVersion,
}

impl Canary {
    /// Those of a cluster without `policy.confirm` and faults.
    pub const TRUSTING: [Canary; 11] = [
        Canary::LosePage,
        Canary::KeepCopy,
        Canary::OverfillNode,
        Canary::DropAnswer,
        Canary::StaleContent,
        Canary::VanishPage,
        Canary::SkipPlaced,
        Canary::LeakFrame,
        Canary::KeepGuestFrame,
        Canary::DropDiscard,
        Canary::KeepReservation,
    ];
}

/// Duration of a run, and what is measured and checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Simulated time before measuring starts, ns.
    pub warmup_ns: u64,
    /// Simulated time that is measured, ns.
    pub duration_ns: u64,
    /// Whether threads then go on until all have ended, without new ones. Otherwise they stop, and
    /// only what is under way is finished, for the checkers.
    pub drain: bool,
    /// A run is stuck if a fault is not answered for this long, ns; in a short run already after a
    /// quarter of its length, unless answers may take longer.
    pub stuck_after_ns: u64,
    /// Whether bytes are counted per link ([`crate::Outcome::link_bytes`]).
    pub count_links: bool,
    /// Whether the checkers are on.
    pub check: bool,
    /// The bug built in on purpose.
    pub canary: Canary,
    /// Samples of the run over time ([`crate::Outcome::observed`]); they change nothing else.
    #[serde(skip)]
    pub samples: u32,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            warmup_ns: 500_000_000,
            duration_ns: 1_000_000_000,
            drain: false,
            stuck_after_ns: 60_000_000_000,
            count_links: false,
            check: true,
            canary: Canary::None,
            samples: 0,
        }
    }
}
