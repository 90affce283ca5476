//! The man pages, from the same text as `--help`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;

/// Writes the man pages.
#[derive(clap::Args)]
pub struct Args {
    /// Directory to write to
    #[arg(default_value = "docs/man")]
    dir: PathBuf,
}

/// Writes one page for the command and one for each subcommand that is shown.
pub fn main(args: Args) -> Result<ExitCode> {
    let command = crate::Cli::command().disable_help_subcommand(true);
    fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(command, &args.dir))
        .with_context(|| format!("cannot write man pages to {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
