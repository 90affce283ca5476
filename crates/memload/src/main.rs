//! `hiroma-memload`: loads a memcached server and checks every value.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use hiroma_memload::{
    Connection, Distribution, Endpoint, RunResult, RunSpec, Store, fill, run, server,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Load a memcached server and check every returned value.
///
/// The defaults are those of the paper: 800,000 items of 512 bytes, read only, zipfian. With --pid,
/// the memory of the server's process and its processor time per request are reported.
#[derive(Parser)]
#[command(name = "hiroma-memload", version, max_term_width = 100)]
struct Cli {
    /// Address of the server: HOST:PORT or unix:PATH
    #[arg(long, default_value = "127.0.0.1:11211")]
    server: Endpoint,
    #[arg(long, default_value_t = 800_000)]
    items: u64,
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    value_bytes: usize,
    /// Do not store the items first, because they are stored already
    #[arg(long)]
    no_fill: bool,
    #[arg(long, value_enum, default_value_t = Shape::Zipf)]
    distribution: Shape,
    /// Exponent of the zipfian distribution
    #[arg(long, default_value_t = 0.99)]
    exponent: f64,
    /// Percentage of items that are hot (hotspot distribution)
    #[arg(long, value_name = "PERCENT", default_value_t = 33)]
    hot_items: u32,
    /// Percentage of requests for hot items (hotspot distribution)
    #[arg(long, value_name = "PERCENT", default_value_t = 95)]
    hot_requests: u32,
    /// Percentage of requests that write
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    write: u32,
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Number of requests that each connection has in flight
    #[arg(long, default_value_t = 16)]
    depth: usize,
    /// Stop after N requests in total
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Stop after S seconds
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Allow missing items, because the server evicts
    #[arg(long)]
    may_miss: bool,
    /// Process id of the server
    #[arg(long)]
    pid: Option<u32>,
    /// Write the figures to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    Zipf,
    Uniform,
    Hotspot,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    outcome: RunResult,
    #[serde(flatten)]
    server: Option<ServerFigures>,
}

#[derive(Serialize)]
struct ServerFigures {
    cpu_ns_per_operation: f64,
    #[serde(flatten)]
    memory: server::Memory,
}

fn main() -> ExitCode {
    match load(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hiroma-memload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bar(len: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {human_pos}/{human_len} {eta}")
        .expect("the template is well formed");
    ProgressBar::new(len).with_style(style).with_message(what)
}

fn load(cli: Cli) -> Result<()> {
    let store = Store { items: cli.items, value_bytes: cli.value_bytes };
    if !cli.no_fill {
        let progress = bar(cli.items, "storing");
        fill(&cli.server, store, &|count| progress.set_position(count))?;
        progress.finish_and_clear();
    }
    let spec = RunSpec {
        endpoint: cli.server.clone(),
        store,
        distribution: match cli.distribution {
            Shape::Zipf => Distribution::Zipf { exponent: cli.exponent },
            Shape::Uniform => Distribution::Uniform,
            Shape::Hotspot => Distribution::Hotspot {
                items_percent: cli.hot_items,
                requests_percent: cli.hot_requests,
            },
        },
        connections: cli.connections,
        depth: cli.depth,
        write_percent: cli.write,
        operations: cli.operations.or(cli.seconds.is_none().then_some(cli.items)),
        time: match cli.seconds {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .with_context(|| format!("--seconds {seconds} is not a time"))?,
            ),
        },
        seed: cli.seed,
        may_miss: cli.may_miss,
        fresh: !cli.no_fill,
    };
    let before = cli
        .pid
        .map(|pid| server::cpu_ns(pid, ""))
        .transpose()
        .context("cannot look at the server's process (--pid)")?;
    let progress =
        spec.operations.map_or_else(ProgressBar::new_spinner, |count| bar(count, "asking"));
    let outcome = run(&spec, &|count| progress.inc(count))?;
    progress.finish_and_clear();
    let server = match (cli.pid, before) {
        (Some(pid), Some(before)) => {
            let used = server::cpu_ns(pid, "")?.saturating_sub(before);
            Some(ServerFigures {
                cpu_ns_per_operation: used as f64 / outcome.operations.max(1) as f64,
                memory: server::memory(pid)?,
            })
        }
        _ => None,
    };
    let figures = Figures { outcome, server };
    show(&figures, &mut Connection::open(&cli.server)?)?;
    if let Some(path) = cli.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(&path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn show(figures: &Figures, connection: &mut Connection) -> Result<()> {
    let outcome = &figures.outcome;
    println!(
        "{} requests in {:.2} s: {:.0}/s ({} reads, all values right; {} writes; {} missing)",
        outcome.operations,
        outcome.seconds,
        outcome.operations_per_s,
        outcome.reads,
        outcome.writes,
        outcome.missing
    );
    let us = |ns: u64| ns as f64 / 1e3;
    println!(
        "latency: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us",
        us(outcome.latency_ns_p50),
        us(outcome.latency_ns_p99),
        us(outcome.latency_ns_p999),
        us(outcome.latency_ns_max)
    );
    if let Some(server) = &figures.server {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "server: {:.0} ns of processor time a request, {:.1} MiB resident, {:.1} MiB of it on huge pages",
            server.cpu_ns_per_operation,
            mib(server.memory.resident_bytes),
            mib(server.memory.huge_bytes)
        );
    }
    // Statistics of a server with our patch.
    for (name, value) in
        connection.stats("")?.iter().filter(|(name, _)| name.starts_with("hiroma_"))
    {
        println!("{name}: {value}");
    }
    Ok(())
}
