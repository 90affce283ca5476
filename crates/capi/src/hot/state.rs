//! The one registration of this process. A signal handler may use it at any time, so it consists of
//! atomics and of a buffer whose lock is only ever tried.
//!
//! Contract: the descriptors in [`SOCKET`] and [`EVENT`] are open, and stay open while their user
//! holds [`BUSY`]; only the holder of BUSY closes them. The descriptor in [`WAKE`] stays open for
//! the life of the process, because a handler may be about to write to it. Only the holder of BUSY
//! accesses [`BUFFER`] and [`FUNCTIONS`].
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hiroma_hot::Readiness;
use hiroma_hot::service::client::{self, Client, Fetched};
use hiroma_hot::service::protocol::{HandlingResult, PAGES_MAX, Page, Registration};
use hiroma_sys::notify::{self, Handled, Woken};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::gettid;

use super::export::ProgramFunctions;
use super::handling;
use crate::error::CapiError;

/// How the program is notified of active pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Style {
    /// A signal handler does everything.
    Handler = 0,
    /// A thread of the program waits.
    Thread = 1,
    /// The program polls a descriptor; there is no signal.
    Event = 2,
}

/// Options of a registration.
pub struct Wish {
    pub socket: Option<PathBuf>,
    pub style: Style,
    pub collapse_pages: u32,
    pub registration: Registration,
}

const NONE: RawFd = -1;
static SOCKET: AtomicI32 = AtomicI32::new(NONE);
static EVENT: AtomicI32 = AtomicI32::new(NONE);
static WAKE: AtomicI32 = AtomicI32::new(NONE);
/// The process that registered; a child after fork(2) is not registered.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The thread that holds the state; 0: none.
static BUSY: AtomicI32 = AtomicI32::new(0);
static STYLE: AtomicU32 = AtomicU32::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static COLLAPSE_PAGES: AtomicU32 = AtomicU32::new(0);
/// Number of signals that arrived and were not handled yet.
static PENDING: AtomicU64 = AtomicU64::new(0);
/// The registration must be closed when the holder of BUSY is done.
static CLOSING: AtomicBool = AtomicBool::new(false);
/// The daemon is gone.
static BROKEN: AtomicBool = AtomicBool::new(false);
/// Remains when tracking ends: a signal that is still pending then needs a handler, or it would
/// kill the process.
static HANDLED: Mutex<Option<Handled>> = Mutex::new(None);

struct Guarded<T>(UnsafeCell<T>);
// SAFETY: accessed only by the holder of BUSY, see the contract.
unsafe impl<T> Sync for Guarded<T> {}
static BUFFER: Guarded<[Page; PAGES_MAX]> =
    Guarded(UnsafeCell::new([Page { address: 0, count: 0, reserved: 0 }; PAGES_MAX]));
/// Created when the first pages are handled.
static READINESS: Guarded<Option<Readiness>> = Guarded(UnsafeCell::new(None));
static FUNCTIONS: Guarded<ProgramFunctions> = Guarded(UnsafeCell::new(ProgramFunctions::NONE));

/// Counters since the process began.
pub struct Counters {
    pub signals: AtomicU64,
    pub pages: AtomicU64,
    pub collapsed: AtomicU64,
    pub compacted: AtomicU64,
    pub left: AtomicU64,
    pub failed: AtomicU64,
    pub call_ns_max: AtomicU64,
}

pub static COUNTERS: Counters = Counters {
    signals: AtomicU64::new(0),
    pages: AtomicU64::new(0),
    collapsed: AtomicU64::new(0),
    compacted: AtomicU64::new(0),
    left: AtomicU64::new(0),
    failed: AtomicU64::new(0),
    call_ns_max: AtomicU64::new(0),
};

impl Counters {
    fn add(&self, outcome: &HandlingResult) {
        self.collapsed.fetch_add(outcome.collapsed, SeqCst);
        self.compacted.fetch_add(outcome.compacted, SeqCst);
        self.left.fetch_add(outcome.left, SeqCst);
        self.failed.fetch_add(outcome.failed, SeqCst);
        self.call_ns_max.fetch_max(outcome.call_ns_max, SeqCst);
    }
}

/// Time for which another thread may hold the state before a call gives up.
const PATIENCE: Duration = Duration::from_secs(10);

fn error(errno: Errno, message: &str) -> CapiError {
    CapiError::Hot { errno: errno.raw_os_error(), message: message.to_owned() }
}

fn not_enabled() -> CapiError {
    error(
        Errno::NOTCONN,
        "tracking is not enabled: call hps_enable_track() or hiroma_hot_enable() first",
    )
}

