//! The kernel's counters, in the form that the controller needs.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use hiroma_policy::reclaim::observe::HUGE_ORDER;
use hiroma_policy::reclaim::{Node, Observation, PAGE_BYTES, Zone};
use hiroma_sys::cpu::thread_ns;
use hiroma_sys::quiet::memory::{Counters, MemoryInfo, NodeInfo, ZoneInfo, pressure};
use hiroma_sys::quiet::reclaim::Mechanism;
use hiroma_sys::quiet::tasks::{self, CpuTimes};
use hiroma_sys::quiet::watch::MemoryWatch;

/// Observes the machine repeatedly.
#[derive(Debug)]
pub(super) struct Observer {
    watch: MemoryWatch,
    watermarks_ns: Option<u64>,
    /// Pages that kswapd had scanned at the last observation.
    scanned: u64,
    housekeeping: Vec<usize>,
    last: Vec<CpuTimes>,
    last_ns: u64,
    /// Processor time of kswapd and of this thread, at that time.
    reclaim_ns: u64,
    kswapds: Vec<u32>,
    idle_ppm: u64,
    /// Pages dropped behind streams: in total at the last observation, and by node.
    dropped_pages: u64,
    dropped_of: BTreeMap<u32, u64>,
}

/// The kernel's counters that are read.
const NAMES: &[&str] = &[
    "nr_inactive_file",
    "nr_active_file",
    "nr_file_hugepages",
    "nr_dirty",
    "nr_writeback",
    "nr_anon_pages",
    "nr_shmem",
    "nr_slab_unreclaimable",
    "nr_page_table_pages",
    "nr_kernel_stack",
    "workingset_activate_file",
    "pgsteal_file",
    "pgscan_kswapd",
    "pgscan_direct",
];

/// `/proc/stat` counts in steps of 10 ms: over a shorter time an idle share is meaningless, and
/// over a longer one it says nothing about the present.
const IDLE_NS: std::ops::Range<u64> = 400_000_000..3_000_000_000;
/// Watermarks change when memory is added, a setting is written, or, temporarily, when page types
/// mix: kswapd works then.
const WATERMARKS_NS: u64 = 30_000_000_000;

impl Observer {
    /// An observer for reclaim on these processors.
    pub(super) fn new(housekeeping: &[usize]) -> io::Result<Observer> {
        let watch = MemoryWatch::open(Path::new("/"), NAMES)?;
        let kswapds =
            tasks::reclaimers().into_iter().filter(|task| task.kind == tasks::TaskKind::Kswapd);
        Ok(Observer {
            watch,
            watermarks_ns: None,
            scanned: 0,
            housekeeping: housekeeping.to_vec(),
            last: Vec::new(),
            last_ns: 0,
            reclaim_ns: 0,
            kswapds: kswapds.map(|task| task.tid).collect(),
            idle_ppm: 1_000_000,
            dropped_pages: 0,
            dropped_of: BTreeMap::new(),
        })
    }

    /// The machine now. The idle time of its processors is read only where it matters: `filling`.
    /// `dropped_pages` were dropped behind streams so far.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        filling: bool,
        dropped_pages: u64,
    ) -> io::Result<Observation> {
        let due =
            self.watermarks_ns.is_none_or(|last| now_ns.saturating_sub(last) >= WATERMARKS_NS);
        if due {
            self.watermarks_ns = Some(now_ns);
        }
        let info = self.watch.look(due)?;
        let scanned = info.counters.get("pgscan_kswapd");
        if scanned != self.scanned {
            (self.scanned, self.watermarks_ns) = (scanned, None);
        }
        if filling {
            self.look_at_processors(now_ns)?;
        }
        let mut seen = observation(&info, rustix::param::page_size() as u64, self.idle_ppm);
        seen.stalled_ns =
            pressure(Path::new("/")).map_or(0, |pressure| pressure.full_us.saturating_mul(1000));
        self.divide_dropped(dropped_pages, &mut seen.nodes);
        Ok(seen)
    }

    /// The nodes of the dropped pages are unknown: they are divided in proportion to the file pages
    /// of each node now.
    fn divide_dropped(&mut self, dropped_pages: u64, nodes: &mut [Node]) {
        let added =
            dropped_pages.saturating_sub(std::mem::replace(&mut self.dropped_pages, dropped_pages));
        let all = nodes.iter().map(Node::file_pages).sum();
        for node in nodes {
            let sum = self.dropped_of.entry(node.id).or_insert(0);
            *sum += part(added, node.file_pages(), all);
            node.dropped_file_pages = *sum;
        }
    }

    /// Pages that were reclaimed on request so far; none if the kernel does not count them. For a
    /// control group, all file pages that were reclaimed for any reason: before Linux 6.16 there is
    /// no closer counter.
    pub(super) fn stolen(&mut self, by: &Mechanism) -> Option<u64> {
        let name =
            if matches!(by, Mechanism::Node(_)) { "pgsteal_proactive" } else { "pgsteal_file" };
        let factor = (rustix::param::page_size() as u64 / PAGE_BYTES).max(1);
        self.watch.counter(name).ok()?.map(|pages| pages * factor)
    }

    fn look_at_processors(&mut self, now_ns: u64) -> io::Result<()> {
        let passed_ns = now_ns.saturating_sub(self.last_ns);
        if !self.last.is_empty() && passed_ns < IDLE_NS.start {
            return Ok(());
        }
        let times = tasks::cpu_times()?;
        let kswapds = self.kswapds.iter().filter_map(|&tid| tasks::one(tid));
        let reclaim_ns = kswapds.map(|task| task.run_ns).sum::<u64>() + thread_ns();
        self.idle_ppm = if self.last.is_empty() || passed_ns >= IDLE_NS.end {
            1_000_000
        } else {
            let all_ns = passed_ns * self.housekeeping.len().max(1) as u64;
            // What kswapd and this daemon use is available for reclaim.
            let idle_ns = idle(&times, &self.housekeeping)
                .saturating_sub(idle(&self.last, &self.housekeeping));
            let own_ns = reclaim_ns.saturating_sub(self.reclaim_ns);
            idle_ns
                .saturating_add(own_ns)
                .min(all_ns)
                .saturating_mul(1_000_000)
                .checked_div(all_ns)
                .unwrap_or(0)
        };
        (self.last, self.last_ns, self.reclaim_ns) = (times, now_ns, reclaim_ns);
        Ok(())
    }
}

