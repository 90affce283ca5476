//! How a process is to be managed.

use hiroma_policy::huge::{PaperRule, Rule, Settings, Window};

use crate::ledger::LedgerDir;
use crate::tracker::Backend;

const MS: u64 = 1_000_000;

/// All of it; `Options::default()` is what the command uses.
pub struct Options {
    /// Thresholds and limits of decisions.
    pub settings: Settings,
    /// What a range deserves; the paper's rule unless somebody knows better.
    pub rule: Box<dyn Rule>,
    /// Share of one processor that tracking and collapsing may take, in millionths (10,000 is 1 %).
    pub cpu_ppm: u64,
    /// By how much the process may be slowed down by being tracked, in millionths, as far as that
    /// can be told beforehand ([`hiroma_policy::huge::BURDEN_PER_PAGE_NS`]).
    pub slowdown_ppm: u64,
    /// Processor time that may be spent at once, ahead of its share; four times as much for the
    /// slowdown: so that a new process need not wait.
    pub burst_ns: u64,
    /// How long a round watches.
    pub window: Window,
    /// Collapsing stops when the 99th percentile of its durations is above this.
    pub stall_ns: u64,
    /// Make the memory of huge pages ready before collapsing into them, where that is seen to
    /// shorten it ([`hiroma_policy::huge::warm`]).
    pub make_ready: bool,
    /// Passes in a row without anything to do after which the process counts as settled.
    pub quiet_passes: u16,
    /// When settled: the time until everything is looked at again, and a few huge pages are taken
    /// apart to see what is in use. None: never, the engine is done.
    pub recheck_ns: Option<u64>,
    /// Huge ranges taken apart in one such look at most.
    pub recheck_ranges: usize,
    /// Only this way of tracking.
    pub backend: Option<Backend>,
    /// Only watch: nothing is decided, and it goes on until the process ends.
    pub watch_only: bool,
    /// Decide, but change nothing.
    pub dry_run: bool,
    /// The process is told of its active pages, and makes huge pages itself; so the ledger says.
    /// Goes with `dry_run`.
    pub told: bool,
    /// Where the ledger goes; none: nowhere.
    pub ledger: Option<LedgerDir>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            settings: Settings::default(),
            rule: Box::new(PaperRule),
            cpu_ppm: 10_000,
            slowdown_ppm: 5_000,
            burst_ns: 400 * MS,
            window: Window::new(5 * MS, MS, 500 * MS),
            stall_ns: 10 * MS,
            make_ready: true,
            quiet_passes: 4,
            recheck_ns: None,
            recheck_ranges: 8,
            backend: None,
            watch_only: false,
            dry_run: false,
            told: false,
            ledger: Some(LedgerDir::of_this_user()),
        }
    }
}
