//! Options, exit codes and files that the subcommands share.

use anyhow::{Context, Result};
use hiroma_sim::{Canary, Config, RunError};
use hiroma_sim_lab::cluster::cluster_of;
use hiroma_sim_lab::jobs::Stop;
use hiroma_sim_lab::lab::{Lab, LabError, with_canary};
use hiroma_sim_lab::settings::Settings;
use hiroma_sim_lab::single::seeds_from;
use hiroma_units::Bytes;

use super::memory::Memory;
use super::progress::Progress;
pub use hiroma_command::files::{Files, Outputs, check, write};
pub use hiroma_command::report;
use hiroma_command::{Failure, INTERRUPTED, refuse};

/// Exit codes of runs that failed. The code of refusals is `hiroma_command::REFUSED`.
pub const STUCK: u8 = 3;
pub const WRONG: u8 = 4;
pub const CRASHED: u8 = 5;
pub const POLICY: u8 = 6;

/// Options for the seeds of runs.
#[derive(clap::Args)]
pub struct Runs {
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub jobs: Jobs,
}

/// Options for the number of threads.
#[derive(clap::Args)]
pub struct Jobs {
    /// Number of runs at the same time [default: number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

/// A bug that is built in, to see that the checkers find it.
#[derive(clap::Args)]
pub struct Broken {
    /// Build in a bug wherever it can act: the command has to fail (`hiroma sim explain run.canary`)
    #[arg(long, value_name = "NAME")]
    canary: Option<String>,
}

impl Broken {
    /// The bug.
    pub fn canary(&self) -> Result<Canary> {
        let Some(name) = &self.canary else { return Ok(Canary::None) };
        // The paper's machine with reservations: all that can act there can act in it.
        let text = format!("policy.reservation = \"in_advance\"\nrun.canary = {name:?}\n");
        let settings = Settings::parse("--canary", &text).map_err(refused)?;
        Ok(cluster_of(settings).map_err(refused)?.run.canary)
    }
}

impl Runs {
    /// The first `count` seeds, starting with `--seed`.
    pub fn seeds(&self, count: u32) -> Vec<u64> {
        seeds_from(self.seed, count as usize)
    }
}

impl Jobs {
    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.jobs.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        )
    }
}

/// Less memory is not worth a word.
const MUCH: Bytes = Bytes(256 << 20);

/// Says how much memory `runs` runs at the same time take at least, if it is much: those of the
/// largest of `configs`. The time that they take is told by their progress.
pub fn tell_memory<'a>(configs: impl IntoIterator<Item = &'a Config>, runs: usize) {
    let need_bytes = |config| {
        let need = hiroma_sim::need(config);
        need.idle_bytes.saturating_add(need.table_bytes)
    };
    let each = configs.into_iter().map(need_bytes).max().unwrap_or(0);
    let all = Bytes(each.saturating_mul(runs as u64));
    if all.0 >= MUCH.0 {
        eprintln!(
            "runs at the same time: {runs}, with at least {all} of memory (--jobs changes it)"
        );
    }
}

/// A flag that is set by SIGINT, SIGTERM and SIGHUP.
pub fn stop_on_signals() -> Result<Stop> {
    let stop = Stop::new();
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, stop.flag()).context("listening to signals")?;
    }
    Ok(stop)
}

/// What `work` does in a lab that shows the progress of `runs` runs, ends on signals, and before it
/// takes the machine's last memory.
pub fn in_lab<T>(
    threads: usize,
    runs: usize,
    work: impl FnOnce(&Lab<'_>, &Progress) -> Result<T>,
) -> Result<T> {
    in_broken_lab(threads, runs, Canary::None, work)
}

/// The same with a bug built in, wherever it can act.
pub fn in_broken_lab<T>(
    threads: usize,
    runs: usize,
    canary: Canary,
    work: impl FnOnce(&Lab<'_>, &Progress) -> Result<T>,
) -> Result<T> {
    let instead = with_canary(canary);
    let (stop, progress) = (stop_on_signals()?, Progress::new(runs as f64));
    let memory = Memory::default();
    let lab = Lab {
        threads,
        stop: &stop,
        advance: &|part| progress.advance(part),
        lacking: &|bytes| memory.lacking(bytes),
        instead: &instead,
    };
    work(&lab, &progress)
}

/// Converts the failure of a run to one with the exit code of its kind.
pub fn failed(error: LabError) -> anyhow::Error {
    let code = match &error {
        LabError::Failed { error: RunError::Config(_), .. } => hiroma_command::REFUSED,
        LabError::Failed { error: RunError::Stuck(_), .. } => STUCK,
        LabError::Failed { error: RunError::Wrong(_), .. } => WRONG,
        LabError::Failed { error: RunError::Policy(_), .. } => POLICY,
        LabError::Interrupted => INTERRUPTED,
        _ => 1,
    };
    Failure { code, message: error.to_string() }.into()
}

/// Installs a panic hook: from now on, a panic on any thread ends the program with exit code
/// [`CRASHED`].
pub fn tell_crashes_apart() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        eprintln!(
            "hiroma: the simulator crashed; this is a bug: keep the configuration and the seed"
        );
        std::process::exit(CRASHED.into());
    }));
}

/// A refusal of a file or a trace.
pub fn refused(error: impl std::fmt::Display) -> anyhow::Error {
    refuse(error.to_string())
}
