//! `hiroma hot manage`: makes huge pages where a running process is hot.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hiroma_command::show;
use hiroma_hot::{Engine, State, machine};
use hiroma_units::{Bytes, EXTENT, parse_time};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use super::options::Managing;

/// Give a running process huge pages exactly where it is hot.
///
/// Watches the process until it ends, collapses hot 2 MiB ranges in place, leaves cold ones alone,
/// and follows where it becomes hot elsewhere. The process is neither stopped nor changed. Its huge
/// pages remain afterwards (`hiroma hot undo` splits them).
#[derive(clap::Args)]
pub struct Args {
    /// Process id
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// Time to wait before checking everything again when there is nothing to do
    #[arg(long, value_name = "TIME", value_parser = parse_time, num_args = 0..=1, default_value = "5s", default_missing_value = "5s")]
    keep: Duration,
    /// End as soon as there is nothing to do
    #[arg(long, conflicts_with = "keep")]
    once: bool,
    #[command(flatten)]
    managing: Managing,
}

/// Time since a start, for engines.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// Sleeps until `at_ns`, but at most until signals have to be checked again.
    pub fn sleep_until(&self, at_ns: u64) {
        let wait = Duration::from_nanos(at_ns.saturating_sub(self.now_ns()));
        std::thread::sleep(wait.min(Duration::from_millis(50)));
    }
}

/// Returns a function that reports whether SIGINT, SIGTERM or SIGHUP arrived. Must be called before
/// anything is changed that has to be restored.
pub fn stopped() -> Result<impl Fn() -> bool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .context("cannot take over the signals")?;
    }
    Ok(move || flag.load(Ordering::Relaxed))
}

/// Manages the process.
pub fn main(args: &Args) -> Result<ExitCode> {
    let clock = Clock::start();
    let stop = stopped()?;
    let options = args.managing.options((!args.once).then_some(args.keep))?;
    let engine = super::engine(args.pid, options, &clock)?;
    if !args.managing.quiet {
        show::say(&format!(
            "process {} ({}), tracked with {}",
            args.pid,
            machine::command_of(args.pid),
            engine.backend()
        ));
    }
    let ended = manage(engine, &clock, stop, !args.managing.quiet)?;
    if !args.managing.quiet {
        show::say(&ended.text);
    }
    Ok(ExitCode::SUCCESS)
}

/// How managing ended.
pub struct Ended {
    pub text: String,
}

/// Steps the engine until the process ends, there is nothing more to do, or `stop` returns true.
pub fn manage(
    mut engine: Engine,
    clock: &Clock,
    stop: impl Fn() -> bool,
    tell: bool,
) -> Result<Ended> {
    let progress = tell && stderr().is_terminal();
    let dry_run = engine.is_dry_run();
    let mut told = false;
    let why = loop {
        let step = engine.step(clock.now_ns())?;
        if progress && step.pass_over {
            let usage = engine.usage();
            eprint!(
                "\r\x1b[Khiroma: pass {}, {} huge, windows of {:.1} ms",
                engine.passes(),
                Bytes(usage.huge_bytes),
                engine.window_ns() as f64 / 1e6
            );
        }
        if let Some(gain) = engine.gain().filter(|_| tell && !told) {
            told = true;
            show::say(&format!("huge pages: {gain}"));
        }
        match step.state {
            State::Gone => break "the process ended".to_owned(),
            State::Stopped(why) => break why,
            State::Settled if step.next_ns == u64::MAX => break "nothing more to do".to_owned(),
            _ if stop() => break "told to stop".to_owned(),
            _ => clock.sleep_until(step.next_ns),
        }
    };
    if progress {
        eprint!("\r\x1b[K");
    }
    let huge = engine.usage().huge_bytes;
    let pid = engine.target().pid();
    // Who has not seen it meanwhile sees it now.
    let gain = match engine.gain() {
        Some(gain) if !told => format!("huge pages: {gain}; "),
        _ => String::new(),
    };
    let ledger = engine.finish(clock.now_ns(), &why);
    let totals = ledger.totals();
    let verb = if dry_run { "would become" } else { "became" };
    // What was made huge and is so no longer was split, or the program has unmapped it.
    let unmapped =
        totals.collapses.saturating_sub(totals.splits + totals.checks + huge / EXTENT as u64);
    let tracking_ns = totals.clear_ns + totals.scan_ns + totals.count_ns;
    let text = format!(
        "{gain}{why}: {} ranges {verb} huge ({}), {} of them were split and {unmapped} unmapped since, {} are huge now; {} refused, memory +{}; {:.1} s, tracking {:.0} ms, collapsing {:.0} ms after {:.0} of making memory ready; \
         hiroma hot explain --pid {pid}",
        totals.collapses,
        Bytes(totals.collapses * EXTENT as u64),
        totals.splits + totals.checks,
        Bytes(huge),
        totals.refusals,
        Bytes(totals.added_bytes),
        clock.now_ns() as f64 / 1e9,
        tracking_ns as f64 / 1e6,
        totals.collapse_ns as f64 / 1e6,
        totals.ready_ns as f64 / 1e6,
    );
    Ok(Ended { text })
}
