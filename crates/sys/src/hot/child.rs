//! A child that shares all memory with its parent and does nothing: the state of a program that has
//! forked.
//!
//! Contract: the child makes async-signal-safe calls only (`prctl`, `pause`, `_exit`), as is
//! required after a fork in a program with threads.
#![allow(unsafe_code)]

use std::io;

/// Forks a child that waits for its parent's end. Returns its process id.
pub fn fork_idle() -> io::Result<u32> {
    // SAFETY: the child only makes the calls that the contract names.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => loop {
            // SAFETY: numbers only; neither call touches memory.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::pause();
            }
        },
        pid => Ok(pid as u32),
    }
}

/// Disables transparent huge pages for this process and those that it starts
/// (`PR_SET_THP_DISABLE`).
pub fn disable_huge_pages() -> io::Result<()> {
    // SAFETY: numbers only.
    match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
