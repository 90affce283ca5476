//! What the kernel says, as the controller wants it.

use std::io;
use std::path::Path;

use hiroma_kernel::quiet::memory::{Counters, MemoryInfo, NodeInfo, ZoneInfo};
use hiroma_kernel::quiet::tasks::{self, CpuTimes};
use hiroma_policy::reclaim::{Node, Observation, PAGE_BYTES, Zone};

/// Looks again and again.
#[derive(Debug)]
pub(super) struct Observer {
    housekeeping: Vec<usize>,
    last: Vec<CpuTimes>,
    last_ns: u64,
    idle_ppm: u64,
}

/// `/proc/stat` counts in steps of 10 ms: over less than this an idle share says nothing.
const IDLE_NS_MIN: u64 = 400_000_000;

impl Observer {
    /// For reclaim on these processors.
    pub(super) fn new(housekeeping: &[usize]) -> Observer {
        Observer { housekeeping: housekeeping.to_vec(), last: Vec::new(), last_ns: 0, idle_ppm: 1_000_000 }
    }

    pub(super) fn look(&mut self, now_ns: u64) -> io::Result<Observation> {
        let info = MemoryInfo::read(Path::new("/"))?;
        if self.last.is_empty() || now_ns.saturating_sub(self.last_ns) >= IDLE_NS_MIN {
            let times = tasks::cpu_times()?;
            if !self.last.is_empty() {
                let all_ns = (now_ns - self.last_ns) * self.housekeeping.len().max(1) as u64;
                self.idle_ppm = (idle(&times, &self.housekeeping).saturating_sub(idle(&self.last, &self.housekeeping)))
                    .saturating_mul(1_000_000)
                    .checked_div(all_ns)
                    .unwrap_or(0);
            }
            (self.last, self.last_ns) = (times, now_ns);
        }
        Ok(observation(&info, rustix::param::page_size() as u64, self.idle_ppm))
    }
}

fn idle(times: &[CpuTimes], cpus: &[usize]) -> u64 {
    times.iter().filter(|times| cpus.contains(&times.cpu)).map(|times| times.idle_ns).sum()
}

/// The machine, with pages of the kernel's size turned into those of 4 KiB.
pub(super) fn observation(info: &MemoryInfo, page_bytes: u64, idle_ppm: u64) -> Observation {
    let factor = (page_bytes / PAGE_BYTES).max(1);
    let files = |node: &NodeInfo| node.counters.get("nr_inactive_file") + node.counters.get("nr_active_file");
    let all_files: u64 = info.nodes.iter().map(files).sum();
    let node = |node: &NodeInfo| {
        let own = &node.counters;
        // Some kernels count reclaim for the machine only: then every node gets its part by the files that it holds.
        let reclaim = |name: &str| match own.has(name) {
            true => own.get(name) * factor,
            false => part(info.counters.get(name) * factor, files(node), all_files),
        };
        Node {
            id: node.node,
            zones: node.zones.iter().map(|zone| self::zone(zone, factor)).collect(),
            inactive_file_pages: own.get("nr_inactive_file") * factor,
            active_file_pages: own.get("nr_active_file") * factor,
            dirty_pages: own.get("nr_dirty") * factor,
            writeback_pages: own.get("nr_writeback") * factor,
            held_pages: held(own, factor),
            stolen_file_pages: reclaim("pgsteal_file"),
            missed_file_pages: own.get("workingset_activate_file") * factor,
            kswapd_scanned_pages: reclaim("pgscan_kswapd"),
            direct_scanned_pages: reclaim("pgscan_direct"),
        }
    };
    Observation { nodes: info.nodes.iter().map(node).collect(), idle_ppm }
}

/// Anonymous, shared and kernel memory that reclaiming file cache does not give back.
fn held(counters: &Counters, factor: u64) -> u64 {
    let names = ["nr_anon_pages", "nr_shmem", "nr_slab_unreclaimable", "nr_page_table_pages"];
    let stacks_kib = counters.get("nr_kernel_stack");
    names.iter().map(|name| counters.get(name)).sum::<u64>() * factor + stacks_kib / 4
}

fn part(value: u64, of: u64, whole: u64) -> u64 {
    (u128::from(value) * u128::from(of)).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

fn zone(zone: &ZoneInfo, factor: u64) -> Zone {
    Zone {
        managed_pages: zone.managed * factor,
        free_pages: zone.free * factor,
        min_pages: zone.min * factor,
        low_pages: zone.low * factor,
        high_pages: zone.high * factor,
        reserve_pages: zone.reserve * factor,
        free_blocks: zone.free_blocks.map(|blocks| blocks * factor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u32, vmstat: &str) -> NodeInfo {
        NodeInfo { node, zones: vec![ZoneInfo { node, free: 10, high: 3, ..ZoneInfo::default() }], counters: Counters::parse(vmstat) }
    }

    #[test]
    fn counters_of_the_machine_are_divided_among_nodes_that_have_none() {
        let nodes = vec![node(0, "nr_inactive_file 30\nnr_anon_pages 5\nnr_shmem 1\n"), node(1, "nr_active_file 10\npgsteal_file 7\n")];
        let info = MemoryInfo { nodes, counters: Counters::parse("pgsteal_file 400\npgscan_kswapd 80\n") };
        let seen = observation(&info, 16384, 5);
        assert_eq!((seen.nodes[0].inactive_file_pages, seen.nodes[0].held_pages, seen.nodes[0].zones[0].free_pages), (120, 24, 40));
        assert_eq!((seen.nodes[0].stolen_file_pages, seen.nodes[1].stolen_file_pages), (1200, 28));
        assert_eq!((seen.nodes[0].kswapd_scanned_pages, seen.nodes[1].kswapd_scanned_pages), (240, 80));
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let mut observer = Observer::new(&[0]);
        let seen = observer.look(1).unwrap();
        assert!(!seen.nodes.is_empty() && seen.nodes.iter().any(|node| node.zones.iter().any(|zone| zone.high_pages > 0)));
        assert!(seen.nodes.iter().any(|node| node.held_pages > 0));
    }
}
