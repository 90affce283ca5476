//! `hiroma run`: checks the machine, starts the program with far memory, acts in its place towards
//! the caller, and reports a summary.

mod checks;
mod members;
mod options;
mod progress;

pub use options::{Args, local_limit};

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hiroma_far::config::{CONFIG_ENV, Config};
use hiroma_far::waking::Costs;
use rustix::process::Pid;

use hiroma_command::{Failure, refuse, show};
use hiroma_metrics::{Endpoint, registry_of};
use hiroma_run::accessed::Reader;
use hiroma_run::budget::Divider;
use hiroma_run::herald::{self, Herald};
use hiroma_run::metrics::Figures;
use hiroma_run::outside::Outside;
use hiroma_run::program::{self, start_failure};
use hiroma_run::record::Recording;
use hiroma_run::rundir::RunDir;
use hiroma_run::series::{Sampler, Series};
use hiroma_run::signals::{Ending, Signals};
use hiroma_run::stats::Report;
use hiroma_run::watch::Watch;
use hiroma_run::{preload, processes, report};
use members::Follower;
use progress::Progress;

/// Files that are written at the end: one that cannot be written should fail before the program runs.
fn check_outputs(args: &Args) -> Result<()> {
    if let Some(path) = &args.stats {
        fs::File::create(path).map_err(|error| {
            refuse(format!("--stats {}: cannot write there: {error}", path.display()))
        })?;
    }
    if let Some(path) = &args.report {
        hiroma_command::files::check(path).map_err(|error| refuse(format!("--report {error}")))?;
    }
    Ok(())
}

/// Runs the program.
pub fn main(args: Args) -> Result<ExitCode> {
    let program = program::find(&args.command[0])
        .and_then(|path| program::check(&path).map(|()| path))
        .map_err(|error| {
            anyhow::Error::from(Failure { code: error.code(), message: error.to_string() })
        })?;
    let (mut config, following) = args.config()?;
    let path = checks::machine(&config)?;
    if args.verbose {
        show::say(&checks::describe(path, &config));
    }
    checks::stores(&config)?;
    let library = preload::find()?;
    check_outputs(&args)?;
    let dir = RunDir::create()?;
    config.control_dir = Some(dir.path().to_owned());
    config.runner = Some(std::process::id());
    config.waking = Costs::measure();
    config.trace = args.trace.is_some();
    let watch = Arc::new(Mutex::new(Watch::new(dir.path().to_owned())));
    let _endpoint = args.metrics.map(|address| serve_metrics(address, &watch)).transpose()?;
    let mut recording = args
        .trace
        .as_deref()
        .map(|path| Recording::start(path, dir.path(), &config))
        .transpose()?;
    let reader = (!args.no_accessed_bits).then(|| Reader::start(dir.path().to_owned())).flatten();
    let mut signals = Signals::take_over().context("cannot take over the signals")?;
    let mut command = command_for(&args, &program, &library, dir.path(), &config)?;
    let start = Instant::now();
    let child = command.spawn().map_err(|error| {
        if let Some(recording) = recording.take() {
            recording.abandon();
        }
        start_failure(&program, &error)
    })?;
    let herald = Herald::start(dir.path().to_owned(), Arc::clone(&watch), child.id());
    let divider = Divider::start(&config, dir.path());
    let follower = following.map(|following| Follower::start(following, dir.path()));
    let sampler = args.report.is_some().then(|| Sampler::start(Arc::clone(&watch), start));
    let progress = args.progress.and_then(|when| Progress::start(when, Arc::clone(&watch)));
    let pid =
        Pid::from_raw(child.id() as i32).ok_or_else(|| anyhow!("the program has no process id"))?;
    let mut ending = signals
        .pass_on_until_end(pid, || herald::describe(dir.path()))
        .context("cannot wait for the program")?;
    let elapsed = start.elapsed();
    herald.stop();
    drop(divider);
    processes::await_pager(dir.path(), child.id());
    drop(follower);
    let unreadable = reader.and_then(Reader::stop);
    if let Some(code) = herald::exit_code(dir.path(), child.id()) {
        // From outside, the pager can end a program only by a signal, so the exit code that it
        // recorded replaces that signal.
        ending = Ending::Exited(code);
    }
    if let Some(progress) = progress {
        progress.stop();
    }

    let trace = recording.and_then(|recording| recording.finish(args.quiet));
    let series = finish_series(sampler, &watch, elapsed);
    let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
    watch.update();
    let report = Report {
        watch: &watch,
        config: &config,
        command: &args.command,
        path,
        ending,
        elapsed,
        main_pid: child.id(),
        outside: Outside::read(dir.path()),
        trace,
        unreadable,
        lacks: checks::lacks(path, &config),
    };
    if !args.quiet {
        show::say(&report.summary());
    }
    if let Some(path) = &args.stats {
        write_stats(path, &report);
    }
    if let (Some(path), Some(series)) = (&args.report, &series) {
        if let Err(error) =
            hiroma_command::files::write(path, &report::page(&report, series).to_html())
        {
            show::say(&format!("--report: cannot write the report: {error:#}"));
        }
    }
    drop(dir);
    Ok(ending.imitate())
}

/// Serves metrics of the run until it ends.
fn serve_metrics(address: SocketAddr, watch: &Arc<Mutex<Watch>>) -> Result<Endpoint> {
    let figures = Figures { watch: Arc::clone(watch), start: Instant::now() };
    let endpoint = Endpoint::open(address, registry_of("hiroma_run", figures))
        .map_err(|error| refuse(format!("--metrics {address}: cannot listen there: {error}")))?;
    if address.port() == 0 {
        show::say(&format!("metrics are at http://{}/metrics", endpoint.address()));
    }
    Ok(endpoint)
}

/// The program with its environment.
fn command_for(
    args: &Args,
    program: &Path,
    library: &Path,
    dir: &Path,
    config: &Config,
) -> Result<Command> {
    let mut command = Command::new(program);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    preload::set(&mut command, library, dir)?;
    command.env(
        CONFIG_ENV,
        serde_json::to_string(config).context("cannot write the configuration as JSON")?,
    );

    hiroma_sys::helper::end_with_us(&mut command);
    Ok(command)
}

/// Ends the series with a sample of the end of the run.
fn finish_series(
    sampler: Option<Sampler>,
    watch: &Mutex<Watch>,
    elapsed: Duration,
) -> Option<Series> {
    let series = sampler?.stop();
    let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
    watch.update();
    Some(series.ended(&watch, elapsed))
}

/// Writes the statistics. A failure is only reported, because the program's exit code takes
/// precedence.
fn write_stats(path: &Path, report: &Report) {
    let written = serde_json::to_vec_pretty(&report.json())
        .map_err(io::Error::from)
        .and_then(|json| fs::write(path, json));
    if let Err(error) = written {
        show::say(&format!("--stats {}: cannot write the statistics: {error}", path.display()));
    }
}
