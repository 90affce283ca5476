//! One cluster: `hiroma sim run`, `compare`, `replay`, `presets`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use hiroma_policy::placement::{CustomPlacement, PlacementKind};
use hiroma_report::Section;
use hiroma_report::Table;
use hiroma_sim::Config;
use hiroma_sim_lab::cluster::read_cluster;
use hiroma_sim_lab::compare::{self, Entrant, entrants_with};
use hiroma_sim_lab::figures::Figures;
use hiroma_sim_lab::forecast::Plan;
use hiroma_sim_lab::lab::{Job, jobs_of};
use hiroma_sim_lab::picture::{self, SAMPLES};
use hiroma_sim_lab::policies::Policies;
use hiroma_sim_lab::presets::{PRESETS, preset};
use hiroma_sim_lab::trace::{Trace, TraceError, is_csv};
use hiroma_sim_lab::{keys, presets, replay as traces, single};

use super::progress::Progress;
use super::shared::{self, Outputs, Runs};

/// Simulate the cluster that a file describes.
///
/// The file contains the settings that differ from its preset; `hiroma sim presets` lists the
/// presets, and `hiroma sim presets NAME` prints one with all its settings. Prints the results of
/// the run, with 95 % confidence intervals if there is more than one seed.
#[derive(clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct RunArgs {
    /// File that describes the cluster (TOML), or name of a preset
    #[arg(value_name = "CLUSTER")]
    cluster: PathBuf,
    /// Number of seeds to run, starting with --seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    outputs: Outputs,
}

/// Run all sensible policies on one cluster and rank them by mean response.
///
/// Every policy gets the same processes at the same times (the same seeds), so two policies are
/// compared by the confidence interval of their differences seed by seed. Reports where the seeds
/// do not suffice to distinguish two policies.
#[derive(clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct CompareArgs {
    /// File that describes the cluster (TOML), or name of a preset
    #[arg(value_name = "CLUSTER")]
    cluster: PathBuf,
    /// Add a placement policy of your own: wasm:FILE or python:FILE; may be repeated
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Number of seeds for every policy, starting with --seed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    outputs: Outputs,
}

/// Run page-outs and page-ins that were recorded from live clients, instead of a generated load.
///
/// A trace is accepted or refused as a whole; docs/internals/trace-format.md describes the format.
#[derive(clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct ReplayArgs {
    /// Trace to run, binary or CSV; with several, the nodes of each follow those of the one before, and all begin
    /// at the same time
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Cluster to run on: a file (TOML) or the name of a preset; the page size is that of the trace
    /// [default: paper, with as many nodes as the trace has]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<PathBuf>,
    /// Place pages by this policy: a word of policy.placement, wasm:FILE or python:FILE; with
    /// --compare, rank a policy of your own among the others, and may be repeated
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Run all sensible policies and rank them
    #[arg(long)]
    compare: bool,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    outputs: Outputs,
}

/// Convert a trace between the binary form and CSV.
///
/// Files whose names end in .csv are CSV: a line time_ns,node,kind,page and one line for each
/// record. Every command that reads a trace reads both.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma sim convert t.bin t.csv                 to look at, or to edit
  hiroma sim convert mine.csv mine.bin           smaller, and read faster")]
