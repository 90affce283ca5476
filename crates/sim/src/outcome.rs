//! The results of a run: counts and exact sums, in whole numbers, so that adding up runs gives the
//! same result anywhere.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// A number of items and the sum of a value over them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Number of items.
    pub count: u64,
    /// Sum, in the unit of the field that contains the tally.
    pub sum: u64,
}

impl Tally {
    /// Adds one item.
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum += value;
    }

    /// Mean; none without items.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }
}

/// Messages by kind; one that is sent along a tree counts once for every node that receives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Messages {
    /// Free frames reported to other nodes, and proximities.
    pub information: u64,
    /// Requests for bids, and bids.
    pub bids: u64,
    /// Requests for reservations, and answers.
    pub reservations: u64,
    /// Pages sent out: to another node or to disk.
    pub pages_out: u64,
    /// Requests for pages.
    pub requests: u64,
    /// Pages sent in.
    pub pages_in: u64,
    /// New places of pages; pages no longer needed.
    pub bookkeeping: u64,
}

impl Messages {
    /// The sum over all kinds.
    pub fn total(&self) -> u64 {
        self.information
            + self.bids
            + self.reservations
            + self.pages_out
            + self.requests
            + self.pages_in
            + self.bookkeeping
    }
}

/// What went wrong, and what was done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultTally {
    /// Messages lost, partitions not counted.
    pub lost: u64,
    /// Messages that arrived twice.
    pub repeated: u64,
    /// Messages that were delayed or overtaken.
    pub delayed: u64,
    /// Messages that a partition stopped.
    pub cut: u64,
    /// Messages that arrived at a node that had failed.
    pub unheard: u64,
    /// Suspicions, wrong ones included.
    pub suspicions: u64,
    /// Pages that were made whole after a piece was lost.
    pub repaired: u64,
    /// Guests that their host wrote to its disk.
    pub spilled: u64,
    /// Nodes that were emptied.
    pub drained: u64,
}

/// Measurements between the end of the warm-up and the end of the run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Seed of the run.
    pub seed: u64,
    /// Nodes, links and disks of the machine.
    pub nodes: u64,
    /// Links, one per direction.
    pub links: u64,
    /// Disks.
    pub disks: u64,
    /// Time measured, ns.
    pub measured_ns: u64,
    /// Events, warm-up included.
    pub events: u64,

    /// Response: time from a fault until its thread continues, ns. The measure of the paper's
    /// figures.
    pub response_ns: Histogram,
    /// The same for faults whose page was fetched from another node, ns.
    pub response_remote_ns: Histogram,
    /// The same for faults whose page was fetched from disk, ns.
    pub response_disk_ns: Histogram,
    /// Time from the arrival of a process to the end of its last thread, ns.
    pub process_ns: Histogram,
    /// Time from the start of a thread to its end, ns.
    pub thread_ns: Histogram,

    /// Pages fetched from another node: time from request to arrival, ns.
    pub transfer_ns: Tally,
    /// Pages fetched from another node: hops from there.
    pub transfer_hops: Tally,
    /// Pages fetched from disk: time from request to arrival, ns.
    pub disk_fetch_ns: Tally,
    /// Pages touched for the first time, or again after they were dropped while clean.
    pub first_touches: u64,
    /// Page accesses.
    pub accesses: u64,
    /// Time that threads computed between them, ns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compute_ns: u64,
    /// Pages dropped because they were clean.
    pub clean_drops: u64,
    /// Pages that went from a frame to attached memory instead of leaving their node.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier_stores: u64,
    /// Pages brought back from attached memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier_fetches: u64,
    /// Time that faults waited for a page from there, ns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier_fetch_ns: u64,
    /// The same with the time that they waited for a frame before, ns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub response_tier_ns: u64,
    /// Page-outs begun: pages evicted from a node, guests included.
    pub page_outs: u64,
    /// In a recording: pages that were dropped because a copy existed, and are paged out here,
    /// where each page is in one place.
    #[serde(default)]
    pub replay_drops: u64,
    /// In a recording: page-outs of pages that were out already. They had been brought back without
    /// a recorded fetch, or were discarded.
    #[serde(default)]
    pub replay_skipped: u64,
    /// Page-outs that had to be repeated: the page arrived where no frame was free.
    pub repeated_page_outs: u64,
    /// Page-outs that ended at another node.
    pub placed_remote: u64,
    /// Page-outs that ended on disk.
    pub placed_disk: u64,
    /// Guests that had to be sent on.
    pub guests_displaced: u64,
    /// Reservations refused.
    pub reservations_refused: u64,
    /// Messages by kind.
    pub messages: Messages,

    /// Sum over all links of their busy time, ns.
    pub link_busy_ns: u64,
    /// The same for the busiest link, ns.
    pub link_busy_max_ns: u64,
    /// Work that arrived for the processors of all nodes by messages, those that they forward
    /// included, ns.
    #[serde(default)]
    pub handler_busy_ns: u64,
    /// Sum over all disks of their busy time, ns (per server, where a disk serves several accesses
    /// at the same time).
    pub disk_busy_ns: u64,
    /// Accesses of all disks.
    pub disk_accesses: u64,
    /// Sum over all nodes of the time in which they had a thread, ns.
    pub node_busy_ns: u64,
    /// Sum over all nodes and time of used frames, frames x microseconds.
    pub frames_used_us: u64,

    /// Processes that arrived.
    pub processes_arrived: u64,
    /// Processes that ended.
    pub processes_ended: u64,
    /// Failures of nodes.
    pub node_failures: u64,
    /// Pages that were lost: with a node, or because none that has them could be reached.
    pub pages_lost: u64,
    /// Threads that had to restart because they, or pages of them, were lost.
    pub threads_restarted: u64,
    /// Lost work of those threads: time since they started, ns.
    pub work_lost_ns: u64,

    /// What went wrong in the network; nothing without `confirm` and faults.
    #[serde(default, skip_serializing_if = "is_default")]
    pub faults: FaultTally,

    /// Bytes carried by each link over the whole run, by link number; empty unless requested.
    pub link_bytes: Vec<u64>,
    /// Number of checks; a run in which a check fails is an error and has no outcome.
    pub checks: u64,
    /// The run over time and by node, if `run.samples` asks for it.
    #[serde(skip)]
    pub observed: Option<Box<Observed>>,
}

