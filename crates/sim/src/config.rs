//! One simulated cluster: its nodes, network, disks, load and policies. Every default is the
//! paper's (table 1); `docs/internals/simulation.md` gives the reason for what the paper leaves
//! out.

use std::sync::Arc;

use hiroma_policy::placement::PlacementConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::topology::{LatencyMatrix, NetworkGraph};
use crate::trace::TraceRecord;

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

/// Whether a setting has the value that stands for its absence: it is not written out then.
fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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

/// When the frame of a page that is being paged out becomes free. The paper does not specify it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameFree {
    /// Immediately: the page waits in a buffer outside of the frames.
    AtOnce,
    /// When the last byte of the page is on its first link.
    Sent,
    /// When the receiving node has taken the page in and reported it, whether it stores the page or
    /// not.
    Arrived,
    /// When a node, or a disk, has reported that it stores the page: until then no other copy is
    /// certain.
    #[default]
    Placed,
}

/// Nodes that differ from the others (`[[node.class]]`); what is left out is as for all nodes. Of
/// several classes that name a node, the last one counts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeClass {
    /// Which nodes: numbers and ranges, as in `"0-15, 32"`.
    pub nodes: String,
    /// As `node.frames`.
    #[serde(skip_serializing_if = "is_unset")]
    pub frames: Option<u32>,
    /// As `node.access_ns`.
    #[serde(skip_serializing_if = "is_unset")]
    pub access_ns: Option<u64>,
    /// As `network.handler_ns`.
    #[serde(skip_serializing_if = "is_unset")]
    pub handler_ns: Option<u64>,
    /// As `network.page_handler_ns`.
    #[serde(skip_serializing_if = "is_unset")]
    pub page_handler_ns: Option<u64>,
    /// As `node.tier_frames`.
    #[serde(skip_serializing_if = "is_unset")]
    pub tier_frames: Option<u32>,
    /// As `node.tier_access_ns`.
    #[serde(skip_serializing_if = "is_unset")]
    pub tier_access_ns: Option<u64>,
    /// As `node.tier_bytes_per_s`.
    #[serde(skip_serializing_if = "is_unset")]
    pub tier_bytes_per_s: Option<u64>,
    /// Whether each of these nodes has a disk. If any class says so, `disk.count` does not count:
    /// disks are at the nodes of classes that have one, and the others use the nearest.
    #[serde(skip_serializing_if = "is_unset")]
    pub disk: Option<bool>,
    /// As `disk.access_ns`.
    #[serde(skip_serializing_if = "is_unset")]
    pub disk_access_ns: Option<u64>,
    /// As `disk.bytes_per_s`.
    #[serde(skip_serializing_if = "is_unset")]
    pub disk_bytes_per_s: Option<u64>,
    /// As `disk.parallel`.
    #[serde(skip_serializing_if = "is_unset")]
    pub disk_parallel: Option<u32>,
}

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

/// Memory and processor of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Frames of local memory.
    pub frames: u32,
    /// Size of a page, bytes.
    pub page_bytes: u64,
    /// Time from one page access of a thread to its next, without faults, ns.
    pub access_ns: u64,
    /// When the frame of an evicted page becomes free.
    pub frame_free: FrameFree,
    /// Frames of memory attached to each node (over CXL): own pages go there before they leave the
    /// node.
    #[serde(skip_serializing_if = "is_unset")]
    pub tier_frames: u32,
    /// Time to bring a page from there, besides its bytes, ns.
    #[serde(skip_serializing_if = "is_unset")]
    pub tier_access_ns: u64,
    /// Bandwidth of the attached memory, bytes/s; 0: bytes take no time.
    #[serde(skip_serializing_if = "is_unset")]
    pub tier_bytes_per_s: u64,
    /// Nodes that differ from the others: `nodes = "0-15, 32"`, and those of `frames`, `access_ns`,
    /// `handler_ns`, `page_handler_ns`, `tier_frames`, `tier_access_ns`, `tier_bytes_per_s`, `disk`
    /// (true or false), `disk_access_ns`, `disk_bytes_per_s` and `disk_parallel` that differ.
    #[serde(skip_serializing_if = "is_unset")]
    pub class: Vec<NodeClass>,
}

/// Disks. They are attached to nodes at equal distances; every node uses the disk of its part of
/// the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiskConfig {
    /// Disks in the whole machine.
    pub count: u32,
    /// Time of one access besides its bytes, ns.
    pub access_ns: u64,
    /// Transfer rate, bytes/s.
    pub bytes_per_s: u64,
    /// Accesses that a disk serves at the same time.
    pub parallel: u32,
    /// Distribution of the times of single accesses.
    pub time: DiskTime,
}

