//! Many clusters: `hiroma sim sweep` and `merge`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use hiroma_report::Table;
use hiroma_sim_lab::policies::Policies;
use hiroma_sim_lab::sweep::scripts::{Engine, Script};
use hiroma_sim_lab::sweep::{self, Merged, Plan, Shard, Store, StoreError, SweepError};
use hiroma_sim_lab::{forecast, notes};

use super::shared::{self, Files, Jobs};

/// Simulate a grid of settings, with several seeds each.
///
/// The result of every run is a small file in the results directory. An interrupted sweep continues
/// where it stopped. Shards can run anywhere (a Slurm array, Spark or Ray tasks) with the same
/// directory, or with directories that are copied into one afterwards. The results are byte for
/// byte the same with any number of shards and threads.
#[derive(clap::Args)]
#[command(after_help = SWEEP_HELP)]
pub struct SweepArgs {
    /// File that describes the sweep (TOML)
    #[arg(value_name = "SWEEP")]
    sweep: PathBuf,
    /// Directory for the results
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of seeds, instead of that in the file; a sweep that was run with fewer is extended
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: Option<u32>,
    /// Run only every M-th run, starting with the N-th
    #[arg(long, value_name = "N/M", default_value = "1/1")]
    shard: Shard,
    /// Run nothing: write a script that runs all shards on ENGINE and merges them, into DIR: slurm
    /// (a job array) or ray
    #[arg(long, value_name = "ENGINE", conflicts_with = "shard")]
    on: Option<Engine>,
    /// Number of shards of the script [default: 16, or as many as there are runs]
    #[arg(long, value_name = "M", requires = "on", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    shards: Option<u32>,
    #[command(flatten)]
    jobs: Jobs,
}

const SWEEP_HELP: &str = "\
A sweep's file:
  cluster = \"cluster.toml\"     # or a table [cluster] with the settings themselves
  seeds = 10
  [grid]
  load.arrivals_per_s = [50, 100, 200]
  policy.placement = [\"random\", \"two_choices\"]

Exit codes are those of `hiroma sim`.";

const MERGE_HELP: &str = "\
Exit codes are those of `hiroma sim`, and
  7    runs are missing; what there is was combined";

/// Shards of a script, unless told otherwise.
const SHARDS: usize = 16;

/// Exit code of a merge in part.
const IN_PART: u8 = 7;

/// Combine the results of a sweep.
///
/// Runs that are missing, and the shards that they belong to, are listed, and the rest is combined.
#[derive(clap::Args)]
#[command(after_help = MERGE_HELP)]
pub struct MergeArgs {
    /// Directory with the results; several, if shards were run with different ones
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Write one line for each point of the grid, with all figures, to FILE, as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    files: Files,
}

/// `hiroma sim sweep`.
pub fn sweep(args: &SweepArgs) -> Result<ExitCode> {
    let mut plan = Plan::read(&args.sweep, &Policies::new()).map_err(shared::refused)?;
    args.seeds.iter().for_each(|&seeds| plan.set_seeds(seeds as usize));
    let store = Store::open(&args.out, &plan).map_err(refused_or_failed)?;
    if let Some(engine) = args.on {
        return write_script(args, engine, &plan);
    }
    let mut times = vec![0.0; plan.cells.len()];
    let missing = sweep::missing(&plan, args.shard, &store);
    missing.iter().for_each(|&point| times[plan.point(point).cell] += 1.0);
    let configs = plan.cells.iter().map(|cell| &*cell.config).zip(times);
    let runs = forecast::Plan::new(configs.filter(|(_, times)| *times > 0.0));
    shared::in_lab(args.jobs.threads(), &runs, |lab, progress| {
        let done = sweep::run(&plan, args.shard, &store, lab).map_err(|error| match error {
            SweepError::Store(error) => refused_or_failed(error),
            SweepError::Lab(error) => shared::failed(error),
            other => other.into(),
        })?;
        progress.print(&format!(
            "{} runs done, {} were there already; results in {}",
            done.run,
            done.kept,
            args.out.display()
        ));
        if args.shard.is_all() {
            let merged = Merged::of(&store).map_err(refused_or_failed)?;
            let told = notes::of_plan(&plan).into_iter().chain(merged.notes());
            told.for_each(|note| progress.print(&format!("\n{note}")));
            progress.print(&format!("\n{}", merged.table().to_text().trim_end()));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Writes a script that runs the sweep, and says how to start it.
fn write_script(args: &SweepArgs, engine: Engine, plan: &Plan) -> Result<ExitCode> {
    let whole =
        |path: &Path| path.canonicalize().with_context(|| format!("finding {}", path.display()));
    let out = whole(&args.out)?;
    let script = Script {
        engine,
        hiroma: std::env::current_exe().context("finding this program")?,
        sweep: whole(&args.sweep)?,
        shards: args.shards.map_or(SHARDS, |shards| shards as usize).min(plan.points()),
        seeds: args.seeds,
        out,
    };
    let path = script.out.join(script.name());
    shared::write(&path, &script.text())?;
    println!("{} runs in {} shards; start them with\n", plan.points(), script.shards);
    println!("  {}", script.command(&path));
    Ok(ExitCode::SUCCESS)
}

/// `hiroma sim merge`.
pub fn merge(args: &MergeArgs) -> Result<ExitCode> {
    args.files.check()?;
    args.csv.iter().try_for_each(|path| shared::check(path))?;
    let store = Store::find(&args.directories).map_err(refused_or_failed)?;
    let merged = Merged::of(&store).map_err(refused_or_failed)?;
    let section = merged.section();
    let tables: Vec<String> = section.tables.iter().map(Table::to_text).collect();
    println!("{}\n\n{}", section.text.join("\n"), tables.join("\n").trim_end());
    if let Some(path) = &args.csv {
        shared::write(path, &merged.to_csv())?;
    }
    args.files.write(|| merged.to_json(), || shared::report("A sweep", vec![section]))?;
    Ok(if merged.gaps().missing > 0 { ExitCode::from(IN_PART) } else { ExitCode::SUCCESS })
}

/// Refuses an error that the user can fix. Others, like a full disk, are failures.
fn refused_or_failed(error: StoreError) -> anyhow::Error {
    match error {
        StoreError::Io { ref source, .. } if source.kind() != std::io::ErrorKind::NotFound => {
            error.into()
        }
        error => shared::refused(error),
    }
}