/// The machine at one moment. Counts of faults and page-outs are those since the warm-up ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Simulated time, ns.
    pub now_ns: u64,
    /// Whether the warm-up is over.
    pub measured: bool,
    /// Threads on nodes.
    pub threads: u64,
    /// Those of them that wait for a page.
    pub waiting: u64,
    /// Frames in use.
    pub frames_used: u64,
    /// Faults so far.
    pub faults: u64,
    /// The sum of their responses, ns.
    pub response_ns: u64,
    /// Page-outs so far.
    pub page_outs: u64,
    /// Those of them that ended at another node.
    pub placed_remote: u64,
    /// Those of them that ended on disk.
    pub placed_disk: u64,
}

/// Sums over the samples of one node after the warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeLoad {
    /// Frames in use.
    pub frames_used: u64,
    /// Frames with pages of other nodes.
    pub guests: u64,
    /// Samples in which the node had a thread.
    pub busy: u64,
    /// Samples in which that thread waited.
    pub waiting: u64,
    /// Threads that waited for the node.
    pub queued: u64,
}

/// A run over time and by node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observed {
    /// In the order of time.
    pub samples: Vec<Sample>,
    /// By node.
    pub loads: Vec<NodeLoad>,
    /// Samples that the sums by node are of.
    pub load_samples: u64,
}

fn is_default(tally: &FaultTally) -> bool {
    *tally == FaultTally::default()
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Outcome {
    /// Messages per page-out begun; none without page-outs.
    pub fn messages_per_page_out(&self) -> Option<f64> {
        (self.page_outs > 0).then(|| self.messages.total() as f64 / self.page_outs as f64)
    }

    /// Share of time in which a link was busy, mean over links, 0 to 1.
    pub fn link_use(&self) -> f64 {
        share(self.link_busy_ns, self.links, self.measured_ns)
    }

    /// Share of time in which the busiest link was busy, 0 to 1.
    pub fn link_use_max(&self) -> f64 {
        share(self.link_busy_max_ns, 1, self.measured_ns)
    }

    /// Work for the processors of nodes by messages, as a share of the time, mean over nodes; more
    /// than 1 where messages wait longer and longer.
    pub fn handler_use(&self) -> f64 {
        share(self.handler_busy_ns, self.nodes, self.measured_ns)
    }

    /// Share of time in which a disk was busy, mean over disks, 0 to 1.
    pub fn disk_use(&self) -> f64 {
        share(self.disk_busy_ns, self.disks, self.measured_ns)
    }

    /// Share of time in which a node had a thread, mean over nodes, 0 to 1.
    pub fn node_use(&self) -> f64 {
        share(self.node_busy_ns, self.nodes, self.measured_ns)
    }
}

fn share(busy_ns: u64, things: u64, span_ns: u64) -> f64 {
    if things == 0 || span_ns == 0 { 0.0 } else { busy_ns as f64 / things as f64 / span_ns as f64 }
}
