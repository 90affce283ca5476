//! One simulated cluster: its nodes, network, disks, load and policies. Every default is the
//! paper's (table 1); `docs/internals/simulation.md` gives the reason for what the paper leaves
//! out.

mod faults;
mod load;
mod network;
mod node;
mod run;

use hiroma_policy::placement::PlacementConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use faults::{
    FailureConfig, FaultConfig, OutageConfig, PartitionConfig, ScriptEvent, ScriptKind,
};
pub use load::{FirstTouch, LoadConfig, Spread, ThreadPlacement};
pub use network::{
    FetchPath, NetworkConfig, NetworkModel, PacketOrder, Sharing, Switching, TopologyConfig,
    TopologyKind,
};
pub use node::{DiskConfig, DiskTime, FrameFree, NodeClass, NodeConfig};
pub use run::{Canary, RunConfig};

/// Whether a setting has the value that stands for its absence: it is not written out then.
fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One cluster and its load.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Shape and size of the network.
    pub topology: TopologyConfig,
    /// Links and messages.
    pub network: NetworkConfig,
    /// Memory and processor of a node.
    pub node: NodeConfig,
    /// Disks.
    pub disk: DiskConfig,
    /// The load.
    pub load: LoadConfig,
    /// The policies that are compared.
    pub policy: PlacementConfig,
    /// Failures of nodes.
    pub failures: FailureConfig,
    /// What goes wrong in the network.
    pub faults: FaultConfig,
    /// Duration, and what is measured and checked.
    pub run: RunConfig,
    /// Links and nodes that fail and return, and nodes that join, at given times: `time_ns`, `kind`
    /// (`link_fails`, `link_returns`, `node_fails`, `node_returns`; with `policy.confirm` or `faults`
    /// also `node_joins`: the node is not there before) and `which`, as in `"7"` (a node), `"3 - 4"`
    /// (a link, both directions), `"3 -> 4"` (one).
    #[serde(skip_serializing_if = "is_unset")]
    pub event: Vec<ScriptEvent>,
}

impl Config {
    /// Whether messages are confirmed: by choice, or because there are faults.
    pub fn confirms(&self) -> bool {
        self.policy.confirm || self.faults.any()
    }
}
