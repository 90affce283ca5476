//! `hiroma bench`: the papers' experiments on this machine, against what it would use otherwise.

pub mod ballast;
mod children;
pub mod content;
mod far;
mod job;
pub mod machine;
mod peers;
mod progress;
mod stream;
mod undo;
mod workload;

use std::process::ExitCode;

use clap::Subcommand;

/// Runs experiments on this machine and reports them beside the papers' figures.
#[derive(clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Far memory: reading, latency, strides, sorting; against raw TCP, zram and a swap file
    Far(far::FarArgs),
    /// A process that measures and is started by the others
    #[command(hide = true)]
    Workload {
        /// What to do (JSON)
        job: String,
    },
}

/// Does what was asked.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Far(args) => far::run(&args),
        What::Workload { job } => workload::main(&job),
    }
}
