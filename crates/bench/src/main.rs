//! `hiroma-bench`, which `hiroma bench` starts: the papers' experiments on this machine, compared
//! with the alternatives in use today.

mod children;
mod far;
mod figures;
mod huge;
mod job;
mod man;
mod noise;
mod peers;
mod policy;
mod progress;
mod real;
mod spark;
mod stream;
mod undo;
mod with_parent;
mod workload;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use hiroma_command::files::Files;
use hiroma_report::Report;

use self::children::{Failed, Interrupt};

/// Run experiments on this machine and report the results beside the papers' figures.
#[derive(Parser)]
#[command(name = "bench", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Far memory: reading, latency, strides, sorting; compared with raw TCP, zram and a swap file
    Far(far::FarArgs),
    /// Huge pages: cost and accuracy of tracking, and the gain of huge pages where a process is hot
    Huge(huge::HugeArgs),
    /// Noise of page reclamation: its cost for a program that computes in step, with and without
    /// the daemon, and with the remedies in use today
    Noise(noise::NoiseArgs),
    /// Far memory in several servers: what copies, parity and sealing cost, and a death
    Pool(far::PoolArgs),
    /// Policies of local memory on recorded page traces of real programs: replacement, block sizes
    /// and prefetching
    Policy(policy::PolicyArgs),
    /// Everyday programs with less memory than they use, compared with zram at equal memory
    Real(real::RealArgs),
    /// Spark's cached data on huge pages: coverage, cost and gain, compared with no huge pages,
    /// huge pages everywhere, and the paper's earlier method
    Spark(spark::SparkArgs),
    /// Insert results into a document
    #[command(hide = true)]
    Figures(figures::Args),
    /// Helper process that reads or writes
    #[command(hide = true)]
    NoiseLoad {
        /// Job description (JSON)
        job: String,
    },
    /// Helper process that computes in step
    #[command(hide = true)]
    NoiseApp {
        /// Job description (JSON)
        job: String,
    },
    /// Helper process that touches memory
    #[command(hide = true)]
    HugeLoad {
        /// Job description (JSON)
        job: String,
    },
    /// Helper process that leaves few huge pages to others
    #[command(hide = true)]
    Fragment {
        /// Job description (JSON)
        job: String,
    },
    /// Run a program that ends with its parent
    #[command(hide = true)]
    WithParent(with_parent::Args),
    /// Helper process that measures
    #[command(hide = true)]
    Workload {
        /// Job description (JSON)
        job: String,
    },
    /// Write the man pages
    #[command(hide = true)]
    Man(man::Args),
    /// List the experiments and their options, for shell completions
    #[command(hide = true)]
    Outline,
}

/// The command by its public name: `hiroma bench`.
fn command() -> clap::Command {
    clap::Command::new("hiroma")
        .subcommand_required(true)
        .max_term_width(100)
        .subcommand(Cli::command())
}

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1);
    let mut matches =
        command().get_matches_from(["hiroma".into(), "bench".into()].into_iter().chain(words));
    let (_, mut bench) = matches.remove_subcommand().expect("it is given above");
    let cli = Cli::from_arg_matches_mut(&mut bench).unwrap_or_else(|error| error.exit());
    hiroma_command::exit_code(run(cli.what))
}

fn run(what: BenchCommand) -> anyhow::Result<ExitCode> {
    match what {
        BenchCommand::Far(args) => far::run(&args),
        BenchCommand::Huge(args) => huge::run(&args),
        BenchCommand::Noise(args) => noise::run(&args),
        BenchCommand::Pool(args) => far::pool::run(&args),
        BenchCommand::Policy(args) => policy::run(&args),
        BenchCommand::Real(args) => real::run(&args),
        BenchCommand::Spark(args) => spark::run(&args),
        BenchCommand::Figures(args) => figures::main(&args),
        BenchCommand::NoiseLoad { job } => noise::load::main(&job),
        BenchCommand::NoiseApp { job } => noise::app::main(&job),
        BenchCommand::HugeLoad { job } => huge::load::main(&job),
        BenchCommand::Fragment { job } => spark::fragment::main(&job),
        BenchCommand::WithParent(args) => with_parent::main(&args),
        BenchCommand::Workload { job } => workload::main(&job),
        BenchCommand::Man(args) => man::main(&args),
        BenchCommand::Outline => {
            std::io::stdout()
                .write_all(hiroma_command::outline::outline(&Cli::command()).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// An experiment that `--only` can select.
trait Named {
    /// Its name in `--only`.
    fn name(&self) -> &'static str;
}

/// The experiments of `all` that are named in `only`, in the order of `all`; all of them if nothing
/// is named.
fn choose<'a, E: Named>(all: &'a [E], only: &[String]) -> anyhow::Result<Vec<&'a E>> {
    let names: Vec<&str> = all.iter().map(Named::name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(hiroma_command::refuse(format!(
            "there is no experiment `{unknown}`: choose from {}",
            names.join(", ")
        )));
    }
    Ok(all
        .iter()
        .filter(|experiment| only.is_empty() || only.iter().any(|name| name == experiment.name()))
        .collect())
}

/// Clears whether goals are met: the measurement was smaller than the goals require, as `why`
/// explains.
fn forget_goals(report: &mut Report, why: &str) {
    for measure in &mut report.measures {
        (measure.met, measure.aim_met) = (None, None);
        measure.note =
            format!("{why}{}{}", if measure.note.is_empty() { "" } else { "; " }, measure.note);
    }
}

/// Runs `work`, and restores the machine's state however it ends.
fn with_clean_up<T>(
    work: impl FnOnce(&Interrupt) -> Result<T, Failed>,
) -> anyhow::Result<Result<T, Failed>> {
    let leftovers = undo::undo_leftovers();
    if leftovers > 0 {
        eprintln!(
            "hiroma: put back {leftovers} things that a bench before this one, which was killed, had left behind"
        );
    }
    undo::undo_on_panic();
    let outcome = work(&Interrupt::listen()?);
    undo::undo_all();
    Ok(outcome)
}

/// Measures, restores the machine's state however that ends, and delivers the report.
fn measured(
    files: &Files,
    measure: impl FnOnce(&Interrupt) -> Result<Report, Failed>,
) -> anyhow::Result<ExitCode> {
    match with_clean_up(measure)? {
        Ok(report) => deliver(report, files)?,
        Err(Failed::Interrupted) => {
            eprintln!(
                "hiroma: interrupted; swap, control groups and files are as they were before"
            );
            return Ok(ExitCode::from(130));
        }
        Err(failed) => return Err(failed.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the summary of a report and writes it to the requested files.
fn deliver(mut report: Report, files: &Files) -> anyhow::Result<()> {
    report.command = std::env::args().collect::<Vec<_>>().join(" ");
    println!("\n{}\n{}", report.machine.describe(), report.summary().to_text());
    let json = report.to_json();
    files.write(|| json, || report)
}
