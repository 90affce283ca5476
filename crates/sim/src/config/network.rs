//! Shape of the network, links and messages.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::is_unset;
use crate::topology::{LatencyMatrix, NetworkGraph};

/// Shape of the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TopologyKind {
    /// `dims = [width, height]`; every node has four links.
    #[default]
    #[serde(rename = "torus2d")]
    Torus2d,
    /// `dims = [x, y, z]`; every node has six links.
    #[serde(rename = "torus3d")]
    Torus3d,
    /// `dims = [nodes per leaf, leaves per pod, pods]`; each level of switches has as much
    /// bandwidth up as down.
    FatTree,
    /// `dims = [nodes per router, routers per group, groups]`; the routers of a group are fully
    /// connected, and so are the groups.
    Dragonfly,
    /// `dims = [nodes]`; one switch that is never the bottleneck.
    FullBisection,
    /// `dims = [nodes per leaf, leaves, spines]`; each leaf has one link to each spine
    /// (`uplink_bytes_per_s`).
    LeafSpine,
    /// Any network, from a file (`file`) of nodes, switches and links.
    Graph,
    /// Nodes with measured latencies between each two, from a table (`file`).
    Matrix,
}

/// Shape and size of the network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TopologyConfig {
    /// Shape.
    pub kind: TopologyKind,
    /// Size; `kind` determines how many numbers there are and what they mean.
    pub dims: Vec<u32>,
    /// Bandwidth of a link between a leaf and a spine, bytes/s (`leaf_spine`); 0: as
    /// `network.bytes_per_s`.
    #[serde(skip_serializing_if = "is_unset")]
    pub uplink_bytes_per_s: u64,
    /// The file with the network (`graph`: TOML, `matrix`: CSV), relative to the cluster's file.
    #[serde(skip_serializing_if = "is_unset")]
    pub file: String,
    /// The network of `file` (`graph`).
    #[schemars(skip)]
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "content")]
    pub graph: Option<Arc<NetworkGraph>>,
    /// The latencies of `file` (`matrix`).
    #[schemars(skip)]
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "content")]
    pub latencies: Option<Arc<LatencyMatrix>>,
}

impl Default for TopologyConfig {
    fn default() -> Self {
        TopologyConfig {
            kind: TopologyKind::Torus2d,
            dims: vec![16, 16],
            uplink_bytes_per_s: 0,
            file: String::new(),
            graph: None,
            latencies: None,
        }
    }
}

/// What a file contained is a part of the configuration.
fn content<T: Serialize, S: Serializer>(
    content: &Option<Arc<T>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    content.as_deref().serialize(serializer)
}

/// How a node or a switch forwards a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Switching {
    /// It is received completely before it is forwarded.
    #[default]
    StoreAndForward,
    /// It is forwarded as soon as its head has arrived.
    CutThrough,
}

/// What messages on the same links do to each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetworkModel {
    /// A link carries one message at a time; others wait in order of arrival, any number of them.
    #[default]
    Fifo,
    /// All messages share the links of their routes at the same time, by max-min fairness.
    Fair,
    /// Messages are cut into packets; small messages may go first, and buffers may be finite.
    Packets,
}

/// Which packet goes first where several wait for a link (`model = "packets"`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PacketOrder {
    /// Those of messages without a page, then the others; each kind in order of arrival.
    #[default]
    Priority,
    /// One of a message without a page and one of a page by turns.
    Interleaved,
    /// The one that arrived first. All packets of a message arrive at its sender's link together.
    Fifo,
}

/// What a fair share is (`model = "fair"`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Equal for all messages on a full link.
    #[default]
    Equal,
    /// In inverse proportion to the latency of the route, as with TCP.
    ByLatency,
}

/// The way of a page that its owner requests back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FetchPath {
    /// The shortest one, from the node that has it.
    #[default]
    Direct,
    /// Back over every node that passed the page on when it was paged out; the request takes the
    /// same way.
    Back,
}

/// Links and messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// What messages on the same links do to each other.
    #[serde(skip_serializing_if = "is_unset")]
    pub model: NetworkModel,
    /// What a fair share is (`model = "fair"`).
    #[serde(skip_serializing_if = "is_unset")]
    pub sharing: Sharing,
    /// Largest packet, bytes (`model = "packets"`); 0: messages are sent whole.
    #[serde(skip_serializing_if = "is_unset")]
    pub packet_bytes: u64,
    /// Which packet goes first where several wait for a link (`model = "packets"`).
    #[serde(skip_serializing_if = "is_unset")]
    pub order: PacketOrder,
    /// Room for packets at the end of each link, for each of its virtual channels, bytes
    /// (`model = "packets"`); a full buffer stops the packets that would enter it. 0: unlimited.
    #[serde(skip_serializing_if = "is_unset")]
    pub buffer_bytes: u64,
    /// Bandwidth of one link in one direction, bytes/s.
    pub bytes_per_s: u64,
    /// Propagation time of one link, ns.
    pub latency_ns: u64,
    /// Time for which a message occupies a link besides its bytes: the work of forwarding it, ns.
    pub hop_overhead_ns: u64,
    /// Additional time for a page: it is copied into and out of the memory of every node that it
    /// passes, ns.
    pub page_overhead_ns: u64,
    /// Time for which a message occupies its receiver, ns.
    pub handler_ns: u64,
    /// Additional time for a message with a page: the page is copied and entered in the tables, ns.
    pub page_handler_ns: u64,
    /// Time for which a message occupies the processor of each node that it passes on its way, ns; 0:
    /// nodes are passed without their processors. Torus, `model = "fifo"`, store and forward only.
    #[serde(skip_serializing_if = "is_unset")]
    pub forward_ns: u64,
    /// Additional time for a page, ns.
    #[serde(skip_serializing_if = "is_unset")]
    pub page_forward_ns: u64,
    /// The way of a page that its owner requests back.
    #[serde(skip_serializing_if = "is_unset")]
    pub fetch_path: FetchPath,
    /// Size of a message without a page, and of the header of one with a page, bytes.
    pub message_bytes: u64,
    /// How nodes and switches forward messages.
    pub switching: Switching,
    /// Whether information for a whole domain is sent along a tree (torus only) instead of to one
    /// peer after the other.
    pub multicast: bool,
    /// A bound that no machine reaches: what a node reports to its domain is known there
    /// immediately, and costs nothing.
    pub free_information: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        NetworkConfig {
            model: NetworkModel::Fifo,
            sharing: Sharing::Equal,
            packet_bytes: 0,
            order: PacketOrder::Priority,
            buffer_bytes: 0,
            bytes_per_s: 100_000_000,
            latency_ns: 0,
            hop_overhead_ns: 5_000,
            page_overhead_ns: 0,
            handler_ns: 5_000,
            page_handler_ns: 250_000,
            forward_ns: 0,
            page_forward_ns: 0,
            fetch_path: FetchPath::Direct,
            message_bytes: 64,
            switching: Switching::StoreAndForward,
            multicast: true,
            free_information: false,
        }
    }
}

impl NetworkConfig {
    /// Time of the processor of a node that a message without, or with, a page passes, ns.
    pub(crate) fn forward_ns(&self) -> [u64; 2] {
        [self.forward_ns, self.forward_ns + self.page_forward_ns]
    }

    /// Size of the largest packet, bytes, with pages of `page_bytes`.
    pub(crate) fn packet_bytes_max(&self, page_bytes: u64) -> u64 {
        let whole = self.message_bytes + page_bytes;
        if self.packet_bytes == 0 { whole } else { self.packet_bytes.min(whole) }
    }
}