fn daemon_gone() -> CapiError {
    error(
        Errno::NOTCONN,
        "the hot page daemon has ended or let this process go: disable tracking, and enable it again when it is back",
    )
}

fn me() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// The lock on all the state here.
struct Hold;

impl Hold {
    fn attempt() -> Option<Hold> {
        BUSY.compare_exchange(0, me(), SeqCst, SeqCst).ok().map(|_| Hold)
    }

    /// Waits for another thread that holds the state. Refused in a function of the program, because
    /// its own thread is the holder.
    fn get() -> Result<Hold, CapiError> {
        let start = Instant::now();
        loop {
            if let Some(hold) = Hold::attempt() {
                return Ok(hold);
            }
            if BUSY.load(SeqCst) == me() {
                return Err(error(
                    Errno::DEADLK,
                    "not possible in a function that the library calls: do it after that has returned",
                ));
            }
            if start.elapsed() > PATIENCE {
                return Err(error(
                    Errno::BUSY,
                    "a function of the program has been handling active pages for 10 s: it blocks",
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn fd(&self, number: &AtomicI32) -> Option<BorrowedFd<'_>> {
        let number = number.load(SeqCst);
        // SAFETY: open while the hold lasts, see the contract.
        (number != NONE).then(|| unsafe { BorrowedFd::borrow_raw(number) })
    }

    fn functions(&self) -> ProgramFunctions {
        // SAFETY: this is the only holder.
        unsafe { *FUNCTIONS.0.get() }
    }

    /// Closes the registration. Makes only calls that are allowed in a signal handler.
    fn close(&self) {
        for number in [&SOCKET, &EVENT] {
            let number = number.swap(NONE, SeqCst);
            if number != NONE {
                // SAFETY: it was open, and nothing else uses it now or later.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        PENDING.store(0, SeqCst);
    }

    /// Fetches and handles pages until none are left. Returns the number of pages.
    fn handle_all(&mut self) -> Result<u64, Errno> {
        let functions = self.functions();
        let collapse_pages = COLLAPSE_PAGES.load(SeqCst) as usize;
        let mut total = 0;
        loop {
            if CLOSING.load(SeqCst) {
                return Ok(total);
            }
            let Some(socket) = self.fd(&SOCKET) else { return Err(Errno::NOTCONN) };
            // SAFETY: this is the only holder, and there is no other reference while this one is
            // used.
            let buffer = unsafe { &mut *BUFFER.0.get() };
            let Fetched { pages, left, mut may_collapse } = client::fetch(socket, buffer)?;
            if pages == 0 {
                return Ok(total);
            }
            COUNTERS.pages.fetch_add(pages as u64, SeqCst);
            total += pages as u64;
            // SAFETY: as above.
            let readiness = unsafe { &mut *READINESS.0.get() }.get_or_insert_with(Readiness::new);
            let outcome = handling::handle(
                &buffer[..pages],
                collapse_pages,
                &mut may_collapse,
                readiness,
                &functions,
            );
            COUNTERS.add(&outcome);
            client::handled(socket, &outcome)?;
            if left == 0 {
                return Ok(total);
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if CLOSING.swap(false, SeqCst) {
            self.close();
        }
        BUSY.store(0, SeqCst);
    }
}

/// Handles pending signals, unless another thread holds the state: that thread handles them before
/// it releases the state.
fn handle_pending() -> Result<u64, Errno> {
    let mut total = 0;
    while PENDING.load(SeqCst) > 0 {
        let Some(mut hold) = Hold::attempt() else { return Ok(total) };
        if hold.fd(&SOCKET).is_none() {
            return Ok(total);
        }
        PENDING.store(0, SeqCst);
        match hold.handle_all() {
            Ok(pages) => total += pages,
            Err(errno) => {
                BROKEN.store(true, SeqCst);
                return Err(errno);
            }
        }
    }
    Ok(total)
}

/// The signal handler.
fn on_signal(_: u64) {
    if OWNER.load(SeqCst) != getpid().as_raw_nonzero().get() {
        return;
    }
    COUNTERS.signals.fetch_add(1, SeqCst);
    PENDING.fetch_add(1, SeqCst);
    if STYLE.load(SeqCst) == Style::Handler as u32 {
        // The next call reports a broken connection.
        let _ = handle_pending();
        return;
    }
    let wake = WAKE.load(SeqCst);
    if wake != NONE {
        // SAFETY: it stays open, see the contract.
        let wake = unsafe { BorrowedFd::borrow_raw(wake) };
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
}

/// A child after fork(2) inherits the descriptors of its parent's registration, and a lock whose
/// holder may not exist here.
fn forget_parents() {
    let own = getpid().as_raw_nonzero().get();
    if OWNER.swap(own, SeqCst) != own {
        BUSY.store(0, SeqCst);
        CLOSING.store(false, SeqCst);
        if let Some(hold) = Hold::attempt() {
            hold.close();
        }
        // This process has a single thread so far, which runs this code and is not in a handler.
        let wake = WAKE.swap(NONE, SeqCst);
        if wake != NONE {
            // SAFETY: the child's own copy of the number, which nothing uses any more.
            drop(unsafe { OwnedFd::from_raw_fd(wake) });
        }
    }
}

/// Handles signals that arrived in a handler while a call of the program held the state.
fn settle() {
    if STYLE.load(SeqCst) == Style::Handler as u32 {
        // The next call reports a broken connection.
        let _ = handle_pending();
    }
}

fn enabled() -> Result<(), CapiError> {
    if OWNER.load(SeqCst) != getpid().as_raw_nonzero().get() || SOCKET.load(SeqCst) == NONE {
        return Err(not_enabled());
    }
    if BROKEN.load(SeqCst) { Err(daemon_gone()) } else { Ok(()) }
}

/// Registers with the daemon.
pub fn enable(wish: Wish) -> Result<(), CapiError> {
    forget_parents();
    let hold = Hold::get()?;
    if hold.fd(&SOCKET).is_some() {
        return Err(error(
            Errno::ALREADY,
            "tracking is enabled already: disable it first to change how",
        ));
    }
    let signal = wish.registration.signal;
    let mut handled = HANDLED.lock().unwrap_or_else(PoisonError::into_inner);
    let keeps =
        handled.as_ref().is_some_and(|handled| handled.signal() == signal && handled.in_place());
    match handled.take_if(|_| !keeps) {
        Some(other) if !other.in_place() => other.leave(),
        other => drop(other),
    }
    STYLE.store(wish.style as u32, SeqCst);
    SIGNAL.store(signal, SeqCst);
    COLLAPSE_PAGES.store(wish.collapse_pages, SeqCst);
    BROKEN.store(false, SeqCst);
    PENDING.store(0, SeqCst);
    if signal != 0 && !keeps {
        // The handler must exist before the daemon knows this process: without one, the signal
        // would kill the process.
        *handled = Some(notify::handle(signal, on_signal).map_err(|source| match source.raw_os_error() {
            Some(errno) if errno == Errno::BUSY.raw_os_error() => {
                error(Errno::BUSY, &format!("the program handles signal {signal} itself: choose another with hiroma_hot_options.signal"))
            }
            _ => CapiError::Hot { errno: source.raw_os_error().unwrap_or(0), message: format!("cannot handle signal {signal}: {source}") },
        })?);
    }
    if WAKE.load(SeqCst) == NONE {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake
            .map_err(|errno| error(errno, "no descriptor left to wake the waiting thread with"))?;
        WAKE.store(wake.into_raw_fd(), SeqCst);
    }
    let client = match Client::register(wish.socket.as_deref(), &wish.registration) {
        Ok(client) => client,
        Err(source) => {
            // There is no daemon that could send the signal.
            *handled = None;
            return Err(CapiError::HotClient(source));
        }
    };
    let (socket, event) = client.into_parts();
    EVENT.store(event.map_or(NONE, IntoRawFd::into_raw_fd), SeqCst);
    SOCKET.store(socket.into_raw_fd(), SeqCst);
    drop(handled);
    if wish.style == Style::Thread {
        notify::block(signal);
    }
    drop(hold);
    settle();
    Ok(())
}

/// Ends tracking. Called in a function of the program, it takes effect as soon as that function has
/// returned.
pub fn disable() -> Result<(), CapiError> {
    if OWNER.load(SeqCst) != getpid().as_raw_nonzero().get() || SOCKET.load(SeqCst) == NONE {
        return Err(not_enabled());
    }
    CLOSING.store(true, SeqCst);
    if BUSY.load(SeqCst) == me() {
        return Ok(());
    }
    // The holder closes the registration; so does this hold when it is dropped.
    drop(Hold::get()?);
    Ok(())
}

/// Replaces the program's functions.
pub fn set_functions(functions: ProgramFunctions) -> Result<(), CapiError> {
    if OWNER.load(SeqCst) != getpid().as_raw_nonzero().get() {
        forget_parents();
    }
    let hold = Hold::get()?;
    // SAFETY: this is the only holder.
    unsafe { *FUNCTIONS.0.get() = functions };
    drop(hold);
    settle();
    Ok(())
}

/// Waits for a signal (or the eventfd) and handles the pages that it reports. 0: the timeout
/// expired.
pub fn wait(timeout_ms: i64) -> Result<u64, CapiError> {
    let until = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        enabled()?;
        if STYLE.load(SeqCst) == Style::Handler as u32 {
            return Err(error(
                Errno::INVAL,
                "tracking was enabled with HPS_HANDLER: the handler does everything",
            ));
        }
        match handle_pending() {
            Err(_) => return Err(daemon_gone()),
            Ok(0) => {}
            Ok(pages) => return Ok(pages),
        }
        let left = until.map_or(-1, |until| {
            i64::try_from(until.saturating_duration_since(Instant::now()).as_millis())
                .unwrap_or(i64::MAX)
        });
        // In short intervals, to notice that another thread has disabled tracking.
        let piece = if left < 0 { 1000 } else { left.min(1000) };
        match wait_once(piece)? {
            Woken::Time if left == 0 || until.is_some_and(|until| Instant::now() >= until) => {
                return Ok(0);
            }
            _ => {}
        }
    }
}

fn wait_once(timeout_ms: i64) -> Result<Woken, CapiError> {
    // Duplicates, because a thread that disables tracking may close the descriptors meanwhile.
    let copies = {
        let hold = Hold::get()?;
        let copy = |number| hold.fd(number).map(|fd| fd.try_clone_to_owned()).transpose();
        let copied = (|| Ok::<_, std::io::Error>((copy(&SOCKET)?, copy(&EVENT)?, copy(&WAKE)?)))();
        copied.map_err(|source| CapiError::Hot {
            errno: source.raw_os_error().unwrap_or(0),
            message: format!("cannot wait: {source}"),
        })?
    };
    let (Some(socket), event, Some(wake)) = copies else { return Err(not_enabled()) };
    let mut fds = vec![socket.as_fd(), wake.as_fd()];
    fds.extend(event.as_ref().map(AsFd::as_fd));
    let woken =
        notify::wait(&fds, SIGNAL.load(SeqCst), timeout_ms).map_err(|source| CapiError::Hot {
            errno: source.raw_os_error().unwrap_or(0),
            message: format!("cannot wait: {source}"),
        })?;
    if let Woken::Readable(which) = woken {
        let mut number = [0; 8];
        if which & 1 != 0 {
            BROKEN.store(true, SeqCst);
        }
        let _ = rustix::io::read(&wake, &mut number);
        if which & 4 != 0
            && event.as_ref().is_some_and(|event| rustix::io::read(event, &mut number).is_ok())
        {
            COUNTERS.signals.fetch_add(1, SeqCst);
            PENDING.fetch_add(1, SeqCst);
        }
    }
    Ok(woken)
}

/// The eventfd of [`Style::Event`].
pub fn event_fd() -> Result<RawFd, CapiError> {
    enabled()?;
    match EVENT.load(SeqCst) {
        NONE => Err(error(
            Errno::INVAL,
            "tracking was not enabled with HIROMA_HOT_EVENT: there is no descriptor",
        )),
        number => Ok(number),
    }
}

/// Fetches pages into the program's own buffer. Returns the number of pages, and how many are left.
pub fn fetch(buffer: &mut [Page]) -> Result<Fetched, CapiError> {
    enabled()?;
    let hold = Hold::get()?;
    let Some(socket) = hold.fd(&SOCKET) else { return Err(not_enabled()) };
    let fetched = client::fetch(socket, buffer).map_err(|_| {
        BROKEN.store(true, SeqCst);
        daemon_gone()
    })?;
    COUNTERS.pages.fetch_add(fetched.pages as u64, SeqCst);
    drop(hold);
    settle();
    Ok(fetched)
}

/// Reports what the program did with pages that it fetched itself.
pub fn done(outcome: &HandlingResult) -> Result<(), CapiError> {
    enabled()?;
    let hold = Hold::get()?;
    let Some(socket) = hold.fd(&SOCKET) else { return Err(not_enabled()) };
    COUNTERS.add(outcome);
    client::handled(socket, outcome).map_err(|_| {
        BROKEN.store(true, SeqCst);
        daemon_gone()
    })?;
    drop(hold);
    settle();
    Ok(())
}

/// Lets other threads run between two slices of a function of the program. A waiting thread sleeps
/// for the length of a slice; in a handler the program is stopped anyway.
pub fn rest() {
    if STYLE.load(SeqCst) == Style::Handler as u32 {
        rustix::thread::sched_yield();
    } else {
        thread::sleep(Duration::from_nanos(handling::SLICE_NS));
    }
}