fn idle(times: &[CpuTimes], cpus: &[usize]) -> u64 {
    times.iter().filter(|times| cpus.contains(&times.cpu)).map(|times| times.idle_ns).sum()
}

/// The machine, with pages of the kernel's size converted to 4 KiB pages.
pub(super) fn observation(info: &MemoryInfo, page_bytes: u64, idle_ppm: u64) -> Observation {
    let factor = (page_bytes / PAGE_BYTES).max(1);
    let files = |node: &NodeInfo| {
        node.counters.get("nr_inactive_file") + node.counters.get("nr_active_file")
    };
    let all_files: u64 = info.nodes.iter().map(files).sum();
    let node = |node: &NodeInfo| {
        let own = &node.counters;
        // Some kernels count reclaim only for the whole machine: it is then divided in proportion
        // to the file pages of each node.
        let reclaim = |name: &str| match own.has(name) {
            true => own.get(name) * factor,
            false => part(info.counters.get(name) * factor, files(node), all_files),
        };
        Node {
            id: node.node,
            zones: node.zones.iter().map(|zone| self::zone(zone, factor)).collect(),
            inactive_file_pages: own.get("nr_inactive_file") * factor,
            active_file_pages: own.get("nr_active_file") * factor,
            // Counted in pages of 2 MiB.
            large_file_pages: own.get("nr_file_hugepages") << HUGE_ORDER,
            dirty_pages: own.get("nr_dirty") * factor,
            writeback_pages: own.get("nr_writeback") * factor,
            held_pages: held(own, factor),
            stolen_file_pages: reclaim("pgsteal_file"),
            dropped_file_pages: 0,
            missed_file_pages: own.get("workingset_activate_file") * factor,
            kswapd_scanned_pages: reclaim("pgscan_kswapd"),
            direct_scanned_pages: reclaim("pgscan_direct"),
        }
    };
    Observation { nodes: info.nodes.iter().map(node).collect(), idle_ppm, stalled_ns: 0 }
}

/// Anonymous, shared and kernel memory, which reclaiming file cache does not free.
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
        NodeInfo {
            node,
            zones: vec![ZoneInfo { node, free: 10, high: 3, ..ZoneInfo::default() }],
            counters: Counters::parse(vmstat),
        }
    }

    #[test]
    fn machine_counters_are_divided_among_nodes_without_any() {
        let nodes = vec![
            node(0, "nr_inactive_file 30\nnr_anon_pages 5\nnr_shmem 1\n"),
            node(1, "nr_active_file 10\npgsteal_file 7\n"),
        ];
        let info =
            MemoryInfo { nodes, counters: Counters::parse("pgsteal_file 400\npgscan_kswapd 80\n") };
        let seen = observation(&info, 16384, 5);
        assert_eq!(
            (
                seen.nodes[0].inactive_file_pages,
                seen.nodes[0].held_pages,
                seen.nodes[0].zones[0].free_pages
            ),
            (120, 24, 40)
        );
        assert_eq!((seen.nodes[0].stolen_file_pages, seen.nodes[1].stolen_file_pages), (1200, 28));
        assert_eq!(
            (seen.nodes[0].kswapd_scanned_pages, seen.nodes[1].kswapd_scanned_pages),
            (240, 80)
        );
    }

    #[test]
    fn dropped_pages_are_divided_once_and_never_decrease() {
        let mut observer = Observer::new(&[0]).unwrap();
        let nodes = |files: [u64; 2]| {
            files.map(|inactive_file_pages| Node {
                id: inactive_file_pages as u32 % 2,
                inactive_file_pages,
                ..Node::default()
            })
        };
        let mut look = |dropped, files| {
            let mut nodes = nodes(files);
            observer.divide_dropped(dropped, &mut nodes);
            nodes.map(|node| node.dropped_file_pages)
        };
        assert_eq!(look(80, [30, 11]), [58, 21]);
        assert_eq!(look(80, [10, 1001]), [58, 21]);
        assert_eq!(look(180, [0, 1]), [58, 121]);
    }

    #[test]
    fn this_machine_can_be_observed() {
        let mut observer = Observer::new(&[0]).unwrap();
        let seen = observer.look(1, true, 0).unwrap();
        assert!(
            !seen.nodes.is_empty()
                && seen.nodes.iter().any(|node| node.zones.iter().any(|zone| zone.high_pages > 0))
        );
        assert!(seen.nodes.iter().any(|node| node.held_pages > 0));
    }
}
