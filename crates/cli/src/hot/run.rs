//! `hiroma hot run`: starts a program and makes huge pages where it is hot.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hiroma_command::{Failure, show};
use hiroma_hot::Engine;
use hiroma_units::parse_time;
use rustix::process::Pid;

use super::manage::{Clock, Ended, manage};
use super::options::Managing;
use hiroma_run::program::{self, start_failure};
use hiroma_run::signals::Signals;

/// Run a program, and give it huge pages exactly where it is hot.
///
/// The exit code and the signals of the program are passed through. Processes that it starts are
/// not managed. If the program cannot be managed, it runs anyway, and a line reports the reason.
#[derive(clap::Args)]
pub struct Args {
    /// Time to wait before checking again when there is nothing to do
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_time, default_value = "5s")]
    keep: Duration,
    #[command(flatten)]
    managing: Managing,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs and manages the program.
pub fn main(args: &Args) -> Result<ExitCode> {
    let options = args.managing.options(Some(args.keep))?;
    let program = program::find(&args.command[0]).map_err(|error| {
        anyhow::Error::from(Failure { code: error.code(), message: error.to_string() })
    })?;
    // Must come before the program starts and before a ledger is opened: then no signal is lost,
    // and no signal leaves a program behind that no process waits for.
    let mut signals = Signals::take_over().context("cannot take over the signals")?;
    let mut command = Command::new(&program);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    let child = command.spawn().map_err(|error| start_failure(&program, &error))?;
    let pid =
        Pid::from_raw(child.id() as i32).ok_or_else(|| anyhow!("the program has no process id"))?;
    let over = Arc::new(AtomicBool::new(false));
    let manager = {
        let (over, number) = (Arc::clone(&over), child.id());
        std::thread::Builder::new().name("hiroma-hot".into()).spawn(move || {
            let clock = Clock::start();
            let engine = match Engine::new(number, options, clock.now_ns()) {
                Ok(engine) => engine,
                // A program that ends early is not an error of this command.
                Err(error) if error.is_gone() => return Ok(None),
                Err(error) => {
                    // Now, and not when the program ends.
                    show::say(&format!("the program runs without huge pages of ours: {error}"));
                    return Ok(None);
                }
            };
            manage(engine, &clock, || over.load(Ordering::Relaxed), false).map(Some)
        })
    };
    let ending = signals.pass_on_until_end(pid, || {}).context("cannot wait for the program")?;
    over.store(true, Ordering::Relaxed);
    let told: Result<Option<Ended>> = match manager {
        Ok(thread) => thread.join().unwrap_or_else(|_| Err(anyhow!("the manager failed"))),
        Err(error) => Err(error).context("cannot start the manager's thread"),
    };
    match told {
        Ok(Some(ended)) if !args.managing.quiet => show::say(&ended.text),
        Ok(_) => {}
        Err(error)
            if error
                .downcast_ref::<hiroma_hot::HotError>()
                .is_some_and(hiroma_hot::HotError::is_gone) => {}
        Err(error) => show::say(&format!("managing the program ended: {error:#}")),
    }
    Ok(ending.imitate())
}
