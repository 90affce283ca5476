//! Acts in the program's place towards the caller: passes signals on to the program, and ends as
//! the program ends.

use std::fs;
use std::io;
use std::process::ExitCode;

use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, getpgid, getpid, kill_process,
    set_dumpable_behavior, waitpid,
};
use signal_hook::consts::signal::*;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// Signals that are passed on to the program.
const PASSED_ON: &[i32] =
    &[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT, SIGTSTP];

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this exit code.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

/// Handling of this process's signals, from before the program starts until it has ended.
pub struct Signals(SignalsInfo<WithOrigin>);

impl Signals {
    /// Takes over the signals. Must be called before the program starts, so that no signal is lost
    /// in between.
    pub fn take_over() -> io::Result<Signals> {
        // Signals that are ignored here (nohup, background jobs of a script) stay ignored, by this
        // process and by the program.
        let ignored = ignored_signals();
        let wanted = PASSED_ON.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        Ok(Signals(SignalsInfo::new(wanted.chain([SIGCHLD]))?))
    }

    /// Passes signals on to `child` until it ends. Calls `on_quit` before SIGQUIT is passed on.
    pub fn pass_on_until_end(&mut self, child: Pid, on_quit: impl Fn()) -> io::Result<Ending> {
        loop {
            // Signals that arrive together are returned in no particular order, so the end of the
            // child is checked after the other signals were passed on.
            let origins: Vec<Origin> = self.0.wait().collect();
            for origin in origins.iter().filter(|origin| origin.signal != SIGCHLD) {
                if origin.signal == SIGQUIT {
                    on_quit();
                }
                pass_on(origin, child);
            }
            if let Some(ending) = reap(child)? {
                return Ok(ending);
            }
        }
    }
}

fn pass_on(origin: &Origin, child: Pid) {
    // The terminal sends its signals to the whole process group: the program has received them
    // already, and must not receive them twice.
    let from_terminal = matches!(origin.cause, Cause::Kernel);
    let same_group = getpgid(Some(child)).ok() == getpgid(None).ok();
    if let (Some(signal), false) =
        (Signal::from_named_raw(origin.signal), from_terminal && same_group)
    {
        // Fails only if the program has just ended.
        let _ = kill_process(child, signal);
    }
}

fn reap(child: Pid) -> io::Result<Option<Ending>> {
    loop {
        let status = match waitpid(Some(child), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => status,
            Ok(None) => return Ok(None),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if let Some(code) = status.exit_status() {
            return Ok(Some(Ending::Exited(code as u8)));
        }
        if let Some(signal) = status.terminating_signal() {
            return Ok(Some(Ending::Killed(signal)));
        }
        // The terminal stopped the program: stop too, so that the shell notices it. (Not for
        // SIGSTOP: if only the program were continued, this process would stay stopped.)
        if status
            .stopping_signal()
            .is_some_and(|signal| [SIGTSTP, SIGTTIN, SIGTTOU].contains(&signal))
        {
            kill_process(getpid(), Signal::STOP)?;
        }
    }
}

fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or(0)
}

impl Ending {
    /// Ends this process in the same way as the program.
    pub fn imitate(self) -> ExitCode {
        match self {
            Ending::Exited(code) => ExitCode::from(code),
            Ending::Killed(signal) => {
                // The program has written its core file, if any; a second core would only overwrite
                // it.
                let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                // Reached only for signals whose default action does not end a process, and for
                // real-time signals.
                ExitCode::from((128 + signal) as u8)
            }
        }
    }
}
