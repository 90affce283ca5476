//! `hiroma bench noise`: the paper's experiment on noise, and the remedies in use today.

pub mod app;
mod arm;
mod extra;
mod ground;
pub mod load;
mod nfs;
mod results;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use arm::{Arm, Group};
use extra::{Keeper, STREAMS};
use ground::Ground;
use hiroma_command::files::Files;
use hiroma_command::machine;
use hiroma_command::refuse;
use hiroma_policy::reclaim::Settings;
use hiroma_quiet::settings;
use hiroma_report::Report;
use hiroma_units::Bytes;
use nfs::Source;
use results::Results;

use super::children::{Failed, Interrupt};
use super::progress::Progress;
use super::undo::{undo_leftovers, undo_on_panic};

/// Run the paper's experiment on noise of page reclamation on this machine.
///
/// A program computes in step on all processors but one, beside a program on the spare processor
/// that reads a file larger than the page cache. kswapd runs on the program's processor (the
/// constructed worst case), on the spare one, or on any. Nothing is done against the noise, or
/// `hiroma quiet serve` runs, or the remedies in use today are applied. Most memory is taken by the
/// bench, so that the rest is full within seconds. Requires root and two processors. Changed
/// settings are restored, if necessary by the next call after one that was killed.
#[derive(clap::Args)]
pub struct NoiseArgs {
    #[command(flatten)]
    files: Files,
    /// Run one short round, which shows that everything works but proves nothing
    #[arg(long)]
    quick: bool,
    /// Run only these experiments
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<Group>,
    /// Run only these arms, given by their keys in the table of arms, and the arms that they are
    /// compared with
    #[arg(long, value_name = "KEY,...", value_delimiter = ',', conflicts_with = "only")]
    arms: Vec<String>,
    /// Number of rounds, in each of which every arm runs once [default: 10, or 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Length of a turn in seconds [default: 30, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Rate of the reader, per second; a run is valid only if it kept the rate
    #[arg(long, value_name = "SIZE", default_value = "800M")]
    rate: Bytes,
    /// Rate of the writer, per second; it writes to a real disk
    #[arg(long, value_name = "SIZE", default_value = "150M")]
    write_rate: Bytes,
    /// Rate of the reader of a file over NFS, per second
    #[arg(long, value_name = "SIZE", default_value = "200M")]
    nfs_rate: Bytes,
    /// Size of the page cache that is left
    #[arg(long, value_name = "SIZE", default_value = "6G")]
    cache: Bytes,
    /// Directory for the files, on a file system with a page cache
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Setting of the daemon in all its turns, as in batch_bytes=64M (`hiroma quiet set` lists the
    /// settings); may be given several times
    #[arg(long = "setting", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Show the daemon's messages in each turn
    #[arg(long)]
    journal: bool,
    /// Read FILE instead of a sparse file: the disk is involved, or the network if it is on NFS
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Sizes and times of the experiments.
pub struct Params {
    pub quick: bool,
    pub rounds: u32,
    pub duration: Duration,
    pub step_us: u64,
    pub rate_bytes_s: u64,
    pub write_bytes_s: u64,
    pub nfs_bytes_s: u64,
    /// Multiple of the cache size that is streamed past hot files.
    pub hot_times: u64,
    pub chunk_turns: Option<u64>,
}

/// Duration of a turn beyond its own time.
const AROUND_S: f64 = 3.0;

impl Params {
    fn new(args: &NoiseArgs) -> Params {
        let (rounds, seconds) = if args.quick { (1, 2) } else { (10, 30) };
        Params {
            quick: args.quick,
            rounds: args.rounds.unwrap_or(rounds),
            duration: Duration::from_secs(args.seconds.unwrap_or(seconds)),
            step_us: 5000,
            rate_bytes_s: args.rate.0,
            write_bytes_s: args.write_rate.0,
            nfs_bytes_s: args.nfs_rate.0,
            hot_times: if args.quick { 2 } else { 10 },
            chunk_turns: None,
        }
    }

    fn streams(&self) -> u32 {
        self.rounds.min(5)
    }
}

fn wants(args: &NoiseArgs, group: Group) -> bool {
    args.arms.is_empty() && (args.only.is_empty() || args.only.contains(&group))
}

/// The selected arms.
fn chosen(args: &NoiseArgs) -> Result<Vec<Arm>> {
    if let Some(unknown) = args.arms.iter().find(|key| arm::ARMS.iter().all(|arm| arm.key != **key))
    {
        let keys: Vec<&str> = arm::ARMS.iter().map(|arm| arm.key).collect();
        return Err(refuse(format!("there is no arm `{unknown}`: there are {}", keys.join(", "))));
    }
    let is_wanted = |arm: &Arm| {
        if args.arms.is_empty() {
            wants(args, arm.group)
        } else {
            args.arms.iter().any(|key| key == arm.key)
        }
    };
    Ok(arm::with_baselines(is_wanted))
}

/// Estimated duration of everything, in seconds.
fn estimate(args: &NoiseArgs, params: &Params, arms: &[Arm]) -> f64 {
    let turn = params.duration.as_secs_f64() + AROUND_S;
    let mut all = 15.0 + f64::from(params.rounds) * arms.len() as f64 * turn;
    let cache_s = args.cache.0 as f64 / 2e9;
    all += if wants(args, Group::Hot) {
        Keeper::ALL.len() as f64 * (2.0 + params.hot_times as f64 * cache_s)
    } else {
        0.0
    };
    all += if wants(args, Group::Stream) {
        f64::from(params.streams()) * STREAMS.len() as f64 * turn
    } else {
        0.0
    };
    all + if wants(args, Group::Idle) { 10.0 } else { 0.0 }
}

/// The daemon's settings from the command line.
fn settings_of(texts: &[String]) -> Result<Settings> {
    let mut settings = Settings::default();
    for text in texts {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            refuse(format!("--setting {text}: write KEY=VALUE, like batch_bytes=64M"))
        })?;
        settings::set(&mut settings, key, value)
            .map_err(|error| refuse(format!("--setting {text}: {error}")))?;
    }
    Ok(settings)
}

