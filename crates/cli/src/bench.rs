//! `hiroma bench`: replaces itself with `hiroma-bench`, a separate program that is installed beside
//! this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use hiroma_command::refuse;

/// Run experiments on this machine and report the results beside the papers' figures.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Experiment and its options; `hiroma bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "EXPERIMENT")]
    words: Vec<OsString>,
}

/// Path of `hiroma-bench`. Missing: a refusal.
pub fn program() -> Result<PathBuf> {
    let this = std::env::current_exe().context("finding this program's own file")?;
    let beside = this.with_file_name("hiroma-bench");
    if beside.exists() {
        return Ok(beside);
    }
    Err(refuse(format!(
        "{} is missing, which runs the experiments: `make install` puts it there",
        beside.display()
    )))
}

/// Replaces this process with `hiroma-bench`.
pub fn main(args: &Args) -> Result<ExitCode> {
    let program = program()?;
    Err(Command::new(&program).args(&args.words).exec())
        .with_context(|| format!("cannot start {}", program.display()))
}
