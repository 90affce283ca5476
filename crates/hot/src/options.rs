//! How a process is managed.

use hiroma_policy::huge::{PaperRule, Rule, Settings, Window};

use crate::ledger::LedgerDir;
use crate::tracker::Backend;
use crate::trial::TrialOptions;

const MS: u64 = 1_000_000;

/// All options; `Options::default()` is what the command uses.
pub struct Options {
    /// Thresholds and limits of decisions.
    pub settings: Settings,
    /// Ranks ranges; the paper's rule unless the caller knows a better one.
    pub rule: Box<dyn Rule>,
    /// Share of one processor that tracking and collapsing may take, in millionths (10,000 is 1 %).
    pub cpu_ppm: u64,
    /// Share of one processor that collapsing completely present ranges may take, in millionths, in
    /// addition to `cpu_ppm`; 0: they are treated like others.
    pub collapse_ppm: u64,
    /// By how much tracking may slow the process down, in millionths, as far as that can be
    /// estimated beforehand ([`hiroma_policy::huge::BURDEN_PER_PAGE_NS`]).
    pub slowdown_ppm: u64,
    /// Processor time that may be spent ahead of each share, so that a new process need not wait:
    /// little enough that no second is slowed down by more than a few percent.
    pub burst_ns: u64,
    /// Length of the windows.
    pub window: Window,
    /// Collapsing stops when the 99th percentile of its durations is above this.
    pub stall_ns: u64,
    /// Make the memory of huge pages ready before collapsing into them, while measurements show
    /// that this shortens the collapse ([`hiroma_policy::huge::warm`]).
    pub make_ready: bool,
    /// The process counts as settled after this many passes in a row without anything to do.
    pub quiet_passes: u16,
    /// When settled: the time until everything is watched again, and a few huge pages are split to
    /// check what is in use. None: never, the engine is done.
    pub recheck_ns: Option<u64>,
    /// Maximum number of huge ranges that are split in one such check.
    pub recheck_ranges: usize,
    /// Use only this backend.
    pub backend: Option<Backend>,
    /// Where clearing accessed bits misleads the kernel's reclaim, clear none while the machine is
    /// short of memory.
    pub waits_for_calm: bool,
    /// Only watch: decide nothing, and continue until the process ends.
    pub watch_only: bool,
    /// Decide, but change nothing.
    pub dry_run: bool,
    /// The process receives its active pages and makes huge pages itself; the ledger records this.
    /// Requires `dry_run`.
    pub told: bool,
    /// Try whether huge pages help, once the process has what it is to have.
    pub trial: Option<TrialOptions>,
    /// The directory of the ledger; without one, none is written.
    pub ledger: Option<LedgerDir>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            settings: Settings::default(),
            rule: Box::new(PaperRule),
            cpu_ppm: 10_000,
            collapse_ppm: 50_000,
            slowdown_ppm: 5_000,
            burst_ns: 20 * MS,
            window: Window::new(5 * MS, MS, 500 * MS),
            stall_ns: 10 * MS,
            make_ready: true,
            quiet_passes: 4,
            recheck_ns: None,
            recheck_ranges: 8,
            backend: None,
            waits_for_calm: true,
            watch_only: false,
            dry_run: false,
            told: false,
            trial: None,
            ledger: Some(LedgerDir::of_this_user()),
        }
    }
}
