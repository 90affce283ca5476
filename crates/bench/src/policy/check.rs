//! Compares the simulation with the pager: the same program, run and simulated.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use hiroma_command::files::Files;
use hiroma_command::machine;
use hiroma_command::show;
use hiroma_far::config::BlockSize;
use hiroma_far_lab::ours::{self, Options, Rules, SCANS};
use hiroma_far_lab::record::Recorder;
use hiroma_far_lab::{Costs, PolicyOutcome, Trace};
use hiroma_report::{Better, Measure, Report, Spread, Table};
use hiroma_units::{Bytes, PAGE};

use super::programs::{self, Program};
use super::tool::{self, Tool};
use crate::children::hiroma;

/// Run programs with far memory, simulate the same from a trace, and compare the numbers of
/// fetches.
///
/// The trace records the pages that the program touches natively: where its allocator is glibc's,
/// far memory replaces it, and the pages differ.
#[derive(clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    files: Files,
    /// Check only these of the known programs
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "dictionary,sort,cc1"
    )]
    only: Vec<String>,
    /// Local memory, in percent of a program's pages
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "75,50")]
    at: Vec<u8>,
    /// Block size: amount that is moved at a time
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block: BlockSize,
    /// Enable prefetching
    #[arg(long)]
    prefetch: bool,
    /// Read accessed bits of the program's pages
    #[arg(long)]
    accessed_bits: bool,
    /// Switch off rules for the block size in the simulation: clusters, groups, runs, zeros
    #[arg(long, value_name = "RULE,...", value_delimiter = ',')]
    without: Vec<String>,
    /// Python interpreter, with numpy installed
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Program to check instead of the known ones, with its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Allowed relative difference between the two.
const MUST: f64 = 0.10;
/// The smallest limit that `hiroma run` accepts.
const LEAST_BYTES: u64 = 16 << 20;
/// Added to the limit: memory that the pager takes for itself, before it has tables.
const BESIDE_BYTES: u64 = 2 << 20;

/// Results of a run with far memory.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    fetches: u64,
    staged: u64,
    fresh: u64,
    local_bytes_max: u64,
    local_bytes_at_fetches: u64,
    far_bytes_max: u64,
}

impl Live {
    /// Memory that was mapped or staged when a fault fetched: the mean.
    fn local_bytes(&self) -> u64 {
        self.local_bytes_at_fetches.checked_div(self.fetches).unwrap_or(self.local_bytes_max)
    }
}

/// How often the room of a simulation is adjusted.
const ADJUSTMENTS: usize = 4;

/// Simulates with so much room that as much is local when a fault fetches as in the live run, in
/// the mean. The room of the live run is not constant: its tables and the reserve take from it.
fn simulate_alike(trace: &Trace, live: &Live, options: Options) -> PolicyOutcome {
    let wanted_pages = (live.local_bytes() / PAGE as u64) as i64;
    let mut room_pages = (live.local_bytes_max / PAGE as u64) as i64;
    let simulate = |room_pages: i64| {
        ours::simulate(trace, room_pages.max(1) as usize, options, &Costs::default())
    };
    let mut outcome = simulate(room_pages);
    for _ in 0..ADJUSTMENTS {
        let Some(pages) = outcome.local_pages_at_fetches.checked_div(outcome.fetches) else {
            break;
        };
        if pages as i64 == wanted_pages {
            break;
        }
        room_pages += wanted_pages - pages as i64;
        outcome = simulate(room_pages);
    }
    outcome
}

