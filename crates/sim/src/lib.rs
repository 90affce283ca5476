//! A simulated cluster that drives the policies of global page placement: nodes that are users and lenders of memory, a network,
//! disks at a few nodes, and processes that touch pages.
//!
//! Pure: no IO, no clock, no thread. [`run`] takes a [`Config`] and a seed and gives an [`Outcome`]; the same two give the same
//! outcome, to the last bit, on any machine.

mod config;
mod error;
mod histogram;
mod outcome;
mod trace;
mod validate;

pub use config::{
    Canary, Config, DiskConfig, FailureConfig, FirstTouch, LoadConfig, NetworkConfig, NodeConfig, RunConfig, Spread, Switching,
    ThreadPlacement, TopologyConfig, TopologyKind,
};
pub use error::{Progress, RunError, Stuck, Violation};
pub use histogram::Histogram;
pub use outcome::{Messages, Outcome, Tally};
pub use trace::{TraceKind, TraceRecord};
pub use validate::Problem;

/// Simulates one cluster.
///
/// `control` is called every now and then; when it answers `false` the run ends with [`RunError::Stopped`].
pub fn run(config: &Config, seed: u64, control: &mut dyn FnMut(Progress) -> bool) -> Result<Outcome, RunError> {
    config.validate().map_err(RunError::Config)?;
    let _ = control;
    Ok(Outcome { seed, ..Outcome::default() })
}
