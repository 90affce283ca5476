//! Shell completions of commands and options.

use std::io::{self, Write};
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use hiroma_command::outline::with_outline;

/// Write the completions for a shell
#[derive(clap::Args)]
pub struct Args {
    /// Shell to write completions for
    shell: Shell,
}

/// Writes the completions to standard output.
pub fn main(args: Args) -> Result<ExitCode> {
    let mut command = crate::Cli::command().mut_subcommand("bench", with_experiments);
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hiroma", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Adds the experiments, which `hiroma-bench` names. Without that program there are none.
fn with_experiments(bench: clap::Command) -> clap::Command {
    let named = crate::bench::program()
        .ok()
        .and_then(|program| Command::new(program).arg("outline").output().ok())
        .filter(|output| output.status.success());
    match named {
        // The positional for the experiment's words would hide them.
        Some(output) => {
            let bare =
                clap::Command::new("bench").about(bench.get_about().cloned().unwrap_or_default());
            with_outline(bare, &String::from_utf8_lossy(&output.stdout))
        }
        None => bench,
    }
}
