//! Man pages of `hiroma bench`, generated from the same text as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Write the man pages.
#[derive(clap::Args)]
pub struct Args {
    /// Directory to write to; must exist
    dir: PathBuf,
}

/// Writes one page for `bench` and one for each of its visible subcommands.
pub fn main(args: &Args) -> Result<ExitCode> {
    let mut whole = crate::command().disable_help_subcommand(true);
    whole.build();
    let bench = whole.find_subcommand("bench").context("`bench` is a subcommand")?;
    hiroma_command::man::write_pages(bench, &args.dir)
        .with_context(|| format!("cannot write man pages to {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
