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
mod network;
mod outcome;
mod processes;
mod queue;
mod random;
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

/// Memory that a run takes at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Before anything runs.
    pub idle_bytes: u64,
    /// At once, for the largest table of pages that a thread can get.
    pub table_bytes: u64,
}

/// Memory that a run of `config` takes at least.
pub fn need(config: &Config) -> Need {
    /// Nodes, links and topology; measured with [`bytes_per_idle_node`].
    const IDLE_NODE_BYTES: u64 = 250;
    /// Links of the largest kind of a node, with four channels for packets each.
    const CHANNELS_BYTES: u64 = 1200;
    let packets = config.network.model == NetworkModel::Packets;
    let node_bytes = IDLE_NODE_BYTES + if packets { CHANNELS_BYTES } else { 0 };
    Need {
        idle_bytes: config.nodes().saturating_mul(node_bytes),
        table_bytes: engine::table_bytes(config.load.virtual_pages_max),
    }
}

/// Memory of the idle machine of a configuration, bytes per node.
pub fn bytes_per_idle_node(config: &Config) -> Result<u64, RunError> {
    config.validate().map_err(RunError::Config)?;
    let engine = engine::Engine::new(config, 0);
    Ok(engine.heap_bytes() as u64 / config.nodes())
}
