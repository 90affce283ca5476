//! Disks: each serves a fixed number of accesses at a time, in order of arrival.

use hiroma_policy::placement::Rng;

use crate::classes::DiskSpec;
use crate::config::{DiskConfig, DiskTime};
use crate::network::transfer_ns;
use crate::random::exponential;

/// All disks.
#[derive(Debug)]
pub struct Disks {
    /// The node of each disk.
    at: Vec<u32>,
    /// The disk of each node.
    of_node: Vec<u32>,
    /// When each server of each disk is free, ns.
    free_ns: Vec<u64>,
    parallel: usize,
    service_ns: u64,
    /// If disks differ: of each, its first server and what it does.
    each: Vec<(usize, DiskSpec)>,
    random: Option<Rng>,
    busy_ns: u64,
    accesses: u64,
}

impl Disks {
    /// Disks at the nodes `at`, idle.
    pub fn new(
        config: &DiskConfig,
        page_bytes: u64,
        at: Vec<u32>,
        of_node: Vec<u32>,
        seed: u64,
    ) -> Self {
        Disks {
            free_ns: vec![0; at.len() * config.parallel as usize],
            parallel: config.parallel as usize,
            service_ns: config.access_ns + transfer_ns(page_bytes, config.bytes_per_s),
            random: (config.time == DiskTime::Exponential).then(|| Rng::part(seed, 0xd15c)),
            at,
            of_node,
            each: Vec::new(),
            busy_ns: 0,
            accesses: 0,
        }
    }

    /// Lets disks differ: `specs` has one for each.
    pub fn differ(&mut self, specs: &[DiskSpec]) {
        let mut servers = 0;
        for &spec in specs {
            self.each.push((servers, spec));
            servers += spec.parallel as usize;
        }
        self.free_ns = vec![0; servers];
    }

    /// Number of disks.
    pub fn count(&self) -> usize {
        self.at.len()
    }

    /// The node to which disk `disk` is attached.
    pub fn node(&self, disk: u32) -> u32 {
        self.at[disk as usize]
    }

    /// The disk that `node` uses.
    pub fn of_node(&self, node: u32) -> u32 {
        self.of_node[node as usize]
    }

    /// Starts an access as soon as possible. Returns when it is done, ns.
    pub fn access(&mut self, now_ns: u64, disk: u32) -> u64 {
        let (server, parallel, mean_ns) = match self.each.get(disk as usize) {
            None => (disk as usize * self.parallel, self.parallel, self.service_ns),
            Some(&(server, spec)) => (server, spec.parallel as usize, spec.service_ns),
        };
        let service_ns = match &mut self.random {
            Some(rng) => exponential(rng, mean_ns as f64),
            None => mean_ns,
        };
        let places = &mut self.free_ns[server..][..parallel];
        let mut first = 0;
        for place in 1..places.len() {
            if places[place] < places[first] {
                first = place;
            }
        }
        let done_ns = places[first].max(now_ns) + service_ns;
        places[first] = done_ns;
        self.busy_ns += service_ns;
        self.accesses += 1;
        done_ns
    }

    /// Resets the measurements; what waits or is under way at `now_ns` counts from then on.
    pub fn restart_measuring(&mut self, now_ns: u64) {
        self.busy_ns = self.ahead_ns(now_ns);
        self.accesses = 0;
    }

    /// Work that is accepted and not done, ns.
    fn ahead_ns(&self, now_ns: u64) -> u64 {
        self.free_ns.iter().map(|free_ns| free_ns.saturating_sub(now_ns)).sum()
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.at.capacity() * 4 + self.of_node.capacity() * 4 + self.free_ns.capacity() * 8
    }

    /// Busy time of all disks (per server) and accesses since measuring began.
    pub fn measured(&self, now_ns: u64) -> (u64, u64) {
        // Where disks differ: per server, on average.
        let servers = match self.each.len() {
            0 => self.parallel as u64,
            disks => (self.free_ns.len() as u64).div_ceil(disks as u64),
        };
        (self.busy_ns.saturating_sub(self.ahead_ns(now_ns)) / servers, self.accesses)
    }
}
