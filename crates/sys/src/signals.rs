//! Signals of the program must not be handled on our threads: a handler may touch managed memory,
//! and wait for the very thread it runs on.
//!
//! Contract: only the calling thread's signal mask is changed, and it is restored.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `work` with all signals blocked. A thread that is started meanwhile inherits that mask and
/// keeps it.
pub fn blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both are valid for writing a set, and `all` is initialized before it is used.
    let changed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = work();
    if changed {
        // SAFETY: `before` was filled by the call above, which succeeded.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's mask of the calling thread.
    fn mask() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn spawned_thread_blocks_signals_but_parent_does_not() {
        let before = mask();
        let child = blocked(|| std::thread::spawn(mask)).join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1, libc::SIGPROF] {
            assert_eq!((child >> (signal - 1)) & 1, 1, "signal {signal}");
        }
        assert_eq!(mask(), before);
    }
}
