//! `hiroma quiet run`: starts a program whose streams stay out of the file cache, and acts in its
//! place towards the caller.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, ExitCode};

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use hiroma_command::{Failure, refuse};
use hiroma_units::Bytes;
use rustix::process::Pid;

use super::bound::Bound;
use hiroma_run::preload::{self, QUIET};
use hiroma_run::program::{self, ProgramError, start_failure};
use hiroma_run::rundir::RunDir;
use hiroma_run::signals::{Ending, Signals};

/// Selects the method; read by the library.
const METHOD_ENV: &str = "HIROMA_QUIET_METHOD";

/// Run a program whose large reads and writes do not evict cached files. Requires no rights.
///
/// Files of 8 MiB or more that the program reads or writes from one end to the other do not stay in
/// the cache, and so do not wake the kernel's reclaim. Data that was cached before stays cached.
/// Small files, files of which more than half is cached, files that are read twice and random
/// access are left alone. This command ends with the program's exit code or by the signal that
/// ended it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma quiet run -- cp -r big/ scratch/
  hiroma quiet run -- tar cf backup.tar /srv
  sudo hiroma quiet run --cache 512M -- ./static-program    also static programs, Go, memory mappings
  hiroma quiet run -- sh -c 'zcat logs.gz | sort > sorted'     children too")]
pub struct Args {
    /// Method: `auto` asks the kernel not to cache (RWF_DONTCACHE, Linux 6.14, depends on the file
    /// system) and drops data after use where the kernel refuses; `fadvise` always drops data after
    /// use
    #[arg(long, value_enum, default_value_t = Method::Auto)]
    method: Method,
    /// Instead, bound the file cache of the program and its children, of any kind, by a memory
    /// control group (requires root)
    #[arg(long, value_name = "SIZE", conflicts_with = "method")]
    cache: Option<Bytes>,
    /// Program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    Auto,
    Fadvise,
}

/// Converts an error to a refusal of this command.
fn refusal(error: &ProgramError) -> anyhow::Error {
    let instead = "`hiroma quiet serve` helps against what any program does";
    let message = match error {
        ProgramError::Static(path) => format!(
            "`{path}` is statically linked: it does not read and write through the C library; {instead}"
        ),
        ProgramError::Go(path) => {
            format!("`{path}` is a Go program: Go makes its own system calls; {instead}")
        }
        ProgramError::Musl { path, linker } => {
            format!(
                "`{path}` is linked against musl ({linker}): only programs of the GNU C library can be reached; {instead}"
            )
        }
        other => other.to_string(),
    };
    Failure { code: error.code(), message }.into()
}

/// Runs the program.
pub fn main(args: &Args) -> Result<ExitCode> {
    let program = program::find(&args.command[0]).map_err(|error| refusal(&error))?;
    if let Some(cache) = args.cache {
        return bounded(&program, args, cache);
    }
    program::check(&program).map_err(|error| refusal(&error))?;
    let library = preload::find_library(QUIET)?;
    let dir = RunDir::create()?;
    let mut signals = Signals::take_over().context("cannot take over the signals")?;
    let mut command = command(&program, args);
    preload::set(&mut command, &library, dir.path())?;
    command.env(
        METHOD_ENV,
        args.method
            .to_possible_value()
            .map_or(String::new(), |method| method.get_name().to_owned()),
    );
    let child = command.spawn().map_err(|error| start_failure(&program, &error))?;
    let ending = wait(&child, &mut signals)?;
    drop(dir);
    Ok(ending.imitate())
}

/// Runs the program in a control group whose cache is bounded.
fn bounded(program: &Path, args: &Args, cache: Bytes) -> Result<ExitCode> {
    let instead =
        "without --cache no rights are needed, but only programs of the GNU C library are reached";
    let bound = Bound::make(cache.0).map_err(|error| {
        refuse(format!("--cache: no memory control group can be had here: {error:#}; {instead}"))
    })?;
    let mut signals = Signals::take_over().context("cannot take over the signals")?;
    let child = bound
        .within(|| command(program, args).spawn())?
        .map_err(|error| start_failure(program, &error))?;
    let ending = wait(&child, &mut signals)?;
    drop(bound);
    Ok(ending.imitate())
}

fn command(program: &Path, args: &Args) -> Command {
    let mut command = Command::new(program);
    std::os::unix::process::CommandExt::arg0(&mut command, &args.command[0])
        .args(&args.command[1..]);
    command
}

fn wait(child: &Child, signals: &mut Signals) -> Result<Ending> {
    let pid =
        Pid::from_raw(child.id() as i32).ok_or_else(|| anyhow!("the program has no process id"))?;
    signals.pass_on_until_end(pid, || {}).context("cannot wait for the program")
}
