//! Shell completions of commands and options.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// Write the completions for a shell
#[derive(clap::Args)]
pub struct Args {
    /// Shell to write completions for
    shell: Shell,
}

/// Writes the completions to standard output.
pub fn main(args: Args) -> Result<ExitCode> {
    let mut command = crate::Cli::command();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hiroma", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
