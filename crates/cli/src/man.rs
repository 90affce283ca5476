//! Man pages, generated from the same text as `--help`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::CommandFactory;

/// Write the man pages.
#[derive(clap::Args)]
pub struct Args {
    /// Directory to write to
    #[arg(default_value = "docs/man")]
    dir: PathBuf,
}

/// Writes one page for the command and one for each visible subcommand. `hiroma-bench` writes those
/// of `bench`.
pub fn main(args: Args) -> Result<ExitCode> {
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    command.build();
    fs::create_dir_all(&args.dir)
        .and_then(|()| hiroma_command::man::write_pages(&command, &args.dir))
        .with_context(|| format!("cannot write man pages to {}", args.dir.display()))?;
    let bench = crate::bench::program()?;
    let ended = Command::new(&bench)
        .arg("man")
        .arg(&args.dir)
        .status()
        .with_context(|| format!("cannot start {}", bench.display()))?;
    ensure!(ended.success(), "{} could not write its man pages ({ended})", bench.display());
    Ok(ExitCode::SUCCESS)
}
