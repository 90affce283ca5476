//! `hiroma quiet`: reduces jitter from the kernel's reclaim of file cache.

mod advise;
mod bound;
mod bsp;
mod measure;
mod run;
mod serve;

use std::process::ExitCode;

use clap::Subcommand;

/// Find out what steals time from programs, and reclaim file cache before the kernel has to.
#[derive(clap::Args)]
pub struct QuietArgs {
    #[command(subcommand)]
    what: QuietCommand,
}

#[derive(Subcommand)]
enum QuietCommand {
    Measure(measure::Args),
    Bsp(bsp::Args),
    Advise(advise::Args),
    Run(run::Args),
    Serve(serve::ServeArgs),
    Set(serve::SetArgs),
    Restore(serve::RestoreArgs),
}

/// Runs the subcommand.
pub fn run(args: QuietArgs) -> anyhow::Result<ExitCode> {
    match args.what {
        QuietCommand::Measure(args) => measure::main(&args),
        QuietCommand::Bsp(args) => bsp::main(&args),
        QuietCommand::Advise(args) => advise::main(&args),
        QuietCommand::Run(args) => run::main(&args),
        QuietCommand::Serve(args) => serve::serve(&args),
        QuietCommand::Set(args) => serve::set(&args),
        QuietCommand::Restore(args) => serve::restore(&args),
    }
}