pub struct ConvertArgs {
    /// Trace to read
    #[arg(value_name = "TRACE")]
    from: PathBuf,
    /// Trace to write
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

/// List the presets, or print one with all its settings.
#[derive(clap::Args)]
pub struct PresetsArgs {
    /// Preset to print
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Explain the settings of a cluster's file.
///
/// What a setting means, its default and the words that it may have. Without a KEY: all of them.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma sim explain policy.placement
  hiroma sim explain failures                    all settings of a table
  hiroma sim explain domain_radius               wherever it is")]
pub struct ExplainArgs {
    /// Setting, table, or last part of a setting
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Print all of them as a page in Markdown
    #[arg(long, conflicts_with = "key")]
    markdown: bool,
}

/// `hiroma sim explain`.
pub fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    let found = match &args.key {
        Some(name) => keys::find(name),
        None => keys::keys(),
    };
    if let Some(name) = args.key.as_ref().filter(|_| found.is_empty()) {
        return Err(shared::refused(format_args!(
            "there is no setting `{name}`: `hiroma sim explain` lists all"
        )));
    }
    let text = match args.markdown {
        true => keys::to_markdown(),
        false => found.iter().map(keys::to_text).collect::<Vec<_>>().join("\n"),
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// `hiroma sim run`.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    args.outputs.check()?;
    let config = cluster(&args.cluster)?;
    simulate(config, &args.runs.seeds(args.seeds), &args.runs, &args.outputs, "One cluster")
}

/// `hiroma sim compare`.
pub fn compare(args: &CompareArgs) -> Result<ExitCode> {
    args.outputs.check()?;
    let config = cluster(&args.cluster)?;
    let entrants = entrants_with(&config, &own(&args.policies)?);
    rank(&config, entrants, &args.runs.seeds(args.seeds), &args.runs, &args.outputs)
}

/// `hiroma sim replay`.
pub fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    args.outputs.check()?;
    let read = |path: &PathBuf| Ok((path.clone(), Trace::read(path)?));
    let traces: Result<Vec<_>, TraceError> = args.traces.iter().map(read).collect();
    let trace = traces.and_then(Trace::join).map_err(shared::refused)?;
    println!("{}", traces::describe(&trace));
    let base = args.cluster.as_ref().map(|path| cluster(path)).transpose()?;
    let mut config = traces::replayed(trace, base, &args.traces[0]).map_err(shared::refused)?;
    let seeds = args.runs.seeds(1);
    if args.compare {
        let entrants = entrants_with(&config, &own(&args.policies)?);
        return rank(&config, entrants, &seeds, &args.runs, &args.outputs);
    }
    match &args.policies[..] {
        [] => (),
        [policy] => config.policy.placement = placement(policy)?,
        _ => {
            return Err(shared::refused("--policy: more than one are ranked; add --compare"));
        }
    }
    simulate(config, &seeds, &args.runs, &args.outputs, "A recorded load")
}

/// `hiroma sim convert`.
pub fn convert(args: &ConvertArgs) -> Result<ExitCode> {
    shared::check(&args.to)?;
    let trace = Trace::read(&args.from).map_err(shared::refused)?;
    match is_csv(&args.to) {
        true => trace.write_csv(&args.to)?,
        false => trace.write(&args.to)?,
    }
    println!("{}", traces::describe(&trace));
    Ok(ExitCode::SUCCESS)
}

/// `hiroma sim presets`.
pub fn presets(args: &PresetsArgs) -> Result<ExitCode> {
    let Some(name) = &args.name else {
        let mut table = Table::new("").text("preset").text("what it is");
        for preset in &PRESETS {
            table.row([preset.name, preset.title]);
        }
        print!("{}", table.to_text());
        return Ok(ExitCode::SUCCESS);
    };
    let found = preset(name).ok_or_else(|| {
        shared::refused(format_args!(
            "there is no preset `{name}`: use one of {}",
            presets::preset_names()
        ))
    })?;
    print!("{}", found.to_toml());
    Ok(ExitCode::SUCCESS)
}

/// Reads the cluster from a file, or takes the preset of that name.
fn cluster(path: &Path) -> Result<Config> {
    match path.to_str().and_then(preset) {
        Some(preset) if !path.exists() => Ok(preset.config()),
        _ => read_cluster(path, &Policies::new()).map_err(shared::refused),
    }
}

fn simulate(
    config: Config,
    seeds: &[u64],
    runs: &Runs,
    outputs: &Outputs,
    title: &str,
) -> Result<ExitCode> {
    println!("{}", single::seeds_text(seeds));
    let config = Arc::new(config);
    let mut jobs = jobs_of(&[("the cluster".to_owned(), config.clone())], seeds);
    // The page shows the first run as it went.
    let drawn = jobs.first_mut().filter(|_| outputs.wants_html());
    drawn.into_iter().for_each(|job| Arc::make_mut(&mut job.config).run.samples = SAMPLES);
    let plan = Plan::new([(&*config, jobs.len() as f64)]);
    shared::in_lab(runs.jobs.threads(), &plan, |lab, progress| {
        let keep =
            |job: &Job, outcome| (Figures::of(&outcome), picture::section(&job.config, &outcome));
        let kept = lab.map_all(&jobs, keep).map_err(shared::failed)?;
        let (figures, pictures): (Vec<Figures>, Vec<_>) = kept.into_iter().unzip();
        let section = single::section(title, &config, seeds, &figures);
        show(progress, &section);
        let sections = [section].into_iter().chain(pictures.into_iter().flatten());
        outputs.write(
            || single::to_json(&config, seeds, &figures),
            || shared::report(title, sections.collect()),
        )?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The policies of users that the command line names.
fn own(policies: &[String]) -> Result<Vec<CustomPlacement>> {
    let known = Policies::new();
    let find = |value: &String| match known.find(value, Path::new("")) {
        Ok(Some(policy)) => Ok(policy),
        Ok(None) => Err(shared::refused(format_args!(
            "--policy {value}: it takes part anyway; use wasm:FILE or python:FILE"
        ))),
        Err(what) => Err(shared::refused(format_args!("--policy {value}: {what}"))),
    };
    policies.iter().map(find).collect()
}

/// The placement policy that the command line names: a built-in one, or one of a user's.
fn placement(value: &str) -> Result<PlacementKind> {
    match Policies::new().find(value, Path::new("")) {
        Ok(Some(policy)) => Ok(PlacementKind::Custom(policy)),
        Ok(None) => {
            let mut all = PlacementKind::ALL.into_iter();
            Ok(all.find(|kind| single::name_of(kind) == value).expect("it is built in"))
        }
        Err(what) => Err(shared::refused(format_args!("--policy {value}: {what}"))),
    }
}

fn rank(
    config: &Config,
    entrants: Vec<Entrant>,
    seeds: &[u64],
    runs: &Runs,
    outputs: &Outputs,
) -> Result<ExitCode> {
    println!("{}", single::seeds_text(seeds));
    let configs: Vec<Config> = entrants.iter().map(|entrant| entrant.config.clone()).collect();
    let plan = Plan::new(configs.iter().map(|config| (config, seeds.len() as f64)));
    shared::in_lab(runs.jobs.threads(), &plan, |lab, progress| {
        let comparison = compare::compare(config, entrants, seeds, lab).map_err(shared::failed)?;
        let section = comparison.section("Policies");
        show(progress, &section);
        outputs.write(
            || comparison.to_json(),
            || shared::report("Policies on one cluster", vec![section]),
        )?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints a section without its title and without its first line, which names the seeds: both have
/// been printed already.
fn show(progress: &Progress, section: &Section) {
    let tables: Vec<String> = section.tables.iter().map(Table::to_text).collect();
    progress.print(&format!(
        "{}\n\n{}",
        section.text[1..].join("\n"),
        tables.join("\n").trim_end()
    ));
}