/// Runs the comparison.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    args.files.check()?;
    if let Some(reason) = tool::obstacle() {
        return Err(hiroma_command::refuse(reason));
    }
    let work = tempfile::tempdir()?;
    let home = tool::build(work.path())?;
    programs::write_inputs(work.path())?;
    let programs = match args.program.first() {
        Some(first) => vec![Program { name: first.clone(), argv: args.program.clone() }],
        None => programs::find(&args.only, &args.python, work.path())?.0,
    };
    let scans = if args.accessed_bits { SCANS } else { 0 };
    let options = match args.block {
        BlockSize::Auto => Options {
            prefetch: args.prefetch,
            scans,
            rules: rules_without(&args.without)?,
            ..Options::AUTO
        },
        BlockSize::Fixed(bytes) => Options {
            prefetch: args.prefetch,
            scans,
            ..Options::plain((bytes as usize / PAGE).trailing_zeros().min(9) as u8)
        },
    };
    let columns = Table::new("Faults that fetch, for real and simulated")
        .text("program")
        .number("local", "MiB")
        .number("live", "");
    let mut table = columns
        .number("simulated", "")
        .number("apart", "%")
        .number("live, staged", "")
        .number("simulated", "")
        .number("live, fresh", "")
        .number("simulated", "");
    let mut measures = Vec::new();
    for program in &programs {
        let mut recorder = Recorder::default();
        tool::watch(Tool::Pages, Some(&home), &program.argv, &mut recorder)?;
        let trace = Trace::read(&recorder.finish(&program.name, &program.argv))?;
        for &percent in &args.at {
            let limit = (trace.touched * PAGE) as u64 * u64::from(percent) / 100 + BESIDE_BYTES;
            if limit < LEAST_BYTES {
                show::say(&format!(
                    "{} at {percent} % is skipped: {} is less than hiroma run can work with",
                    program.name,
                    Bytes(limit)
                ));
                continue;
            }
            let live = live(program, limit, args, work.path())?;
            let simulated = simulate_alike(&trace, &live, options);
            measures.push(compare(program, percent, &live, &simulated, &mut table));
        }
    }
    let report = Report {
        title: "The policy lab against live runs".into(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        machine: machine::look(),
        made_at: machine::now(),
        measures,
        ..Report::default()
    };
    println!("\n{}\n{}", table.to_text(), report.summary().to_text());
    let json = report.to_json();
    args.files.write(|| json, || report)?;
    Ok(ExitCode::SUCCESS)
}

fn compare(
    program: &Program,
    percent: u8,
    live: &Live,
    simulated: &PolicyOutcome,
    table: &mut Table,
) -> Measure {
    let apart = (live.fetches > 0).then(|| simulated.fetches as f64 / live.fetches as f64 - 1.0);
    table.row([
        format!("{} {percent} %", program.name),
        format!("{:.1}", live.local_bytes() as f64 / f64::from(1 << 20)),
        live.fetches.to_string(),
        simulated.fetches.to_string(),
        apart.map_or_else(String::new, |apart| format!("{:+.1}", 100.0 * apart)),
        live.staged.to_string(),
        simulated.staged.to_string(),
        live.fresh.to_string(),
        simulated.fresh.to_string(),
    ]);
    let name = format!("policy_check_{percent}_{}", program.name.replace('-', "_"));
    let title = format!("{} with {percent} %: fetches simulated, against live", program.name);
    let note = format!(
        "{} live, {} simulated; {} in store at most",
        live.fetches,
        simulated.fetches,
        Bytes(live.far_bytes_max)
    );
    let apart = apart.map(|apart| 100.0 * apart.abs());
    Measure::new(name, title, "%", Better::Lower)
        .spread(apart.and_then(|apart| Spread::of(&[apart])))
        .must(100.0 * MUST)
        .note(note)
}

/// All rules except these.
fn rules_without(names: &[String]) -> Result<Rules> {
    let mut rules = Rules::ALL;
    for name in names {
        let rule = match name.as_str() {
            "clusters" => &mut rules.clusters,
            "groups" => &mut rules.groups,
            "runs" => &mut rules.runs,
            "zeros" => &mut rules.zeros,
            _ => bail!("no rule {name:?}: known are clusters, groups, runs, zeros"),
        };
        *rule = false;
    }
    Ok(rules)
}

fn live(program: &Program, limit: u64, args: &CheckArgs, dir: &std::path::Path) -> Result<Live> {
    let stats = dir.join("stats.json");
    let mut command = Command::new(hiroma()?);
    let block = match args.block {
        BlockSize::Auto => "auto".to_owned(),
        BlockSize::Fixed(bytes) => bytes.to_string(),
    };
    command
        .args([
            "run",
            "--quiet",
            "--store",
            "compressed:4G",
            "--local",
            &limit.to_string(),
            "--block",
            &block,
            // Pages that a late pager takes over have no order of use.
            "--manage-from",
            "0",
            "--stats",
        ])
        .arg(&stats);
    if !args.prefetch {
        command.arg("--no-prefetch");
    }
    if !args.accessed_bits {
        command.arg("--no-accessed-bits");
    }
    let status = command
        .arg("--")
        .args(&program.argv)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("{} under hiroma run ended with {status}", program.argv.join(" "));
    }
    let text = std::fs::read_to_string(&stats).context("reading the statistics of hiroma run")?;
    let stats: serde_json::Value =
        serde_json::from_str(&text).context("the statistics of hiroma run are not JSON")?;
    let count = |name: &str| stats["total"][name].as_u64().unwrap_or(0);
    Ok(Live {
        fetches: count("faults_fetched"),
        staged: count("faults_staged"),
        fresh: count("faults_fresh"),
        local_bytes_max: count("local_bytes_max"),
        local_bytes_at_fetches: count("local_bytes_at_fetches"),
        far_bytes_max: count("far_bytes_max"),
    })
}
