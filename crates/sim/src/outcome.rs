//! What a run has to tell: counts and exact sums, in whole numbers, so that runs can be added up
//! anywhere with the same result.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// A number of things and the sum of something about them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Sum, in the unit of the field that holds the tally.
    pub sum: u64,
}

impl Tally {
    /// Adds one thing.
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum += value;
    }

    /// Mean; none without anything counted.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }
}

/// Messages by kind; one that is sent along a tree counts once for every node that gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Messages {
    /// Free frames told to others, and proximities.
    pub information: u64,
    /// Requests for bids, and bids.
    pub bids: u64,
    /// Requests for reservations, and answers.
    pub reservations: u64,
    /// Pages on their way out: to another node or to disk.
    pub pages_out: u64,
    /// Requests for pages.
    pub requests: u64,
    /// Pages on their way in.
    pub pages_in: u64,
    /// Where a page is now; pages no longer needed.
    pub bookkeeping: u64,
}

impl Messages {
    /// All of them.
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

/// What was measured between the end of the warm-up and the end of the run.
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

    /// Response: time from a fault until its thread goes on, ns. The measure of the paper's
    /// figures.
    pub response_ns: Histogram,
    /// The same for faults whose page came from another node, ns.
    pub response_remote_ns: Histogram,
    /// The same for faults whose page came from disk, ns.
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
    /// Pages touched for the first time, or again after they were dropped unwritten.
    pub first_touches: u64,
    /// Page accesses.
    pub accesses: u64,
    /// Pages dropped because nothing was written to them.
    pub clean_drops: u64,
    /// Page-outs begun: pages that left a node, guests included.
    pub page_outs: u64,
    /// Of a recording: pages that were dropped because a copy existed, and go out here, where each
    /// page is in one place.
    #[serde(default)]
    pub replay_drops: u64,
    /// Of a recording: page-outs of pages that were out already. They had come back without being
    /// fetched, or were discarded.
    #[serde(default)]
    pub replay_skipped: u64,
    /// Page-outs that had to be repeated: arrivals where no frame was free.
    pub repeated_page_outs: u64,
    /// Page-outs that ended at another node.
    pub placed_remote: u64,
    /// Page-outs that ended on disk.
    pub placed_disk: u64,
    /// Guests that had to leave again.
    pub guests_displaced: u64,
    /// Reservations refused.
    pub reservations_refused: u64,
    /// Messages by kind.
    pub messages: Messages,

    /// Sum over all links of the time in which they carried something, ns.
    pub link_busy_ns: u64,
    /// The same for the busiest link, ns.
    pub link_busy_max_ns: u64,
    /// Sum over all disks of the time in which they worked, ns (of one place, where a disk works on
    /// several accesses at once).
    pub disk_busy_ns: u64,
    /// Accesses of all disks.
    pub disk_accesses: u64,
    /// Sum over all nodes of the time in which they had a thread, ns.
    pub node_busy_ns: u64,
    /// Sum over all nodes and time of used frames, frames x microseconds.
    pub frames_used_us: u64,

    /// Processes that arrived and that ended.
    pub processes_arrived: u64,
    /// Processes that ended.
    pub processes_ended: u64,
    /// Failures of nodes.
    pub node_failures: u64,
    /// Pages that were lost with a node.
    pub pages_lost: u64,
    /// Threads that had to start again because they, or pages of them, were lost.
    pub threads_restarted: u64,
    /// Work of those threads that was lost: time since they started, ns.
    pub work_lost_ns: u64,

    /// Bytes carried by each link over the whole run, by link number; empty unless asked for.
    pub link_bytes: Vec<u64>,
    /// What the checkers looked at; a run that they object to is an error and has no outcome.
    pub checks: u64,
}

impl Outcome {
    /// Messages for each page-out begun; none without page-outs.
    pub fn messages_per_page_out(&self) -> Option<f64> {
        (self.page_outs > 0).then(|| self.messages.total() as f64 / self.page_outs as f64)
    }

    /// Share of time in which a link carried something, mean over links, 0 to 1.
    pub fn link_use(&self) -> f64 {
        share(self.link_busy_ns, self.links, self.measured_ns)
    }

    /// Share of time in which the busiest link carried something, 0 to 1.
    pub fn link_use_max(&self) -> f64 {
        share(self.link_busy_max_ns, 1, self.measured_ns)
    }

    /// Share of time in which a disk worked, mean over disks, 0 to 1.
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
