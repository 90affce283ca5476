//! Where huge pages pay: which 2 MiB ranges of a process are collapsed, which are split again, and
//! at what pace that is found out.
//!
//! Source: "HPS" (Shimizu and Yamada), sections 3.2 and 4: a range is collapsed in place when the
//! number of its hot pages reaches a threshold (a quarter of 512); otherwise the program is asked
//! to move its hot objects together. The rest is not from the paper: a budget, a limit to the
//! memory that collapsing may add, splitting ranges that became cold, and the pace.
//!
//! | Module | Question |
//! |---|---|
//! | [`change`] | whether the use of a range has changed, so that its old counts are obsolete |
//! | [`decide`] | what happens to a range: a [`Decision`] within [`Settings`] and [`Situation`] |
//! | [`shares`] | how a budget is divided among processes |
//! | [`stall`] | whether collapsing has become too slow to go on |
//! | [`survey`] | which completely present ranges are worth a collapse |
//! | [`warm`] | whether the memory of a huge page is made ready before a collapse |
//! | [`window`] | how long a round watches |

pub mod change;
pub mod decide;
pub mod shares;
pub mod stall;
pub mod survey;
pub mod warm;
pub mod window;

pub use change::{Change, KEPT_WINDOWS, Usual};
pub use decide::{
    Decision, PaperRule, Planner, RangeFacts, Reason, Rule, Settings, Situation, Verdict,
};
pub use stall::Stall;
pub use survey::Survey;
pub use warm::Warming;
pub use window::Window;
