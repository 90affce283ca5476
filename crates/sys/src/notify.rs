//! Queued real-time signals that carry a number: sending them to another process, and receiving
//! them in this one.
//!
//! Contract: a function passed to [`handle`] runs inside a signal handler, so it may only do what
//! signal-safety(7) allows: no allocation, no lock that the interrupted thread may hold. The
//! handler here restores errno.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The real-time signals that programs may use: first and last.
pub fn realtime_signals() -> (i32, i32) {
    (libc::SIGRTMIN(), libc::SIGRTMAX())
}

/// `siginfo_t`, as far as a queued signal fills it (Linux, 64 bit).
#[repr(C)]
struct QueuedInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<QueuedInfo>() == size_of::<libc::siginfo_t>());

/// Queues `signal` with `value` for the process of `pidfd` (Linux 5.1), as sigqueue(3) does by
/// process id. EAGAIN: its queue is full. EPERM: it belongs to another user. ESRCH: it has ended.
pub fn queue(pidfd: BorrowedFd<'_>, signal: i32, value: u64) -> io::Result<()> {
    let info = QueuedInfo {
        signal,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        pid: rustix::process::getpid().as_raw_pid(),
        uid: rustix::process::getuid().as_raw(),
        value,
        rest: [0; 12],
    };
    // SAFETY: the descriptor is open, and `info` is a whole siginfo_t that the kernel only reads.
    let sent = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, &raw const info, 0)
    };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The function that the handler calls; 0: none.
