//! Memory, processor and disks of nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_unset;

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
