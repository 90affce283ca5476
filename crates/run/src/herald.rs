//! Prints the messages of pagers while the program runs, and ends programs whose pager is gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hiroma_command::show;
use hiroma_far::control::{ControlPage, Counter};
use hiroma_far::elsewhere;
use hiroma_units::Bytes;
use rustix::process::{Pid, Signal, kill_process};

use crate::watch::Watch;
use crate::{processes, rundir};

/// Time between two reads of the control pages.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pages of ended processes that stay. Each look reads all pages.
const ENDED_MAX: usize = 64;
/// Looks after the end of a process until nobody writes its page any more: its pager may outlive it.
const LOOKS_AFTER_END: u32 = 50;

/// The thread that reads messages.
pub struct Herald {
    stop: Sender<()>,
    thread: JoinHandle<PrintedMessages>,
}

/// What has been printed, by process.
#[derive(Default)]
pub struct PrintedMessages {
    pages: BTreeMap<u32, Page>,
}

#[derive(Default)]
struct Page {
    told: usize,
    /// The process whose pager was missing at the last check.
    orphaned: Option<u32>,
    /// The pager was ending the program at the last check.
    condemned: bool,
    /// The process has ended since; its id may belong to another one now.
    gone: bool,
    /// Looks since the process ended.
    looks_after_end: u32,
}

impl Herald {
    /// Starts to read the control pages in `dir`, which are removed some time after their processes
    /// have ended, except that of `first`: `watch` keeps their counts.
    pub fn start(dir: PathBuf, watch: Arc<Mutex<Watch>>, first: u32) -> Herald {
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let mut told = PrintedMessages::default();
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                told.look(&dir);
                let settled = told.settled(first);
                if !settled.is_empty() {
                    watch.lock().unwrap_or_else(PoisonError::into_inner).settle(&settled);
                }
            }
            told.look(&dir);
            told
        });
        Herald { stop, thread }
    }

    /// Reads the pages once more, and ends the thread.
    pub fn stop(self) {
        drop(self.stop);
        // The join fails only after a panic, which the user has seen.
        let _ = self.thread.join();
    }
}

impl PrintedMessages {
    fn look(&mut self, dir: &Path) {
        for pid in rundir::page_pids(dir) {
            let Ok(page) = ControlPage::open(dir, pid) else { continue };
            let known = self.pages.entry(pid).or_default();
            let said = page.said_since(known.told);
            known.told += said.len();
            said.lines().for_each(show::line);
            // Acts at the second check in a row: a program that its pager ends takes a moment to
            // die. One that is still alive then is the init process of a PID namespace, which a
            // signal from inside the namespace does not reach.
            let condemned = page.exit_code().is_some();
            known.gone = condemned && (known.gone || !processes::is_alive(pid));
            if std::mem::replace(&mut known.condemned, condemned) && condemned && !known.gone {
                end(pid);
            }
            // One that ends may wait for others when it has no memory any more, and needs no pager.
            // What executes another program does not need that of the one before.
            let orphaned = elsewhere::here(pid).filter(|&here| {
                page.exit_code().is_none()
                    && page.pager().is_some_and(|pager| !processes::is_alive(pager))
                    && processes::has_memory(here)
                    && processes::has_mapped(here, &ControlPage::path(dir, pid)).unwrap_or(true)
            });
            // Acts at the second check in a row: a pager that sees its program end exits a moment
            // before the program does. The number may belong to another process by then.
            let before = std::mem::replace(&mut known.orphaned, orphaned);
            if let Some(here) = orphaned.filter(|_| before == orphaned) {
                page.set_exit_code(hiroma_far::fatal::EXIT_CODE as u8);
                show::say(&format!(
                    "the pager of process {here} was killed, and with it the program's far memory is lost, so the program was ended"
                ));
                end(pid);
            }
            let alive = processes::is_alive(pid);
            known.looks_after_end = if alive { 0 } else { known.looks_after_end + 1 };
        }
    }

    /// Processes that ended long ago, if many have ended. They are forgotten.
    fn settled(&mut self, first: u32) -> Vec<u32> {
        let is_settled =
            |pid: u32, page: &Page| pid != first && page.looks_after_end > LOOKS_AFTER_END;
        let pages = self.pages.iter().filter(|(pid, page)| is_settled(**pid, page));
        let settled: Vec<u32> = pages.map(|(&pid, _)| pid).collect();
        if settled.len() <= ENDED_MAX {
            return Vec::new();
        }
        self.pages.retain(|&pid, page| !is_settled(pid, page));
        settled
    }
}

fn end(pid: u32) {
    if let Some(pid) = elsewhere::here(pid).and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Prints one line for each process of the run with what it currently waits for.
pub fn describe(dir: &Path) {
    for pid in rundir::page_pids(dir).into_iter().filter(|&pid| processes::is_alive(pid)) {
        if let Ok(page) = ControlPage::open(dir, pid) {
            let bytes = |counter| Bytes(page.get(counter));
            let waits = page.waiting().unwrap_or_else(|| "no fault waits".to_owned());
            show::say(&format!(
                "process {}: {waits}; local {} of {}, far {}, {} cannot leave",
                elsewhere::shown(pid),
                bytes(Counter::LocalBytes),
                bytes(Counter::LimitBytes),
                bytes(Counter::FarBytes),
                Bytes(page.held_bytes())
            ));
        }
    }
}

/// The exit code with which the pager of `pid` ended the program, if it did.
pub fn exit_code(dir: &Path, pid: u32) -> Option<u8> {
    ControlPage::open(dir, pid).ok()?.exit_code()
}