static ACTION: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: errno is a variable of this thread and lives as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let action = ACTION.load(Ordering::Acquire);
    if action != 0 {
        // SAFETY: only `handle` writes a value other than 0, and that is a function of this type.
        let action = unsafe { mem::transmute::<usize, fn(u64)>(action) };
        // SAFETY: the kernel passes the handler a siginfo_t of its own.
        action(unsafe { (*info.cast::<QueuedInfo>()).value });
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// The disposition of a signal before [`handle`]; restored on drop.
pub struct Handled {
    signal: i32,
    before: libc::sigaction,
}

/// Installs a handler that calls `action` with the value of each `signal` that arrives, in
/// whichever thread it arrives. Only one signal can be handled in a process. A signal that already
/// has a handler is refused with EBUSY.
pub fn handle(signal: i32, action: fn(u64)) -> io::Result<Handled> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the current disposition of the signal.
    if unsafe { libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled by the call above.
    let before = unsafe { before.assume_init() };
    if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    if ACTION.compare_exchange(0, action as usize, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: an all-zero sigaction is a valid one.
    let mut new: libc::sigaction = unsafe { mem::zeroed() };
    new.sa_sigaction = on_signal as *const () as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `new` is initialized, and its handler is async-signal-safe.
    if unsafe { libc::sigaction(signal, &new, ptr::null_mut()) } != 0 {
        ACTION.store(0, Ordering::Release);
        return Err(io::Error::last_os_error());
    }
    Ok(Handled { signal, before })
}

impl Handled {
    /// The signal.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// Whether the handler is still the installed one: the program may have set its own since.
    pub fn in_place(&self) -> bool {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only reads the current disposition; the result is used only on success.
        unsafe {
            libc::sigaction(self.signal, ptr::null(), now.as_mut_ptr()) == 0
                && now.assume_init().sa_sigaction == on_signal as *const () as usize
        }
    }

    /// Leaves the signal as it is, because the program handles it now.
    pub fn leave(self) {
        ACTION.store(0, Ordering::Release);
        mem::forget(self);
    }
}

impl Drop for Handled {
    fn drop(&mut self) {
        // A pending signal would end the process once the default is restored: the signal is
        // ignored first, which discards what is pending. SAFETY: an all-zero sigaction is a valid
        // one.
        let mut ignore: libc::sigaction = unsafe { mem::zeroed() };
        ignore.sa_sigaction = libc::SIG_IGN;
        // SAFETY: both are initialized, and set the disposition of a signal that was ours.
        unsafe {
            libc::sigaction(self.signal, &ignore, ptr::null_mut());
            libc::sigaction(self.signal, &self.before, ptr::null_mut());
        }
        ACTION.store(0, Ordering::Release);
    }
}

fn set_of(signal: i32) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initializes `set` before a signal is added.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Blocks `signal` in the calling thread and those that it starts: it stays pending until [`wait`]
/// unblocks it. Returns whether it was blocked before.
pub fn block(signal: i32) -> bool {
    change(libc::SIG_BLOCK, signal)
}

/// Undoes [`block`] in the calling thread.
pub fn unblock(signal: i32) {
    change(libc::SIG_UNBLOCK, signal);
}

fn change(how: i32, signal: i32) -> bool {
    let set = set_of(signal);
    let mut before = set_of(signal);
    // SAFETY: both sets are initialized.
    unsafe {
        libc::pthread_sigmask(how, &set, &mut before);
        libc::sigismember(&before, signal) == 1
    }
}

/// The reason why a [`wait`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The timeout has expired.
    Time,
    /// A signal was handled in this thread.
    Signal,
    /// These descriptors are readable, or their other ends are closed: one bit for each.
    Readable(u32),
}

/// Maximum number of descriptors of one call.
const FDS_MAX: usize = 4;

/// Sleeps until one of `fds` (at most 4) is readable or `signal` was handled here; `signal` is
/// unblocked in this thread only during the call. `signal` 0: none. With `timeout_ms` below 0 there
/// is no timeout.
pub fn wait(fds: &[BorrowedFd<'_>], signal: i32, timeout_ms: i64) -> io::Result<Woken> {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: reads the mask of this thread and removes one signal from the copy.
    let mask = unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), mask.as_mut_ptr());
        // Fails for 0, and leaves the set as it is.
        libc::sigdelset(mask.as_mut_ptr(), signal);
        mask.assume_init()
    };
    let nothing = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut polled = [nothing; FDS_MAX];
    for (polled, fd) in polled.iter_mut().zip(fds) {
        *polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    }
    let time = libc::timespec {
        tv_sec: timeout_ms.max(0) / 1000,
        tv_nsec: timeout_ms.max(0) % 1000 * 1_000_000,
    };
    let time = if timeout_ms < 0 { ptr::null() } else { &raw const time };
    // SAFETY: descriptors that are open during the call or -1, a time or null, and an initialized
    // set.
    match unsafe { libc::ppoll(polled.as_mut_ptr(), FDS_MAX as libc::nfds_t, time, &mask) } {
        0 => Ok(Woken::Time),
        1.. => Ok(Woken::Readable(
            polled.iter().enumerate().map(|(at, fd)| u32::from(fd.revents != 0) << at).sum(),
        )),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(Woken::Signal),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicU64;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    static SUM: AtomicU64 = AtomicU64::new(0);

    // One test: the disposition of a signal belongs to the whole process.
    #[test]
    fn values_sent_while_signal_blocked_are_delivered() {
        let signal = realtime_signals().0 + 9;
        let us = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let nothing = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(!block(signal));
        let handled = handle(signal, |value| {
            SUM.fetch_add(value, Ordering::SeqCst);
        })
        .unwrap();
        assert_eq!(handle(signal, |_| ()).err().unwrap().raw_os_error(), Some(libc::EBUSY));
        for value in [1, 1 << 40, 5] {
            queue(us.as_fd(), signal, value).unwrap();
        }
        // A signal for the process is delivered to any thread that does not block it, and this
        // test's harness has others.
        let start = std::time::Instant::now();
        while SUM.load(Ordering::SeqCst) != 6 + (1 << 40) {
            wait(&[nothing.as_fd()], signal, 10).unwrap();
            assert!(start.elapsed().as_secs() < 60, "{}", SUM.load(Ordering::SeqCst));
        }
        assert_eq!(wait(&[nothing.as_fd()], signal, 0).unwrap(), Woken::Time);
        rustix::io::write(&nothing, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&[us.as_fd(), nothing.as_fd()], signal, 0).unwrap(), Woken::Readable(2));
        assert!(handled.in_place() && handled.signal() == signal);
        drop(handled);
        assert!(block(signal));
        unblock(signal);
        drop(handle(signal, |_| ()).unwrap());
        assert!(queue(us.as_fd(), -1, 0).is_err());
    }
}
