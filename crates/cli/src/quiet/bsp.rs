//! `hiroma quiet bsp`.

use std::io::{Write, stderr, stdout};
use std::net::{TcpListener, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use hiroma_command::files::Files;
use hiroma_command::refuse;
use hiroma_command::{INTERRUPTED, report};
use hiroma_quiet::bsp::link::Link;
use hiroma_quiet::bsp::{self, BspError, Options, STEPS_MAX, picture};
use hiroma_sys::quiet::affinity;
use hiroma_units::Bytes;

use super::measure::cpus;
use crate::sim::shared::stop_on_signals;

/// Run a program that computes in step, and measure what noise costs it.
///
/// One rank on each processor does the same work in each step and then waits for the slowest one,
/// as parallel programs with barriers do. Shows how long the steps took, which rank was last and,
/// as root on Linux 6.1 or newer, what delayed it. To run over several processes or machines, start
/// one with --listen and the others with --connect; they use the options of the first. Connections
/// are not authenticated: use a private network.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma quiet bsp                                          2,000 steps of 5 ms on all processors
  hiroma quiet bsp --cpus 1-11 --seconds 60 --html bsp.html as a page, with plots
  hiroma quiet bsp --listen 10.0.0.1:7171 --processes 4     on four machines: this on the first,
  hiroma quiet bsp --connect 10.0.0.1:7171                  this on the others")]
pub struct Args {
    /// Processors, as in 0-3,8; one rank runs on each [default: all that this command may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Number of steps
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=STEPS_MAX), conflicts_with = "connect")]
    steps: u64,
    /// Maximum duration in seconds
    #[arg(long, value_name = "N", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400), conflicts_with = "connect")]
    seconds: u64,
    /// Work of a step, in microseconds
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(10..=10_000_000), conflicts_with = "connect")]
    step_us: u64,
    /// Memory that each rank allocates, touches and frees in each step
    #[arg(long, value_name = "SIZE", default_value = "0", conflicts_with = "connect")]
    alloc: Bytes,
    /// Wait at ADDRESS for the other processes
    #[arg(long, value_name = "ADDRESS", requires = "processes", conflicts_with = "connect")]
    listen: Option<String>,
    /// Total number of processes, including this one
    #[arg(long, value_name = "N", requires = "listen", value_parser = clap::value_parser!(u32).range(2..=4096))]
    processes: Option<u32>,
    /// Join the process that listens at ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,
    /// Do not use BPF; the report does not show what delayed a rank
    #[arg(long)]
    no_bpf: bool,
    #[command(flatten)]
    files: Files,
}

fn refused(error: BspError) -> anyhow::Error {
    match error {
        BspError::Nothing => error.into(),
        other => refuse(other.to_string()),
    }
}

/// Connects to the other processes, if there are any.
fn link(args: &Args, options: &mut Options, stop: &AtomicBool) -> Result<Option<Link>> {
    if let (Some(address), Some(processes)) = (&args.listen, args.processes) {
        let listener = TcpListener::bind(address)
            .map_err(|error| refuse(format!("{address}: {error}: choose another address")))?;
        let at = listener.local_addr()?;
        let _ =
            writeln!(stderr(), "hiroma quiet bsp: waiting at {at} for {} processes", processes - 1);
        return Ok(Some(Link::listen(&listener, processes, options, stop).map_err(refused)?));
    }
    let Some(address) = &args.connect else { return Ok(None) };
    let found = address
        .to_socket_addrs()
        .map_err(|error| refuse(format!("{address}: {error}: write one like 10.0.0.1:7171")))?;
    let found = found
        .into_iter()
        .next()
        .ok_or_else(|| refuse(format!("{address}: there is no such address")))?;
    Ok(Some(Link::join(found, options, stop).map_err(refused)?))
}

/// Runs the program and shows the results.
pub fn main(args: &Args) -> Result<ExitCode> {
    let mut options = Options {
        cpus: cpus(args.cpus.as_deref())?,
        steps: args.steps,
        duration: Duration::from_secs(args.seconds),
        step: Duration::from_micros(args.step_us),
        chunk_turns: None,
        alloc_bytes: usize::try_from(args.alloc.0).unwrap_or(usize::MAX),
        bpf: !args.no_bpf,
    };
    args.files.check()?;
    let stop = stop_on_signals()?;
    let flag = stop.flag();
    let link = link(args, &mut options, &flag)?;
    let seconds =
        (options.steps as f64 * options.step.as_secs_f64()).min(options.duration.as_secs_f64());
    let list = affinity::show_list(&options.cpus);
    // A progress bar would be noise: this thread sleeps while the ranks work.
    let _ = writeln!(
        stderr(),
        "hiroma quiet bsp: about {seconds:.0} s on processors {list}; Ctrl-C shows what there is by then"
    );
    let recording = bsp::run(&options, link, &flag).map_err(refused)?;
    let _ = write!(stdout(), "{}", picture::to_text(&recording));
    let mut report = report("A program that computes in step", vec![picture::section(&recording)]);
    report.measures = picture::measures(&recording);
    let json = report.to_json();
    args.files.write(|| json, || report)?;
    Ok(if flag.load(Ordering::Relaxed) { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}
