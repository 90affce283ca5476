//! What goes wrong: failures, scripts, losses in the network.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens by script.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScriptKind {
    /// A link carries nothing any more; messages wait, or take another way if there is one.
    #[default]
    LinkFails,
    /// It works again.
    LinkReturns,
    /// A node fails: it loses its memory, its thread and the pages it stored for others.
    NodeFails,
    /// It is back, with empty memory.
    NodeReturns,
    /// A node that was not there from the beginning joins: the others are told. Its threads wait
    /// for it until then. Needs `policy.confirm` or `faults`.
    NodeJoins,
}

/// An event at a given time (`[[event]]`). At the end of a run everything works again, so that
/// what is under way can be finished.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptEvent {
    /// When, ns of simulated time.
    pub time_ns: u64,
    /// What.
    pub kind: ScriptKind,
    /// Which node (`"7"`), or link: `"3 - 4"` in both directions, `"3 -> 4"` in one; or its number.
    pub which: String,
}

/// Failures and repairs of nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FailureConfig {
    /// Mean time between two failures in the whole machine (Poisson), ns; 0 for none.
    pub mean_between_ns: u64,
    /// Time until a failed node is available again, with empty memory, ns.
    pub repair_ns: u64,
    /// Time until the sender of a message detects that the receiver does not answer, ns.
    pub detect_ns: u64,
}

impl Default for FailureConfig {
    fn default() -> Self {
        FailureConfig { mean_between_ns: 0, repair_ns: 500_000_000, detect_ns: 1_000_000 }
    }
}

/// Nodes that cannot reach each other for a while.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PartitionConfig {
    /// When it begins, ns.
    pub from_ns: u64,
    /// When it ends, ns.
    pub until_ns: u64,
    /// Nodes that still reach each other, by number; all others are one more group.
    pub groups: Vec<Vec<u32>>,
}

/// A node that fails, or is emptied, by script.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutageConfig {
    /// The node.
    pub node: u32,
    /// When it begins, ns.
    pub from_ns: u64,
    /// When the node is available again, ns.
    pub until_ns: u64,
}

/// What goes wrong in the network, and with the detection of failures. The disks are reached over
/// a path of their own, which loses nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FaultConfig {
    /// Share of messages that are lost, 0 to 1.
    pub loss: f64,
    /// Share of messages that arrive twice.
    pub duplicate: f64,
    /// Share of messages that others can overtake.
    pub reorder: f64,
    /// Longest additional time of a message that is overtaken, ns.
    pub reorder_ns: u64,
    /// Share of messages that are delayed.
    pub delay: f64,
    /// Mean additional time of a message that is delayed (exponential), ns.
    pub delay_ns: u64,
    /// Nodes that cannot reach each other: `[[faults.partitions]]` with `from_ns`, `until_ns` and
    /// `groups`, a list of lists of nodes.
    pub partitions: Vec<PartitionConfig>,
    /// Nodes that fail by script, besides `failures`: `[[faults.crashes]]` with `node`, `from_ns` and
    /// `until_ns`.
    pub crashes: Vec<OutageConfig>,
    /// Nodes that are emptied by script, and may be used again later: `[[faults.drains]]` with the
    /// same keys.
    pub drains: Vec<OutageConfig>,
    /// Mean time until a node learns that another has failed, ns; 0: only by its silence, as with
    /// more than 32768 nodes.
    pub detect_ns: u64,
    /// Wrong suspicions in the whole machine, per second.
    pub wrong_suspicions_per_s: f64,
}

impl FaultConfig {
    /// Whether anything goes wrong.
    pub fn any(&self) -> bool {
        let shares = [self.loss, self.duplicate, self.reorder, self.delay];
        shares.iter().chain([&self.wrong_suspicions_per_s]).any(|&share| share > 0.0)
            || !self.partitions.is_empty()
            || !self.crashes.is_empty()
            || !self.drains.is_empty()
    }
}

impl Default for FaultConfig {
    fn default() -> Self {
        FaultConfig {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_ns: 1_000_000,
            delay: 0.0,
            delay_ns: 30_000_000,
            partitions: Vec::new(),
            crashes: Vec::new(),
            drains: Vec::new(),
            detect_ns: 0,
            wrong_suspicions_per_s: 0.0,
        }
    }
}
