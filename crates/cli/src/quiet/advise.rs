//! `hiroma quiet advise`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use hiroma_command::INTERRUPTED;
use hiroma_command::refuse;
use hiroma_quiet::{advise, daemon};
use indicatif::{ProgressBar, ProgressStyle};

use crate::sim::shared::stop_on_signals;

/// Find the cheapest remedy against the kernel's reclaim that would help on this machine.
///
/// Watches for some seconds: run it while the machine is in the state in which it is disturbed.
/// Prints what was seen and which remedies would help, the cheapest first. Requires no rights; with
/// them, it sees the programs of other users too.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma quiet advise                   watch for 10 s
  sudo hiroma quiet advise --apply      also keep kswapd on processors with time to spare, if that helps
  sudo hiroma quiet restore             take that back")]
pub struct Args {
    /// Number of seconds to watch
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Apply what can be applied immediately: confine kswapd, if that is among the remedies
    #[arg(long)]
    apply: bool,
    /// Directory in which changes that must be restored later are recorded
    #[arg(long, value_name = "DIR", default_value = daemon::STATE)]
    state: PathBuf,
}

/// Watches and prints the advice.
pub fn main(args: &Args) -> Result<ExitCode> {
    let stop = stop_on_signals()?;
    let duration = Duration::from_secs(args.seconds);
    let bar = ProgressBar::new(duration.as_millis() as u64);
    bar.set_style(
        ProgressStyle::with_template("hiroma quiet advise: {bar:30} {elapsed}")
            .expect("the template is a constant"),
    );
    let evidence = advise::watch(duration, &mut |passed| {
        bar.set_position(passed.as_millis() as u64);
        !stop.is_set()
    })
    .map_err(|error| refuse(error.to_string()))?;
    bar.finish_and_clear();
    let remedies = evidence.remedies();
    let mut out = stdout();
    let _ = writeln!(out, "Seen:");
    for line in evidence.lines() {
        let _ = writeln!(out, "  {line}");
    }
    let _ = writeln!(out, "What would help, the cheapest first:");
    for (at, remedy) in remedies.iter().enumerate() {
        let _ = writeln!(out, "  {}. {}", at + 1, remedy.describe());
    }
    if stop.is_set() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if args.apply {
        let done =
            advise::apply(&remedies, &args.state).map_err(|error| refuse(error.to_string()))?;
        for line in &done {
            let _ = writeln!(
                out,
                "Done: {line}; to take it back: hiroma quiet restore --state {}",
                args.state.display()
            );
        }
        if done.is_empty() {
            let _ = writeln!(out, "Nothing of this can be done at once: see the commands.");
        }
    }
    Ok(ExitCode::SUCCESS)
}
