//! `hiroma quiet measure`.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use hiroma_command::files::Files;
use hiroma_command::refuse;
use hiroma_command::{INTERRUPTED, report};
use hiroma_quiet::meter::{self, MeterError, Method, Options};
use hiroma_quiet::picture;
use hiroma_sys::quiet::affinity;
use indicatif::{ProgressBar, ProgressStyle};

use crate::sim::shared::stop_on_signals;

/// Measure how much time is stolen from programs on each processor, and by whom.
///
/// Keeps each processor busy with work of known length, so run it on a machine that is otherwise in
/// its usual state. Requires no rights; as root, on Linux 6.1 or newer, the kernel's tracepoints
/// show what used the processor during every gap in the work.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma quiet measure                                  30 s on all processors
  hiroma quiet measure --cpus 2-15 --html noise.html    as a page, with plots
  hiroma quiet measure --method ftq --quantum-us 500    fixed time instead of fixed work")]
pub struct Args {
    /// Number of seconds to measure
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Processors to measure, as in 0-3,8 [default: all that this command may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Which property of a quantum is fixed: the work (fwq) or the time (ftq)
    #[arg(long, value_enum, default_value_t = Fixed::Fwq)]
    method: Fixed,
    /// Length of a quantum, in microseconds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    quantum_us: u64,
    /// Do not use BPF, as without rights; the report is less exact about what took the time
    #[arg(long)]
    no_bpf: bool,
    #[command(flatten)]
    files: Files,
}

#[derive(Clone, Copy, ValueEnum)]
enum Fixed {
    Fwq,
    Ftq,
}

/// The processors of a list, or all that this process may use.
pub fn cpus(list: Option<&str>) -> Result<Vec<usize>> {
    let usable = affinity::of(0)?;
    let Some(list) = list else { return Ok(usable) };
    let shown = || affinity::show_list(&usable);
    let cpus = affinity::parse_list(list).filter(|cpus| !cpus.is_empty());
    let cpus = cpus.ok_or_else(|| {
        refuse(format!("`{list}` is no list of processors: write one like {}", shown()))
    })?;
    match cpus.iter().find(|cpu| !usable.contains(cpu)) {
        Some(cpu) => {
            Err(refuse(format!("processor {cpu} cannot be used here: choose among {}", shown())))
        }
        None => Ok(cpus),
    }
}

/// Measures and shows the results.
pub fn main(args: &Args) -> Result<ExitCode> {
    let duration = Duration::from_secs(args.seconds);
    let quantum = Duration::from_micros(args.quantum_us);
    let method = match args.method {
        Fixed::Fwq => Method::Fwq,
        Fixed::Ftq => Method::Ftq,
    };
    let options =
        Options { cpus: cpus(args.cpus.as_deref())?, duration, quantum, method, bpf: !args.no_bpf };
    args.files.check()?;
    let stop = stop_on_signals()?;
    let bar = ProgressBar::new(duration.as_millis() as u64);
    let style = ProgressStyle::with_template("hiroma quiet measure: {bar:30} {elapsed} of {msg}")
        .expect("the template is a constant");
    bar.set_style(style);
    bar.set_message(format!("{} s", args.seconds));
    let mut progress = |passed: Duration| {
        bar.set_position(passed.as_millis() as u64);
        !stop.is_set()
    };
    let recording = meter::measure(&options, &mut progress).map_err(|error| match error {
        MeterError::Nothing => error.into(),
        refused => refuse(refused.to_string()),
    })?;
    bar.finish_and_clear();
    let _ = write!(stdout(), "{}", picture::to_text(&recording));
    let mut report = report("Noise of this machine", vec![picture::section(&recording)]);
    report.measures = picture::measures(&recording);
    let json = report.to_json();
    args.files.write(|| json, || report)?;
    Ok(if stop.is_set() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}
