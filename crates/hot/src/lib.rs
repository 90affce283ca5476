//! Tracks which pages of a process are hot, and makes huge pages exactly there.
//!
//! - [`tracker`]: reads and clears the accessed bits of a process's pages; several backends behind
//!   one trait, [`Tracker`].
//! - [`heat`]: counts for each page, with decay.
//! - [`Engine`]: one managed process. Its owner calls [`Engine::step`] at the times that it
//!   returns, and may change its budget at any time.
//! - [`Ledger`]: what was done, why, and what it cost; kept in a file, so that other processes can
//!   explain it.
//!
//! `hiroma_policy::huge` decides what to do with a range; this crate collects the facts for it and
//! carries out its decisions. Source: "HPS" (Shimizu and Yamada), sections 4 and 5.1.

pub mod bits;
pub mod counts;
pub mod engine;
pub mod error;
pub mod heat;
pub mod layout;
pub mod ledger;
pub mod machine;
pub mod options;
pub mod readiness;
pub mod service;
pub mod tracker;
pub mod trial;
pub mod undo;
pub mod work;

pub use engine::{ActivePage, Engine, State, Step, Usage};
pub use error::HotError;
pub use heat::Heat;
pub use ledger::{Ledger, LedgerDir};
pub use options::Options;
pub use readiness::Readiness;
pub use tracker::{Backend, RangeView, Tracker};
pub use trial::{Gain, TrialOptions};
