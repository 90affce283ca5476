//! What a shell needs to complete commands and options.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// Write the completions of a shell
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Writes them to standard output.
pub fn main(args: Args) -> Result<ExitCode> {
    let mut command = crate::Cli::command();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hiroma", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
