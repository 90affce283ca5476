//! What pagers have to say while the program runs, and what becomes of a program whose pager is
//! gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hiroma_command::show;
use hiroma_pager::control::{ControlPage, Counter};
use hiroma_units::Bytes;
use rustix::process::{Pid, Signal, kill_process};

use crate::{processes, rundir};

/// How often pages are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The thread that reads messages.
pub struct Herald {
    stop: Sender<()>,
    thread: JoinHandle<Told>,
}

/// What has been told, by process.
#[derive(Default)]
pub struct Told {
    pages: BTreeMap<u32, Page>,
}

#[derive(Default)]
struct Page {
    told: usize,
    /// The pager was not there, the last time.
    orphaned: bool,
    /// Its pager was ending it, the last time.
    condemned: bool,
    /// It has ended since; its number can be another's.
    gone: bool,
}

impl Herald {
    /// Starts to read the pages in `dir`.
    pub fn start(dir: PathBuf) -> Herald {
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let mut told = Told::default();
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                told.look(&dir);
            }
            told.look(&dir);
            told
        });
        Herald { stop, thread }
    }

    /// Reads once more, and ends.
    pub fn stop(self) {
        drop(self.stop);
        // It can have died of a panic only, of which the user has heard.
        let _ = self.thread.join();
    }
}

impl Told {
    fn look(&mut self, dir: &Path) {
        for pid in rundir::page_pids(dir) {
            let Ok(page) = ControlPage::open(dir, pid) else { continue };
            let known = self.pages.entry(pid).or_default();
            let said = page.said_since(known.told);
            known.told += said.len();
            said.lines().for_each(show::line);
            // Twice in a row: a program that its pager ends takes a moment. What remains is the
            // first process of a namespace of processes, whom a signal from inside does not reach.
            let condemned = page.exit_code().is_some();
            known.gone = condemned && (known.gone || !processes::is_alive(pid));
            if std::mem::replace(&mut known.condemned, condemned) && condemned && !known.gone {
                end(pid);
            }
            let orphaned = page.exit_code().is_none()
                && page.pager().is_some_and(|pager| !processes::is_alive(pager));
            // Twice in a row: a pager that sees its program end is gone a moment before.
            if orphaned
                && std::mem::replace(&mut known.orphaned, orphaned)
                && processes::is_alive(pid)
            {
                page.set_exit_code(hiroma_pager::fatal::EXIT_CODE as u8);
                show::say(&format!(
                    "the pager of process {pid} was killed, and with it the program's far memory is lost, so the program was ended"
                ));
                end(pid);
            }
        }
    }
}

fn end(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// What each process of the run waits for just now, one line each.
pub fn describe(dir: &Path) {
    for pid in rundir::page_pids(dir).into_iter().filter(|&pid| processes::is_alive(pid)) {
        if let Ok(page) = ControlPage::open(dir, pid) {
            let bytes = |counter| Bytes(page.get(counter));
            let waits = page.waiting().unwrap_or_else(|| "no fault waits".to_owned());
            show::say(&format!(
                "process {pid}: {waits}; local {} of {}, far {}, {} cannot leave",
                bytes(Counter::LocalBytes),
                bytes(Counter::LimitBytes),
                bytes(Counter::FarBytes),
                Bytes(page.held_bytes())
            ));
        }
    }
}

/// The exit code with which the pager of `pid` ended it, if it did.
pub fn exit_code(dir: &Path, pid: u32) -> Option<u8> {
    ControlPage::open(dir, pid).ok()?.exit_code()
}
