//! `hiroma sim`: simulates which placement policy suits a cluster, before it is bought.

mod memory;
mod paper;
mod progress;
mod readings;
pub mod shared;
mod single;
mod sweep;

use std::process::ExitCode;

use clap::Subcommand;

/// Simulate global page placement on a cluster: nodes that lend each other memory.
///
/// The same cluster and the same seed give the same result on any machine, with any number of
/// threads or shards.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct SimArgs {
    #[command(subcommand)]
    what: SimCommand,
}

/// Shown by every subcommand.
const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    a file could not be written, or the like
  2    refused: a file or an option makes no sense; nothing was run
  3    a run got stuck: the simulator has a bug; the message names the seed
  4    a run went wrong: the checkers found a broken rule; the message names the seed
  5    a run crashed: the simulator has a bug
  6    a placement policy of your own failed; the message says what it did
  130  interrupted; a sweep goes on where it was when it is started again";

#[derive(Subcommand)]
enum SimCommand {
    Paper(paper::PaperArgs),
    Readings(readings::ReadingsArgs),
    Run(single::RunArgs),
    Compare(single::CompareArgs),
    Sweep(sweep::SweepArgs),
    Merge(sweep::MergeArgs),
    Replay(single::ReplayArgs),
    Convert(single::ConvertArgs),
    Presets(single::PresetsArgs),
    Explain(single::ExplainArgs),
}

/// Runs the subcommand.
pub fn run(args: SimArgs) -> anyhow::Result<ExitCode> {
    shared::tell_crashes_apart();
    match args.what {
        SimCommand::Paper(args) => paper::paper(&args),
        SimCommand::Readings(args) => readings::readings(&args),
        SimCommand::Run(args) => single::run(&args),
        SimCommand::Compare(args) => single::compare(&args),
        SimCommand::Sweep(args) => sweep::sweep(&args),
        SimCommand::Merge(args) => sweep::merge(&args),
        SimCommand::Replay(args) => single::replay(&args),
        SimCommand::Convert(args) => single::convert(&args),
        SimCommand::Presets(args) => single::presets(&args),
        SimCommand::Explain(args) => single::explain(&args),
    }
}
