//! Programs that end with their parent, even if it is killed and cannot end anything itself.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::children::this_program;

/// Run a program that ends with its parent.
#[derive(clap::Args)]
pub struct Args {
    /// Process id of the parent
    #[arg(long, value_name = "PID")]
    parent: i32,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// A command that starts `program` so that it ends with this process. The program keeps the process
/// id of the started process.
pub fn command(program: &Path) -> Result<Command> {
    let mut command = Command::new(this_program()?);
    command.args(["with-parent", "--parent", &std::process::id().to_string(), "--"]).arg(program);
    Ok(command)
}

/// Executes the program. The parent-death signal survives `execve`, unless that changes rights.
pub fn main(args: &Args) -> Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Pid::from_raw(args.parent) {
        // The parent has ended already: no signal will arrive.
        return Ok(ExitCode::FAILURE);
    }
    let name = &args.command[0];
    Err(Command::new(name).args(&args.command[1..]).exec())
        .with_context(|| format!("cannot start {}", name.to_string_lossy()))
}
