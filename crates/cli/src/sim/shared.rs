//! Options, exit codes and files that the subcommands share.

use std::time::Instant;

use anyhow::{Context, Result};
use hiroma_sim::{Canary, RunError};
use hiroma_sim_lab::cluster::cluster_of;
use hiroma_sim_lab::forecast::{self, Forecast, Plan};
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

/// Less memory, and less time, s, are not worth a word.
const MUCH: Bytes = Bytes(256 << 20);
const LONG_S: f64 = 10.0;

/// What runs are about to take, if it is much.
fn outlook(plan: &Plan<'_>, threads: usize, forecast: Forecast) -> Option<String> {
    let time = forecast.wall_s.filter(|wall_s| *wall_s >= LONG_S).map(time);
    let memory =
        (forecast.bytes >= MUCH.0).then(|| format!("at least {} of memory", Bytes(forecast.bytes)));
    let takes: Vec<String> =
        [time.map(|time| format!("about {time}")), memory].into_iter().flatten().collect();
    let (runs, part) = (plan.runs(), plan.part());
    let part = if part.is_empty() { String::new() } else { format!(" for {part}") };
    (!takes.is_empty()).then(|| {
        format!(
            "{runs} run{}{part}, {} at the same time (--jobs changes it): {}",
            if runs == 1 { "" } else { "s" },
            threads.min(runs),
            takes.join(" and ")
        )
    })
}

/// By how much the runs that are `done`, of those in the forecast, took another time, if by much.
fn surprise(forecast: Forecast, done: f64, took_s: f64) -> Option<String> {
    let wall_s = forecast.wall_s? * done;
    let is_other = (took_s > 2.0 * wall_s || wall_s > 2.0 * took_s) && took_s.max(wall_s) >= LONG_S;
    is_other.then(|| format!("took {}; {} had been expected", time(took_s), time(wall_s)))
}

/// A time that is not known well.
fn time(s: f64) -> String {
    if s < 90.0 {
        format!("{s:.0} s")
    } else if s < 5400.0 {
        format!("{:.0} min", s / 60.0)
    } else {
        format!("{:.0} h", s / 3600.0)
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

/// What `work` does in a lab that shows its progress, ends on signals, and before it takes the
/// machine's last memory. What the runs of `plan` are about to take is told before, if it is much.
pub fn in_lab<T>(
    threads: usize,
    plan: &Plan<'_>,
    work: impl FnOnce(&Lab<'_>, &Progress) -> Result<T>,
) -> Result<T> {
    in_broken_lab(threads, plan, Canary::None, work)
}

/// The same with a bug built in, wherever it can act.
pub fn in_broken_lab<T>(
    threads: usize,
    plan: &Plan<'_>,
    canary: Canary,
    work: impl FnOnce(&Lab<'_>, &Progress) -> Result<T>,
) -> Result<T> {
    let instead = with_canary(canary);
    let stop = stop_on_signals()?;
    let memory = Memory::default();
    let lacking = |bytes| memory.lacking(bytes);
    // What is measured ahead is not broken: it only tells how long the runs take.
    let ahead =
        Lab { threads, stop: &stop, advance: &|_| (), lacking: &lacking, instead: &|_| None };
    let forecast = plan.forecast(&ahead, forecast::wall_s);
    if let Some(outlook) = outlook(plan, threads, forecast) {
        eprintln!("{outlook}");
    }
    let (progress, start) = (Progress::new(plan.runs() as f64), Instant::now());
    let lab = Lab { advance: &|part| progress.advance(part), instead: &instead, ..ahead };
    let done = work(&lab, &progress)?;
    let took_s = start.elapsed().as_secs_f64();
    if let Some(surprise) = surprise(forecast, progress.share(), took_s) {
        progress.note(&surprise);
    }
    Ok(done)
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

#[cfg(test)]
mod tests {
    use hiroma_sim::Config;

    use super::*;

    #[test]
    fn much_is_told_before_and_other_times_after() {
        let config = Config::default();
        let plan = Plan::new([(&config, 45.0)]);
        let told = |wall_s, bytes| outlook(&plan, 2, Forecast { bytes, wall_s });
        assert_eq!(told(Some(9.0), 1 << 20), None);
        assert_eq!(
            told(Some(200.0), 3 << 29).unwrap(),
            "45 runs, 2 at the same time (--jobs changes it): about 3 min and at least 1.5GiB of memory"
        );
        assert!(told(Some(12.3), 0).unwrap().ends_with(": about 12 s"));
        assert!(told(None, 1 << 30).unwrap().ends_with(": at least 1GiB of memory"));
        let one = Plan::new([(&config, 1.0)]).for_one("step");
        let told = outlook(&one, 8, Forecast { bytes: 0, wall_s: Some(1e5) }).unwrap();
        assert_eq!(told, "1 run for step, 1 at the same time (--jobs changes it): about 28 h");

        let forecast = Forecast { bytes: 0, wall_s: Some(100.0) };
        assert_eq!(surprise(forecast, 1.0, 199.0), None);
        assert_eq!(surprise(forecast, 1.0, 51.0), None);
        assert_eq!(surprise(forecast, 1.0, 201.0).unwrap(), "took 3 min; 2 min had been expected");
        assert!(surprise(forecast, 1.0, 49.0).is_some());
        // Twice as many runs as in the forecast.
        assert_eq!(surprise(forecast, 2.0, 201.0), None);
        assert_eq!(surprise(Forecast { bytes: 0, wall_s: Some(1.0) }, 1.0, 9.0), None);
        assert_eq!(surprise(Forecast { bytes: 0, wall_s: None }, 1.0, 100.0), None);
    }
}