/// Distribution of the times of single accesses to a disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskTime {
    /// All take the same time.
    #[default]
    Fixed,
    /// Exponentially, with that time as the mean.
    Exponential,
}

/// Distribution of the sizes of programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// All sizes are equally frequent (the paper's text).
    #[default]
    Uniform,
    /// Bell-shaped; the limits are three standard deviations from the middle (the paper's table).
    Normal,
}

/// The source of the content of a page that was never written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstTouch {
    /// It is zeros: nothing is transferred.
    #[default]
    Zero,
    /// It is read from disk.
    Disk,
}

/// Which nodes the threads of a process run on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadPlacement {
    /// Each on a node drawn at random.
    #[default]
    Random,
    /// On nodes with consecutive numbers, starting at one drawn at random.
    Together,
}

/// Processes, threads and what they touch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoadConfig {
    /// Processes that arrive in the whole machine, per second (Poisson).
    pub arrivals_per_s: f64,
    /// Threads of a process: mean.
    pub threads_mean: u32,
    /// Threads of a process: standard deviation.
    pub threads_sd: u32,
    /// Where they run.
    pub threads_on: ThreadPlacement,
    /// Page accesses of a thread.
    pub accesses: u32,
    /// Smallest program, pages.
    pub virtual_pages_min: u32,
    /// Largest program, pages.
    pub virtual_pages_max: u32,
    /// Distribution of the sizes in between.
    pub virtual_spread: Spread,
    /// Accesses in one phase.
    pub phase_accesses: u32,
    /// Phases that a thread is in at the same time.
    pub phases_at_once: u32,
    /// Standard deviation of the pages touched in a phase, in thousandths of the program's size.
    pub locality_permille: u32,
    /// Reads per write.
    pub reads_per_write: u32,
    /// The content of pages that were never written.
    pub first_touch: FirstTouch,
    /// Replaces all of the above: recorded page-outs and page-ins.
    #[serde(skip)]
    pub trace: Option<Arc<[TraceRecord]>>,
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
    /// Mean time until a node learns that another has failed, ns; 0: only by its silence.
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
    /// With `policy.confirm`: a host that gets a newer version of a page keeps the older one.
    KeepVersion,
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
    /// A run is stuck if a fault is not answered for this long, ns.
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
    /// Links and nodes that fail and return at given times: `time_ns`, `kind` (`link_fails`,
    /// `link_returns`, `node_fails`, `node_returns`) and `which`, as in `"7"` (a node), `"3 - 4"` (a
    /// link, both directions), `"3 -> 4"` (one).
    #[serde(skip_serializing_if = "is_unset")]
    pub event: Vec<ScriptEvent>,
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
            message_bytes: 64,
            switching: Switching::StoreAndForward,
            multicast: true,
            free_information: false,
        }
    }
}

impl NetworkConfig {
    /// Size of the largest packet, bytes, with pages of `page_bytes`.
    pub(crate) fn packet_bytes_max(&self, page_bytes: u64) -> u64 {
        let whole = self.message_bytes + page_bytes;
        if self.packet_bytes == 0 { whole } else { self.packet_bytes.min(whole) }
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            frames: 64,
            page_bytes: 8192,
            access_ns: 1000,
            frame_free: FrameFree::Placed,
            tier_frames: 0,
            tier_access_ns: 0,
            tier_bytes_per_s: 0,
            class: Vec::new(),
        }
    }
}

impl Default for DiskConfig {
    fn default() -> Self {
        DiskConfig {
            count: 16,
            access_ns: 0,
            bytes_per_s: 5_900_000,
            parallel: 1,
            time: DiskTime::Fixed,
        }
    }
}

impl Default for LoadConfig {
    fn default() -> Self {
        LoadConfig {
            arrivals_per_s: 100.0,
            threads_mean: 9,
            threads_sd: 3,
            threads_on: ThreadPlacement::Random,
            accesses: 3600,
            virtual_pages_min: 1,
            virtual_pages_max: 128,
            virtual_spread: Spread::Uniform,
            phase_accesses: 60,
            phases_at_once: 1,
            locality_permille: 100,
            reads_per_write: 10,
            first_touch: FirstTouch::Zero,
            trace: None,
        }
    }
}

impl Default for FailureConfig {
    fn default() -> Self {
        FailureConfig { mean_between_ns: 0, repair_ns: 500_000_000, detect_ns: 1_000_000 }
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

impl Config {
    /// Whether messages are confirmed: by choice, or because there are faults.
    pub fn confirms(&self) -> bool {
        self.policy.confirm || self.faults.any()
    }
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
