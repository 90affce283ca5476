//! Ends the program with a message where going on could mean wrong data.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hiroma_sys::helper;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::control::ControlPage;
use crate::host;

/// Exit code of a program that lost its far memory (EX_TEMPFAIL of sysexits.h).
pub const EXIT_CODE: i32 = 75;

#[cfg(any(test, feature = "model"))]
thread_local!(
    /// In this thread the end is a panic, because the thread represents a program.
    pub static PANICS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }
);

/// Whether this thread plays the role of the pager's threads for a model.
#[inline(always)]
pub fn is_model() -> bool {
    #[cfg(any(test, feature = "model"))]
    return PANICS.with(std::cell::Cell::get);
    #[cfg(not(any(test, feature = "model")))]
    false
}

static DYING: AtomicBool = AtomicBool::new(false);
/// The page for messages, if another program reads them there.
static PAGE: Mutex<Option<Arc<ControlPage>>> = Mutex::new(None);

/// The page is that of the parent of this process.
static IS_PARENTS: AtomicBool = AtomicBool::new(false);

/// In a forked child: until it has a page of its own, its messages go into its parent's, which its end
/// does not concern.
pub fn speak_through_parent() {
    IS_PARENTS.store(true, Ordering::SeqCst);
}

/// Sends messages to `page` from now on.
pub fn speak_through(page: Arc<ControlPage>) {
    // In a forked child, the lock may appear taken by a thread of the parent; then messages go
    // where they went before.
    if let Ok(mut current) = PAGE.try_lock() {
        // After a fork, the previous page is the parent's.
        std::mem::forget(current.replace(page));
    }
    IS_PARENTS.store(false, Ordering::SeqCst);
    DYING.store(false, Ordering::SeqCst);
}

/// Reports a problem that the program can survive.
pub fn warn(what: &str) {
    say(&format!("hiroma: {what}\n"), None);
}

fn say(line: &str, exit_code: Option<u8>) {
    let said = PAGE.try_lock().is_ok_and(|page| {
        page.as_ref().is_some_and(|page| {
            if let (Some(code), false) = (exit_code, IS_PARENTS.load(Ordering::SeqCst)) {
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

/// The program's standard error, opened for one line only: a pipe that stays open would never end
/// for its reader.
fn program_stderr() -> Option<OwnedFd> {
    let program = pidfd_open(Pid::from_raw(host::program() as i32)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(program, libc::STDERR_FILENO, PidfdGetfdFlags::empty()).ok()
}

/// For a thread of the pager when a thread of the program is about to call [`die`]: keeps all
/// descriptors open until then.
pub fn leave_last() -> ! {
    if helper::is_here() {
        helper::wait_for(host::program());
        helper::end();
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Prints the reason, and ends the process immediately: without destructors or handlers, which
/// could touch far memory.
pub fn die(why: &str) -> ! {
    #[cfg(any(test, feature = "model"))]
    if PANICS.with(std::cell::Cell::get) {
        // No message: some ends are expected.
        std::panic::resume_unwind(Box::new(why.to_owned()));
    }
    if DYING.swap(true, Ordering::SeqCst) {
        // Another thread is doing this already.
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    say(&format!("hiroma: {why}\n"), Some(EXIT_CODE as u8));
    if helper::is_here() {
        // While the program lives, the userfaultfd that blocks its faults must stay open, or it
        // would read zeros. This signal does not reach the first process of a pid namespace; the
        // program that watches the control page from outside ends it.
        helper::kill_and_wait(host::program());
        helper::end();
    }
    hiroma_sys::exit::now(EXIT_CODE)
}
