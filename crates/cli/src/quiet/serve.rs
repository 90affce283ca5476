//! `hiroma quiet serve`, `set` and `restore`.

use std::io::{Write, stderr, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use hiroma_command::refuse;
use hiroma_quiet::QuietError;
use hiroma_quiet::daemon::{self, Daemon, Lock, Options};
use hiroma_quiet::settings;

use super::measure::cpus;
use crate::sim::shared::stop_on_signals;

/// Reclaim file cache before the kernel has to, while large files are read or written, until
/// stopped.
///
/// Checks the machine ten times a second. When file data fills the cache faster than free memory
/// lasts, cache that is not in use is reclaimed in small batches, before kswapd wakes. When
/// programs take the memory, or reclaimed pages refault, reclaim is left to the kernel. Reports on
/// standard error what was done and why. Stops on SIGINT and SIGTERM, and restores all settings.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma quiet serve --dry-run                what it would do, without rights
  sudo hiroma quiet serve --app-cpus 2-15     reclaim, kswapd and kcompactd stay on processors 0 and 1
  sudo hiroma quiet set free_bytes_min 1G     while it runs")]
pub struct ServeArgs {
    /// Processors reserved for programs, as in 2-15: the kernel's reclaiming threads and this
    /// daemon do not run on them
    #[arg(long, value_name = "LIST")]
    app_cpus: Option<String>,
    /// Report what would be done without doing it
    #[arg(long)]
    dry_run: bool,
    /// Serve Prometheus metrics at this address, as in 127.0.0.1:9464, under /metrics
    #[arg(long, value_name = "ADDRESS", value_parser = hiroma_metrics::parse_address)]
    metrics: Option<SocketAddr>,
    /// Exit when the parent process exits
    #[arg(long, hide = true)]
    with_parent: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Change a setting of the running daemon, or show all settings.
#[derive(clap::Args)]
#[command(after_help = "\
Settings:
  poll_ns           how often the machine is looked at (100ms)
  fill_bytes_s_min  bytes a second that must enter the file cache, else nothing is done (32M)
  cause_permille    share that files must have of what takes memory (75%)
  free_bytes_min    memory to keep free above the kernel's watermarks, whatever the rate (0)
  reclaim_bytes     what is reclaimed at least, once there is a need (64M)
  batch_bytes       what is asked of the kernel at a time (32M)
  keep_permille     share of the file cache that must stay inactive (5%)
  cpu_ppm           share of a processor that reclaim may take (60%)
  early_reclaim     whether the kernel is asked to reclaim: on, off (on)
  drop_behind       when to drop behind streams: never, needed (where reclaim is of no use), large (also where they fill the cache in
                    large blocks) (large)")]
pub struct SetArgs {
    /// Setting to change; without it, all settings are shown
    #[arg(requires = "value")]
    key: Option<String>,
    /// New value: a size (64M), a time (100ms) or a share (75%)
    value: Option<String>,
    #[command(flatten)]
    state: StateArgs,
}

/// Restore the settings that a killed daemon left changed.
#[derive(clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    state: StateArgs,
}

#[derive(clap::Args)]
struct StateArgs {
    /// Directory of the daemon's lock, settings and restore file
    #[arg(long, value_name = "DIR", default_value = daemon::STATE)]
    state: PathBuf,
}

fn refused(error: QuietError) -> anyhow::Error {
    refuse(error.to_string())
}

fn say(line: &str) {
    // The daemon continues when nothing reads standard error any more.
    let _ = writeln!(stderr(), "hiroma quiet: {line}");
}

/// Serves until a signal arrives.
pub fn serve(args: &ServeArgs) -> Result<ExitCode> {
    if args.with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    let app_cpus = args.app_cpus.as_deref().map_or(Ok(Vec::new()), |list| cpus(Some(list)))?;
    let stop = stop_on_signals()?;
    let options = Options {
        state: args.state.state.clone(),
        app_cpus,
        dry_run: args.dry_run,
        metrics: args.metrics,
        log: Box::new(say),
    };
    let mut daemon = Daemon::start(options).map_err(refused)?;
    let _ =
        writeln!(stdout(), "hiroma quiet: ready{}", if args.dry_run { ", dry run" } else { "" });
    daemon.run(&stop.flag())?;
    drop(daemon);
    say("stopped; everything is as it was");
    Ok(ExitCode::SUCCESS)
}

/// Changes a setting of a running daemon.
pub fn set(args: &SetArgs) -> Result<ExitCode> {
    let state = &args.state.state;
    if !Lock::is_held(state) {
        return Err(refused(QuietError::NotRunning(state.join("lock"))));
    }
    let mut current = settings::load(state).map_err(refused)?;
    if let (Some(key), Some(value)) = (&args.key, &args.value) {
        settings::set(&mut current, key, value).map_err(refused)?;
        settings::save(state, &current)?;
    }
    for (key, value, min, max) in current.all() {
        if args.key.as_deref().is_none_or(|wanted| wanted == key) {
            let show = |value| settings::show(key, value);
            let _ =
                writeln!(stdout(), "{key} {} (from {} to {})", show(value), show(min), show(max));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Restores the settings that a killed daemon left changed.
pub fn restore(args: &RestoreArgs) -> Result<ExitCode> {
    let lock = Lock::take(&args.state.state).map_err(refused)?;
    let lines = daemon::restore(&args.state.state, &lock).map_err(refused)?;
    lines.iter().for_each(|line| say(line));
    if lines.is_empty() {
        say("nothing has to be put back");
    }
    Ok(ExitCode::SUCCESS)
}
