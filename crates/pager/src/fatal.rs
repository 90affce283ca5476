//! The end: where going on could mean wrong bytes, the program is ended with a message instead.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hiroma_kernel::helper;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::control::ControlPage;
use crate::host;

/// Exit code of a program that lost its far memory (EX_TEMPFAIL of sysexits.h).
pub const EXIT_CODE: i32 = 75;

#[cfg(any(test, feature = "model"))]
thread_local!(
    /// In this thread an end is a panic: it stands for a program.
    pub static PANICS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }
);

/// Whether this thread plays the pager's threads for a model.
#[inline(always)]
pub fn is_model() -> bool {
    #[cfg(any(test, feature = "model"))]
    return PANICS.with(std::cell::Cell::get);
    #[cfg(not(any(test, feature = "model")))]
    false
}

static DYING: AtomicBool = AtomicBool::new(false);
/// Where messages go, if somebody reads them there.
static PAGE: Mutex<Option<Arc<ControlPage>>> = Mutex::new(None);

/// Messages go to `page` from now on.
pub fn speak_through(page: Arc<ControlPage>) {
    // In the child of a fork the lock may look held by a thread of the parent; messages then go
    // where they went.
    if let Ok(mut current) = PAGE.try_lock() {
        // What it replaces is the parent's, after a fork.
        std::mem::forget(current.replace(page));
    }
    DYING.store(false, Ordering::SeqCst);
}

/// Says something that the program can live with.
pub fn warn(what: &str) {
    say(&format!("hiroma: {what}\n"), None);
}

fn say(line: &str, exit_code: Option<u8>) {
    let said = PAGE.try_lock().is_ok_and(|page| {
        page.as_ref().is_some_and(|page| {
            if let Some(code) = exit_code {
                page.set_exit_code(code);
            }
            page.is_watched() && page.say(line)
        })
    });
    if said {
        return;
    }
    if !helper::is_here() {
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
        return;
    }
    if let Some(errors) = program_stderr() {
        let _ = rustix::io::write(errors, line.as_bytes());
    }
}

/// The program's, taken only for a line: a pipe that stays open never ends for who reads it.
fn program_stderr() -> Option<OwnedFd> {
    let program = pidfd_open(Pid::from_raw(host::program() as i32)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(program, libc::STDERR_FILENO, PidfdGetfdFlags::empty()).ok()
}

/// For a thread of the pager, when one of the program is about to call [`die`]: stays until then,
/// with all descriptors.
pub fn leave_last() -> ! {
    if helper::is_here() {
        helper::wait_for(host::program());
        helper::end();
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Says why, and ends the process at once: no destructors, no handlers, nothing that could touch
/// far memory.
pub fn die(why: &str) -> ! {
    #[cfg(any(test, feature = "model"))]
    if PANICS.with(std::cell::Cell::get) {
        // Without a word: some ends are due.
        std::panic::resume_unwind(Box::new(why.to_owned()));
    }
    if DYING.swap(true, Ordering::SeqCst) {
        // Another thread is at it already.
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    say(&format!("hiroma: {why}\n"), Some(EXIT_CODE as u8));
    if helper::is_here() {
        // While the program lives, the descriptor that holds its faults must stay open, or it would
        // read zeros. The first process of a namespace of processes is not reached by this signal:
        // who watches the control page from outside ends it.
        helper::kill_and_wait(host::program());
        helper::end();
    }
    hiroma_kernel::exit::now(EXIT_CODE)
}
