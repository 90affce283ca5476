//! `hiroma hot show`: shows the hot pages of a process.

use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hiroma_hot::ledger::{Ledger, last_manager};
use hiroma_hot::tracker::RoundCost;
use hiroma_hot::{Engine, LedgerDir, Options, State, machine};
use hiroma_sys::hot::target::started_at;
use hiroma_units::parse_time;
use serde_json::json;

use super::manage::{Clock, stopped};
use super::options::Tracking;
use super::{map, png};

/// Show which pages of a process are hot.
///
/// Watches for a while and prints address ranges with their counts: the number of windows in which
/// the pages were touched. On a terminal it draws a map instead; --list prints the ranges there
/// too.
#[derive(clap::Args)]
pub struct Args {
    /// Process id
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// Time to watch
    #[arg(long = "for", value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    duration: Duration,
    /// Continue until Ctrl-C, and show the map again after each period
    #[arg(long)]
    watch: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print address ranges and counts even on a terminal
    #[arg(long)]
    list: bool,
    /// Write a picture to FILE, as PNG: one pixel per page, one row per 2 MiB
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    #[command(flatten)]
    tracking: Tracking,
}

/// Watches the process and shows its heat.
pub fn main(args: &Args) -> Result<ExitCode> {
    let clock = Clock::start();
    let stop = stopped()?;
    let options = Options { watch_only: true, ledger: None, ..args.tracking.options() };
    let mut engine = super::engine(args.pid, options, &clock)?;
    if let Some(manager) = manager_of(args.pid) {
        hiroma_command::show::say(&format!(
            "process {manager} manages process {} and clears the same bits: both see fewer touches than there are",
            args.pid
        ));
    }
    let on_terminal = stdout().is_terminal();
    loop {
        let mut cost = RoundCost::default();
        let mut rounds = 0u64;
        let until = Instant::now() + args.duration;
        let mut ended = false;
        // At least one full pass, however short the time.
        let first_pass = engine.passes();
        while !stop() && (Instant::now() < until || engine.passes() == first_pass) {
            let before = engine.rounds();
            let step = engine.step(clock.now_ns())?;
            if engine.rounds() > before {
                rounds += 1;
                cost.add(engine.last_round());
            }
            if step.state == State::Gone {
                ended = true;
                break;
            }
            clock.sleep_until(step.next_ns);
        }
        let per_round = Cost::of(&cost, rounds);
        let text = if args.json {
            as_json(args.pid, &engine, &per_round)?
        } else {
            as_text(args, &engine, &per_round, on_terminal)
        };
        let clear = if args.watch && on_terminal && !args.json { "\x1b[2J\x1b[H" } else { "" };
        // The reader of standard output may have closed it.
        if write!(stdout(), "{clear}{text}").and_then(|()| stdout().flush()).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(path) = &args.png {
            png::write(engine.heat(), path)?;
        }
        if ended {
            hiroma_command::show::say(&format!("process {} has ended", args.pid));
        }
        if ended || stop() || !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The process that currently manages process `pid`.
fn manager_of(pid: u32) -> Option<u32> {
    let entries = Ledger::read(&LedgerDir::of_this_user(), pid).ok()?;
    last_manager(&entries)
        .filter(|manager| started_at(*manager).is_some() && started_at(pid).is_some())
}

/// Mean cost of a round, in nanoseconds.
struct Cost {
    rounds: u64,
    clear_ns: u64,
    scan_ns: u64,
    count_ns: u64,
}

impl Cost {
    fn of(sum: &RoundCost, rounds: u64) -> Cost {
        let n = rounds.max(1);
        Cost {
            rounds,
            clear_ns: sum.clear_ns / n,
            scan_ns: sum.scan_ns / n,
            count_ns: sum.count_ns / n,
        }
    }
}

fn as_text(args: &Args, engine: &Engine, cost: &Cost, on_terminal: bool) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let mut text = format!(
        "# process {} ({}), tracked with {}: {} rounds with windows of {:.1} ms; a round clears {:.0} us, scans {:.0} us, counts {:.0} us\n",
        args.pid,
        machine::command_of(args.pid),
        engine.backend(),
        cost.rounds,
        engine.window_ns() as f64 / 1e6,
        us(cost.clear_ns),
        us(cost.scan_ns),
        us(cost.count_ns),
    );
    if !engine.tells_pages_apart() {
        text.push_str("# only how much of each mapping was touched is known, not which pages\n");
    }
    if on_terminal {
        let colours = std::env::var_os("NO_COLOR").is_none();
        text.push_str(&map::map(engine.heat(), colours));
        text.push_str(&format!("{}\n", map::legend(colours)));
    }
    if !on_terminal || args.list {
        for run in map::runs(engine.heat()) {
            let huge = if run.huge { " huge" } else { "" };
            text.push_str(&format!("{:012x}-{:012x} : {}{huge}\n", run.start, run.end, run.count));
        }
    }
    text
}

fn as_json(pid: u32, engine: &Engine, cost: &Cost) -> Result<String> {
    let shown = json!({
        "pid": pid,
        "command": machine::command_of(pid),
        "backend": engine.backend().name(),
        "tells_pages_apart": engine.tells_pages_apart(),
        "window_ns": engine.window_ns(),
        "rounds": cost.rounds,
        "clear_ns": cost.clear_ns,
        "scan_ns": cost.scan_ns,
        "count_ns": cost.count_ns,
        "ranges": map::runs(engine.heat()),
    });
    Ok(serde_json::to_string(&shown).context("cannot write JSON")? + "\n")
}
