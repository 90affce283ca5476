//! Stands in for the program towards whoever started us: signals go through to it, its end becomes
//! ours.

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

/// Signals that are passed on.
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

/// The signals of this process, from before the program starts until it has ended.
pub struct Signals(SignalsInfo<WithOrigin>);

impl Signals {
    /// Takes over the signals. To be called before the program starts, so that none is lost in
    /// between.
    pub fn take_over() -> io::Result<Signals> {
        // What is ignored here (nohup, background jobs of a script) stays ignored, for us and for
        // the program.
        let ignored = ignored_signals();
        let wanted = PASSED_ON.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        Ok(Signals(SignalsInfo::new(wanted.chain([SIGCHLD]))?))
    }

    /// Passes signals on to `child` until it ends.
    /// `on_quit` is called before SIGQUIT is passed on.
    pub fn pass_on_until_end(&mut self, child: Pid, on_quit: impl Fn()) -> io::Result<Ending> {
        loop {
            // Signals that arrive together come out in no order; the end of the child is looked for
            // after the others are through.
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
    // What the terminal sends goes to the whole process group: the program has it already, and must
    // not get it twice.
    let from_terminal = matches!(origin.cause, Cause::Kernel);
    let same_group = getpgid(Some(child)).ok() == getpgid(None).ok();
    if let (Some(signal), false) =
        (Signal::from_named_raw(origin.signal), from_terminal && same_group)
    {
        // It fails only when the program has just ended.
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
        // Stopped by the terminal: stop as well, so that the shell sees it. (Not for SIGSTOP:
        // whoever continues the program alone would leave us stopped.)
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
    /// Ends this process in the same way.
    pub fn imitate(self) -> ExitCode {
        match self {
            Ending::Exited(code) => ExitCode::from(code),
            Ending::Killed(signal) => {
                // The program has left its core, if any; ours would only overwrite it.
                let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                // Only for signals whose default is not to end a process, and for real-time ones.
                ExitCode::from((128 + signal) as u8)
            }
        }
    }
}
