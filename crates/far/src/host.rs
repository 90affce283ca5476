//! Where the pager's threads run, and how they are started.
//!
//! Under `hiroma run` they are a process of their own that shares the program's memory (see
//! `hiroma_sys::helper` for the reason). In programs that link the library, and where a helper
//! is not possible, they are threads of the program with a descriptor table of their own. In both
//! cases the first of them opens all descriptors and starts the others, so that no descriptor is in
//! the program's table.

use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hiroma_sys::{attributes, helper, private_table, signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{elsewhere, hooks};

/// The program's process id.
static PROGRAM: AtomicU32 = AtomicU32::new(0);
static PROGRAM_IN_PROC: AtomicU32 = AtomicU32::new(0);

/// The process id of the program whose memory this is, even if the caller is the helper.
pub fn program() -> u32 {
    match PROGRAM.load(Ordering::Relaxed) {
        0 => std::process::id(),
        pid => pid,
    }
}

/// The same as `/proc` numbers it, which names the program's control page: in a new pid namespace
/// `/proc` is still that of the old one. Where it is not, see [`crate::elsewhere`].
pub fn program_in_proc() -> u32 {
    match PROGRAM_IN_PROC.load(Ordering::Relaxed) {
        0 => std::process::id(),
        pid => pid,
    }
}

/// Records the process id of the program; must be called on a thread of the program. `dir` is the run's
/// directory.
pub fn note_program(dir: Option<&Path>) {
    elsewhere::note(dir);
    PROGRAM.store(std::process::id(), Ordering::Relaxed);
    PROGRAM_IN_PROC.store(elsewhere::in_run(helper::pid_in_proc()), Ordering::Relaxed);
}

/// Whether the program has ended, with all its threads. Always false on a thread of the program.
pub fn has_program_ended() -> bool {
    let Some(pid) = Pid::from_raw(program() as i32).filter(|_| helper::is_here()) else {
        return false;
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
            matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
        }
        Err(errno) => errno == Errno::SRCH,
    }
}

/// A thread of the pager.
pub enum Thread {
    OfHelper(helper::Thread),
    OfProgram(JoinHandle<()>),
}

impl Thread {
    /// Waits until it has ended. It can only end early by a panic, which is reported to the user.
    pub fn join(self) {
        match self {
            Thread::OfHelper(thread) => thread.join(),
            Thread::OfProgram(thread) => drop(thread.join()),
        }
    }
}

/// Starts another thread of the pager, beside the calling one.
pub fn spawn(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let work = move || {
        hooks::enter_thread();
        helper::name_thread(name);
        hiroma_sys::cpu::shorten_slice();
        body();
    };
    if helper::is_here() {
        return helper::spawn(work).map(Thread::OfHelper);
    }
    let builder = std::thread::Builder::new().stack_size(256 << 10);
    signals::blocked(|| builder.spawn(work)).map(Thread::OfProgram)
}

/// Starts the first thread of the pager with `body`, as a helper or as a thread of the program.
pub fn start(as_helper: bool, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if as_helper {
        return helper::start(move || {
            hooks::enter_thread();
            attributes::restore();
            helper::detach();
            helper::lift_limits();
            body();
            helper::end();
        });
    }
    let work = move || {
        hooks::enter_thread();
        attributes::restore();
        helper::name_thread(c"hiroma-life");
        if let Err(error) = private_table::leave() {
            crate::fatal::warn(&format!(
                "the pager shares the program's descriptors ({error}): the program must not close them"
            ));
        }
        body();
    };
    let builder = std::thread::Builder::new().stack_size(256 << 10);
    signals::blocked(|| builder.spawn(work)).map(drop)
}

/// Prepares what a helper needs, if a helper is possible here.
pub fn prepare_helper() -> bool {
    helper::is_possible() && helper::prepare().is_ok()
}

/// A value that one thread waits for and another one provides.
pub struct Promise<T> {
    state: AtomicU32,
    value: std::sync::Mutex<Option<T>>,
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Promise { state: AtomicU32::new(0), value: std::sync::Mutex::new(None) }
    }
}

impl<T> Promise<T> {
    /// Provides the value.
    pub fn keep(self: &Arc<Self>, value: T) {
        *self.value.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(value);
        self.state.store(1, Ordering::Release);
        hiroma_sys::lock::wake_all(&self.state);
    }

    /// Waits for the value; calls `still` periodically to find out whether it can still arrive.
    pub fn wait(&self, still: impl Fn() -> bool) -> Option<T> {
        while self.state.load(Ordering::Acquire) == 0 {
            if !still() {
                return None;
            }
            hiroma_sys::lock::wait_while(&self.state, 0, Duration::from_millis(100));
        }
        self.value.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}