/// Runs the experiments.
pub fn run(args: &NoiseArgs) -> Result<ExitCode> {
    args.files.check()?;
    let settings = settings_of(&args.settings)?;
    if !rustix::process::geteuid().is_root() {
        bail!("kswapd can be confined, and memory reclaimed early, by root only: run it with sudo");
    }
    undo_on_panic();
    let left = undo_leftovers();
    if left > 0 {
        eprintln!("put back {left} things that a bench that was killed had changed");
    }
    let mut params = Params::new(args);
    // Must come before this process is confined.
    let machine = machine::look();
    let interrupt = Interrupt::listen()?;
    let mut arms = chosen(args)?;
    let mut progress = Progress::new(estimate(args, &params, &arms));
    progress.starts("taking memory from the page cache");
    let mut ground = Ground::new(args.cache.0, &args.dir, args.file.as_deref())?;
    ground.settings = settings;
    let nfs = over_nfs(args, &mut ground, &mut arms);
    params.chunk_turns = Some(run::calibrate(&ground, &params, &interrupt)?.chunk_turns);
    progress.done(15.0);
    let mut results = Results { nfs, ..Results::new(arms) };
    let done = measure(args, &params, &ground, &interrupt, &mut progress, &mut results);
    match done {
        Ok(()) => {}
        Err(Failed::Interrupted) => progress.say("interrupted: what there is so far"),
        Err(Failed::Other(error)) => return Err(error),
        Err(other) => return Err(other.into()),
    }
    let interrupted = interrupt.came();
    let mut report = Report {
        title: "Noise of page reclamation on this machine".into(),
        machine,
        made_at: machine::now(),
        preamble: results::preamble(args.file.as_deref(), &ground, &params),
        ..Report::default()
    };
    results.report(&params, &mut report);
    drop(ground);
    drop(progress);
    for section in &report.sections {
        println!("\n{}", section.to_text());
    }
    super::deliver(report, &args.files)?;
    Ok(if interrupted { ExitCode::from(hiroma_command::INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Provides a file over NFS, if an arm needs one. If that is not possible, those arms are removed.
/// Returns a remark for the report.
fn over_nfs(args: &NoiseArgs, ground: &mut Ground, arms: &mut Vec<Arm>) -> Option<String> {
    if arms.iter().all(|arm| arm.group != Group::Nfs) {
        return None;
    }
    let named = args.file.as_deref().map(|file| (file, ground.read_bytes));
    Some(match Source::new(named, &ground.dir, ground::SPARSE_BYTES, ground.spare) {
        Ok(source) => {
            let what = format!("NFS: {}; at {} a second", source.what, args.nfs_rate);
            ground.nfs = Some(source);
            what
        }
        Err(why) => {
            arms.retain(|arm| arm.group != Group::Nfs);
            format!("NFS: not measured: {why:#}")
        }
    })
}

fn measure(
    args: &NoiseArgs,
    params: &Params,
    ground: &Ground,
    interrupt: &Interrupt,
    progress: &mut Progress,
    results: &mut Results,
) -> Result<(), Failed> {
    let turn = params.duration.as_secs_f64() + AROUND_S;
    if wants(args, Group::Idle) {
        progress.starts("the daemon while nothing happens");
        results.idle = extra::idle(if params.quick { 3 } else { 8 }, ground)?;
        progress.done(10.0);
    }
    for round in 0..params.rounds {
        for at in 0..results.arms.len() {
            let arm = results.arms[at].0;
            progress.starts(&format!("round {} of {}: {}", round + 1, params.rounds, arm.key));
            match run::run(&arm, ground, params, interrupt) {
                Ok(run) => {
                    if args.journal {
                        run.journal
                            .iter()
                            .for_each(|line| progress.say(&format!("{}: {line}", arm.key)));
                    }
                    results.add(at, run);
                }
                Err(Failed::Interrupted) => return Err(Failed::Interrupted),
                // An arm that fails on this machine does not end the others.
                Err(error) => {
                    progress.say(&format!("{}: {error:#}", arm.key));
                    results.failed(at, format!("{error:#}"));
                }
            }
            progress.done(turn);
        }
    }
    if wants(args, Group::Stream) {
        for round in 0..params.streams() {
            // The order rotates, so that each comes first in turn.
            for at in 0..STREAMS.len() {
                let (remedy, name) = STREAMS[(at + round as usize) % STREAMS.len()];
                progress.starts(&format!("streaming, against it: {name}"));
                results
                    .streams
                    .push((remedy, extra::stream(remedy, params.duration, ground, interrupt)?));
                progress.done(turn);
            }
        }
    }
    if wants(args, Group::Hot) {
        for keeper in Keeper::ALL {
            progress.starts(&format!("hot files: {}", keeper.name()));
            let kept = extra::hot(keeper, params.hot_times, ground, interrupt)?;
            results.hot.push((keeper, kept));
            progress.done(2.0 + params.hot_times as f64 * ground.cache_bytes as f64 / 2e9);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_settings_are_parsed_and_invalid_ones_refused() {
        let set = |texts: &[&str]| {
            settings_of(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
        };
        let settings = set(&["batch_bytes=64M", "poll_ns=50ms"]).unwrap();
        assert_eq!((settings.batch_bytes, settings.poll_ns), (64 << 20, 50_000_000));
        for (text, expected) in
            [("batch_bytes", "KEY=VALUE"), ("colour=1", "poll_ns"), ("batch_bytes=1G", "64MiB")]
        {
            let told = set(&[text]).unwrap_err().to_string();
            assert!(told.contains(expected), "{told}");
        }
    }
}
