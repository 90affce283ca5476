//! One simulated machine whose file cache fills: zones with watermarks, kswapd, direct reclaim, and
//! the controller of [`hiroma_policy::reclaim`], the same object as in the live daemon.
//!
//! A fluid model in steps of 1 ms: pages have no identity, only amounts by zone, list and block
//! size. Costs are measured (Linux 6.18, 2 cores; medians): kswapd takes 165 ms per GiB and node
//! reclaim 155 ms. Compaction was not measured; it is assumed to take 1 s per GiB. Not modelled:
//! swap, several nodes, the per-CPU lists of free pages.

mod daemon;
mod memory;

use hiroma_policy::reclaim::{Reason, Settings, pages};

use daemon::Daemon;
use memory::Memory;

const STEP_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Cost of reclaiming a page, in picoseconds.
const KSWAPD_PS: u64 = 629_000;
const NODE_RECLAIM_PS: u64 = 591_000;
const COMPACT_PS: u64 = 3_815_000;

/// What a simulated program does with memory. Rates are in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Reads or writes a file larger than memory, in folios of 2 MiB (`large`) or single pages.
    Stream { bytes_s: u64, from_ms: u64, until_ms: u64, large: bool },
    /// Fills the cache with `bytes`, drops them (`posix_fadvise`), and starts over.
    MakeAndDrop { bytes_s: u64, bytes: u64 },
    /// Allocates `bytes` and keeps them.
    Allocate { bytes_s: u64, bytes: u64, from_ms: u64 },
}

/// One zone: sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneConfig {
    pub bytes: u64,
    pub min_bytes: u64,
    pub low_bytes: u64,
    pub high_bytes: u64,
    /// What ordinary allocations must leave free in it.
    pub reserve_bytes: u64,
}

/// A machine and what runs on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineConfig {
    /// In the order in which allocations try them.
    pub zones: Vec<ZoneConfig>,
    /// Memory of programs, at the beginning.
    pub anon_bytes: u64,
    /// File cache in use: read repeatedly, and missed when it is lost.
    pub hot_bytes: u64,
    /// File cache that no program needs, at the beginning.
    pub cold_bytes: u64,
    /// Share of free memory that is in blocks of 2 MiB at the beginning, in thousandths.
    pub large_free_permille: u64,
    pub loads: Vec<Load>,
    /// The daemon's settings; without them, there is no daemon.
    pub daemon: Option<Settings>,
    /// Idle processor time that the daemon sees, in millionths.
    pub idle_ppm: u64,
    pub duration_ms: u64,
}

impl MachineConfig {
    /// The machine on which the costs were measured: 20 GiB, its watermarks, 5 GiB of programs, 1
    /// GiB of files in use.
    pub fn measured() -> MachineConfig {
        let kib = |kib: u64| kib << 10;
        MachineConfig {
            zones: vec![
                ZoneConfig {
                    bytes: kib(17_432_576),
                    min_bytes: kib(57_360),
                    low_bytes: kib(74_792),
                    high_bytes: kib(92_224),
                    reserve_bytes: 0,
                },
                ZoneConfig {
                    bytes: kib(3_091_232),
                    min_bytes: kib(10_168),
                    low_bytes: kib(13_256),
                    high_bytes: kib(16_344),
                    reserve_bytes: kib(68_096),
                },
            ],
            anon_bytes: 5 << 30,
            hot_bytes: 1 << 30,
            cold_bytes: 8 << 30,
            large_free_permille: 900,
            loads: Vec::new(),
            daemon: None,
            idle_ppm: 500_000,
            duration_ms: 60_000,
        }
    }
}

/// The results of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MachineOutcome {
    pub kswapd_wakes: u64,
    /// Of these, for a missing large block while enough memory was free.
    pub kswapd_wakes_large: u64,
    pub kswapd_ns: u64,
    /// Times that a program had to reclaim directly.
    pub direct_reclaims: u64,
    pub daemon_ns: u64,
    /// Times that the daemon read the kernel's counters.
    pub looks: u64,
    pub daemon_pages: u64,
    /// Pages in use that were reclaimed and had to be read again.
    pub hot_missed_pages: u64,
    /// Pages that loads read or wrote through the cache.
    pub filled_pages: u64,
    /// Times that nothing was free and nothing could be reclaimed.
    pub out_of_memory: u64,
    /// Minimum of free pages over the run.
    pub free_pages_min: u64,
    /// Notable reasons of the daemon, each recorded when it first applies.
    pub journal: Vec<(u64, Reason)>,
}

/// A load and its progress.
struct Running {
    load: Load,
    pages: u64,
    /// Fractions of a page that are due, in pages x ns.
    owed: u64,
}

/// Runs a machine. Pure: the same configuration gives the same outcome.
pub fn run_machine(config: &MachineConfig) -> MachineOutcome {
    let mut memory = Memory::new(config);
    let mut daemon = config.daemon.map(Daemon::new);
    let mut loads: Vec<Running> =
        config.loads.iter().map(|&load| Running { load, pages: 0, owed: 0 }).collect();
    let mut outcome = MachineOutcome { free_pages_min: u64::MAX, ..MachineOutcome::default() };
    for ms in 0..config.duration_ms {
        for running in &mut loads {
            running.step(ms, &mut memory, &mut outcome);
        }
        memory.reread_hot(&mut outcome);
        memory.run_kswapd(&mut outcome);
        if let Some(daemon) = &mut daemon {
            daemon.step(ms * STEP_NS, config.idle_ppm, &mut memory, &mut outcome);
        }
        outcome.free_pages_min = outcome.free_pages_min.min(memory.free_pages());
    }
    outcome
}

impl Running {
    /// Whole pages that are due in this step at a rate.
    fn due(&mut self, bytes_s: u64) -> u64 {
        self.owed += pages(bytes_s) * STEP_NS;
        let due = self.owed / SECOND_NS;
        self.owed %= SECOND_NS;
        due
    }

    fn step(&mut self, ms: u64, memory: &mut Memory, outcome: &mut MachineOutcome) {
        match self.load {
            Load::Stream { bytes_s, from_ms, until_ms, large } => {
                if (from_ms..until_ms).contains(&ms) {
                    let due = self.due(bytes_s);
                    outcome.filled_pages += memory.fill(due, large, outcome);
                }
            }
            Load::MakeAndDrop { bytes_s, bytes } => {
                let due = self.due(bytes_s);
                let made = memory.fill(due, false, outcome);
                outcome.filled_pages += made;
                self.pages += made;
                if self.pages >= pages(bytes) {
                    memory.drop_cold(self.pages);
                    self.pages = 0;
                }
            }
            Load::Allocate { bytes_s, bytes, from_ms } => {
                if ms >= from_ms && self.pages < pages(bytes) {
                    let due = self.due(bytes_s).min(pages(bytes) - self.pages);
                    self.pages += memory.allocate(due, outcome);
                }
            }
        }
    }
}
