//! `hiroma quiet`: less jitter from the kernel's reclaim of file cache.

mod measure;

use std::process::ExitCode;

use clap::Subcommand;

/// Finds out who steals time from programs, and reclaims file cache before the kernel has to.
#[derive(clap::Args)]
pub struct QuietArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Measure(measure::Args),
}

/// Does what was asked.
pub fn run(args: QuietArgs) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Measure(args) => measure::main(&args),
    }
}
