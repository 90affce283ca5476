//! The daemon's interface to a watched process, and its implementation with the engine.

use std::collections::BTreeSet;

use hiroma_policy::huge::shares::Use;
use hiroma_sys::cpu::now_ns;
use hiroma_units::{EXTENT, PAGE};

use super::protocol::{Mode, Page, Registration};
use crate::engine::{Engine, State};
use crate::error::HotError;
use crate::ledger::LedgerDir;
use crate::options::Options;
use crate::tracker::Backend;
use crate::trial::{Gain, TrialOptions};

/// Why a watch is over.
pub type Ended = String;

/// A process under watch.
pub trait Watch {
    /// Name of the backend that tracks it.
    fn backend(&self) -> String;

    /// Does what is due. Returns when to call again, and whether counts are new.
    fn step(&mut self, now_ns: u64) -> Result<(u64, bool), Ended>;

    /// How it uses huge pages that the daemon made.
    fn use_of_huge_pages(&self) -> Use;

    /// What it gains by them, once that was measured.
    fn gain(&self) -> Option<&Gain> {
        None
    }

    /// Changes how many ranges of 2 MiB the daemon may make huge.
    fn set_budget_ranges(&mut self, ranges: u64);

    /// How much there is to watch: the processor time of all is divided by it.
    fn weight(&self) -> u64 {
        1
    }

    /// Changes the share of one processor that watching may take, in millionths.
    fn set_cpu_ppm(&mut self, cpu_ppm: u64);

    /// The same for collapsing completely present ranges.
    fn set_collapse_ppm(&mut self, _collapse_ppm: u64) {}

    /// The pages to report to the process, by address.
    fn active_pages(&self) -> Vec<Page>;
}

/// Starts to watch a process; called by the daemon when one registers.
pub type Open = Box<dyn FnMut(&Registration) -> Result<Box<dyn Watch>, HotError>>;

/// How often a process that has settled is checked again.
const RECHECK_NS: u64 = 5_000_000_000;
/// A process that has settled needs this part of the processor time that others of its size get.
const SETTLED_PART: u64 = 8;
/// Processor time that may be spent ahead for each process: many may begin at once.
const BURST_NS: u64 = 4_000_000;

/// Engines for processes that register.
#[derive(Clone, Debug)]
pub struct Engines {
    /// Use only this backend.
    pub backend: Option<Backend>,
    /// The directory of ledgers; without one, none are written.
    pub ledger: Option<LedgerDir>,
    /// Measure what each process gains.
    pub trial: Option<TrialOptions>,
}

impl Engines {
    /// The function that the daemon calls.
    pub fn into_open(self) -> Open {
        Box::new(move |wish| {
            let mut options = Options {
                backend: self.backend,
                ledger: self.ledger.clone(),
                recheck_ns: Some(RECHECK_NS),
                burst_ns: BURST_NS,
                dry_run: wish.mode == Mode::Notified,
                told: wish.mode == Mode::Notified,
                trial: self.trial,
                ..Options::default()
            };
            // The budget follows as soon as the shares are known.
            options.settings.budget_bytes = 0;
            let engine = Engine::new(wish.pid, options, now_ns())?;
            Ok(Box::new(EngineWatch { engine, wish: *wish }))
        })
    }
}

struct EngineWatch {
    engine: Engine,
    wish: Registration,
}

impl Drop for EngineWatch {
    /// A process does not stay without its huge pages because the daemon ends in the middle of a
    /// trial, and its ledger says that this was no accident.
    fn drop(&mut self) {
        let is_alive = self.engine.target().is_alive();
        let why = if is_alive { "the daemon left it" } else { "the process ended" };
        self.engine.leave(now_ns(), why);
    }
}

impl Watch for EngineWatch {
    fn backend(&self) -> String {
        self.engine.backend().to_string()
    }

    fn step(&mut self, now_ns: u64) -> Result<(u64, bool), Ended> {
        let step = self.engine.step(now_ns).map_err(|error| error.to_string())?;
        match step.state {
            State::Tracking | State::Settled => Ok((step.next_ns, step.pass_over)),
            State::Stopped(reason) => Err(reason),
            State::Gone => Err("it has ended".to_owned()),
        }
    }

    fn use_of_huge_pages(&self) -> Use {
        let usage = self.engine.usage();
        let ranges = |bytes: u64| bytes / EXTENT as u64;
        let active = ranges(usage.used_bytes);
        Use {
            active,
            wanted: ranges(usage.wanted_bytes),
            idle: ranges(usage.huge_bytes).saturating_sub(active),
        }
    }

    fn gain(&self) -> Option<&Gain> {
        self.engine.gain()
    }

    fn set_budget_ranges(&mut self, ranges: u64) {
        self.engine.set_budget(ranges.saturating_mul(EXTENT as u64), now_ns());
    }

    fn weight(&self) -> u64 {
        if self.engine.is_left_alone(now_ns()) {
            return 1;
        }
        let part = if self.engine.is_settled() { SETTLED_PART } else { 1 };
        self.engine.memory_bytes() / part
    }

    fn set_cpu_ppm(&mut self, cpu_ppm: u64) {
        self.engine.set_cpu_ppm(cpu_ppm);
    }

    fn set_collapse_ppm(&mut self, collapse_ppm: u64) {
        self.engine.set_collapse_ppm(collapse_ppm);
    }

    fn active_pages(&self) -> Vec<Page> {
        let settings = self.engine.settings();
        let regroup: BTreeSet<u64> =
            self.engine.regroup().map(|address| address / EXTENT as u64).collect();
        let told = |range: u64| self.wish.mode == Mode::Notified || regroup.contains(&range);
        let known = self.engine.heat().ranges().filter(|(range, heat)| {
            !heat.huge && heat.windows >= settings.windows_min && told(*range)
        });
        let mut pages = Vec::new();
        for (range, heat) in known {
            let least = if self.wish.count_min == 0 {
                self.engine.hot_count(heat.windows).into()
            } else {
                self.wish.count_min
            };
            let counted =
                heat.counts.iter().zip(0u64..).filter(|&(count, _)| u32::from(count) >= least);
            pages.extend(counted.map(|(count, page)| Page {
                address: range * EXTENT as u64 + page * PAGE as u64,
                count: count.into(),
                reserved: 0,
            }));
        }
        pages
    }
}
