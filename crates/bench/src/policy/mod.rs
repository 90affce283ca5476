//! `hiroma bench policy`: simulates policies of local memory on recorded page traces of real
//! programs.

mod check;
mod programs;
mod record;
mod results;
mod simulate;
mod tool;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use hiroma_command::files::Files;
use hiroma_command::machine;
use hiroma_far_lab::Costs;
use hiroma_report::Report;

/// Simulate policies of local memory on page traces of real programs.
///
/// Without FILE, traces of the known programs are used. Those that do not exist yet are recorded
/// first; that takes some minutes, and requires valgrind and a C compiler.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PolicyArgs {
    #[command(subcommand)]
    what: Option<PolicyCommand>,
    #[command(flatten)]
    files: Files,
    /// Directory of the traces
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/hiroma-traces")]
    traces: PathBuf,
    /// Simulate only these of the known programs
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Simulate only these policies: names of columns in the tables
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    policies: Vec<String>,
    /// Local memory, in percent of a program's pages
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "75,50,25", value_parser = clap::value_parser!(u8).range(1..=100))]
    at: Vec<u8>,
    /// Python interpreter, with numpy installed
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Traces to simulate, made with `record`, instead of the known programs
    #[arg(value_name = "FILE", conflicts_with = "only")]
    recorded: Vec<PathBuf>,
}

#[derive(Subcommand)]
enum PolicyCommand {
    Record(record::RecordArgs),
    Check(check::CheckArgs),
}

/// Runs the subcommand, or the simulations.
pub fn run(args: &PolicyArgs) -> Result<ExitCode> {
    match &args.what {
        Some(PolicyCommand::Record(args)) => return record::run(args),
        Some(PolicyCommand::Check(args)) => return check::run(args),
        None => {}
    }
    args.files.check()?;
    let policies = simulate::Policy::named(&args.policies)?;
    let traces = match args.recorded.is_empty() {
        true => record::missing(&args.traces, &args.only, &args.python)?,
        false => args.recorded.iter().map(|file| (named_by(file), file.clone())).collect(),
    };
    let costs = Costs::default();
    let (programs, cells) = simulate::run(&traces, &args.at, &policies, &costs)?;
    let mut report = Report {
        title: "Policies of local memory on page traces of real programs".into(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        machine: machine::look(),
        made_at: machine::now(),
        preamble: vec![format!("Modelled times, in nanoseconds: {costs:?}")],
        ..Report::default()
    };
    results::report(&mut report, &programs, &cells, &args.at);
    for section in &report.sections {
        println!("{}", section.to_text());
    }
    println!("{}", results::summary(&report).to_text());
    let json = report.to_json();
    args.files.write(|| json, || report)?;
    Ok(ExitCode::SUCCESS)
}

/// The name of a trace in tables: that of its file, without the extension.
fn named_by(file: &Path) -> String {
    file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}
