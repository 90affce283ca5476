//! `hiroma bench`: becomes `hiroma-bench`, a program of its own that lies beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use hiroma_command::refuse;

/// Runs experiments on this machine and reports them beside the papers' figures.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// What `hiroma bench --help` says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "EXPERIMENT")]
    words: Vec<OsString>,
}

/// Where it is.
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

/// Becomes it.
pub fn main(args: &Args) -> Result<ExitCode> {
    let program = program()?;
    Err(Command::new(&program).args(&args.words).exec())
        .with_context(|| format!("cannot start {}", program.display()))
}
