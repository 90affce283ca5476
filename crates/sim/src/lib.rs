//! A simulated cluster that drives the policies of global page placement: nodes that use and lend
//! memory, a network, disks at a few nodes, and processes that touch pages.
//!
//! Pure: no IO, no clock, no thread. [`run`] maps a [`Config`] and a seed to an [`Outcome`]; the
//! result is identical to the last bit on any machine.

mod check;
mod classes;
mod config;
mod disk;
mod engine;
mod error;
mod histogram;
mod load;
mod machine;
mod members;
mod message;
mod need;
mod network;
mod observe;
mod outcome;
mod patience;
mod processes;
mod queue;
mod random;
mod recorded;
mod script;
mod site;
mod topology;
mod trace;
mod transfers;
mod validate;

pub use config::{
    Canary, Config, DiskConfig, DiskTime, FailureConfig, FaultConfig, FetchPath, FirstTouch,
    FrameFree, LoadConfig, NetworkConfig, NetworkModel, NodeClass, NodeConfig, OutageConfig,
    PacketOrder, PartitionConfig, RunConfig, ScriptEvent, ScriptKind, Sharing, Spread, Switching,
    ThreadPlacement, TopologyConfig, TopologyKind,
};
pub use error::{PolicyFailure, Progress, RunError, Stuck, Violation};
pub use histogram::Histogram;
pub use machine::{Load as MachineLoad, MachineConfig, MachineOutcome, ZoneConfig, run_machine};
pub use need::{Need, bytes_per_idle_node, need};
pub use outcome::{FaultTally, Messages, NodeLoad, Observed, Outcome, Sample, Tally};
pub use topology::{GraphLink, GraphProblem, LatencyMatrix, MatrixProblem, NetworkGraph};
pub use trace::{TraceKind, TraceRecord};
pub use transfers::{Transfer, Transferred, transfer_all};
pub use validate::{Problem, TIME_MAX_NS};

/// Simulates one cluster.
///
/// `control` is called periodically; when it returns `false`, the run ends with
/// [`RunError::Stopped`].
pub fn run(
    config: &Config,
    seed: u64,
    control: &mut dyn FnMut(Progress) -> bool,
) -> Result<Outcome, RunError> {
    config.validate().map_err(RunError::Config)?;
    if config.confirms() {
        return members::Engine::new(config, seed).run(control);
    }
    engine::Engine::new(config, seed).run(control)
}
