//! Where huge pages pay: which 2 MiB ranges of a process become huge, which are given back, and at
//! what pace that is found out.
//!
//! Source: "HPS" (Shimizu and Yamada), sections 3.2 and 4: a range is collapsed where it stands
//! when its hot pages pass a threshold (a quarter of 512), else the program is asked to move its
//! hot objects together. The rest is ours: a budget, a limit to the memory that collapsing may add,
//! giving back what went cold, and the pace.
//!
//! | Module | Question |
//! |---|---|
//! | [`change`] | whether a range is used in another way than before, so that what was counted is of the past |
//! | [`decide`] | what happens to a range: [`Decision`] for each, within the limits of [`Settings`] and [`Situation`] |
//! | [`shares`] | how a budget is divided among processes |
//! | [`stall`] | whether collapsing has become too slow to go on |
//! | [`warm`] | whether the memory of a huge page is to be made ready before it is collapsed into |
//! | [`window`] | how long a round should watch |

pub mod change;
pub mod decide;
pub mod shares;
pub mod stall;
pub mod warm;
pub mod window;

pub use change::{Change, KEPT_WINDOWS, Usual};
pub use decide::{
    Decision, PaperRule, Planner, RangeFacts, Reason, Rule, Settings, Situation, Verdict,
};
pub use stall::Stall;
pub use warm::Warming;
pub use window::Window;
