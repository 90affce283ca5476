//! Programs that end when whoever started them does, also when that is killed and can end nothing
//! itself any more.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::children::this_program;

/// A program, and whose end is its own.
#[derive(clap::Args)]
pub struct Args {
    /// Who starts it
    #[arg(long, value_name = "PID")]
    parent: i32,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The command that starts `program`, which then has the process that was started.
pub fn command(program: &Path) -> Result<Command> {
    let mut command = Command::new(this_program()?);
    command.args(["with-parent", "--parent", &std::process::id().to_string(), "--"]).arg(program);
    Ok(command)
}

/// Becomes the program. The signal outlives `execve`, unless that gives other rights.
pub fn main(args: &Args) -> Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Pid::from_raw(args.parent) {
        // It has ended meanwhile: no signal will come.
        return Ok(ExitCode::FAILURE);
    }
    let name = &args.command[0];
    Err(Command::new(name).args(&args.command[1..]).exec())
        .with_context(|| format!("cannot start {}", name.to_string_lossy()))
}
