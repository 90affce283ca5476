//! `kill` of all processes at once: the caller's pager stays, as the caller does.
//!
//! What starts or ends a container, or tests, sends SIGKILL to all that there are, and goes on. The pager is
//! a process too, and without it the program's far memory is lost. So the processes are looked for in `/proc`,
//! and get the signal one by one. The pager blocks all other signals.
//!
//! Contract: C's. A handler of a signal may call it: no lock, and no memory but the stack.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::mem::offset_of;

use libc::{dirent64, pid_t};

use crate::export_mmap::{CallResult, status};
use crate::export_wait;
use crate::sys::{self, Errno};

/// Processes that are started meanwhile get the signal too.
const ROUNDS: usize = 3;
const WORDS: usize = 256;

pub fn do_kill(process: pid_t, signal: c_int) -> CallResult<()> {
    let is_for_all = process == -1 && matches!(signal, libc::SIGKILL | libc::SIGSTOP);
    let pager = if is_for_all { hiroma_far::hooks::pager_process() } else { None };
    match pager {
        Some(pager) if numbers_are_ours() => kill_all_but(pager, signal),
        _ => kill_one(process, signal),
    }
}

fn kill_one(process: pid_t, signal: c_int) -> CallResult<()> {
    // SAFETY: the program requested this call.
    unsafe { sys::call(libc::SYS_kill, [process as usize, signal as usize, 0, 0, 0, 0]).map(drop) }
}

/// Whether `/proc` has the numbers of this process's namespace.
fn numbers_are_ours() -> bool {
    let mut text = [0; 16];
    let own = export_wait::target_of(c"/proc/self".as_ptr().cast(), &mut text);
    own.and_then(|own| own.parse().ok()) == Some(std::process::id())
}

fn kill_all_but(pager: u32, signal: c_int) -> CallResult<()> {
    let mut outcome = Err(Errno(libc::ESRCH));
    for _ in 0..ROUNDS {
        let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
        let here = libc::AT_FDCWD as usize;
        // SAFETY: a string that ends with a zero.
        let fd = unsafe {
            sys::call(libc::SYS_openat, [here, c"/proc".as_ptr() as usize, flags, 0, 0, 0])
        }?;
        for_each_process(fd, |process| {
            // As the kernel: not the first process, nor the caller.
            if process > 1 && process != std::process::id() && process != pager {
                let killed = kill_one(process as pid_t, signal);
                if outcome.is_err() && killed != Err(Errno(libc::ESRCH)) {
                    outcome = killed;
                }
            }
        });
        // SAFETY: this function's own descriptor.
        let _ = unsafe { sys::call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    }
    outcome
}

/// Calls `act` with each number in the directory.
fn for_each_process(fd: usize, mut act: impl FnMut(u32)) {
    let mut buffer = [0_u64; WORDS];
    let start = buffer.as_mut_ptr();
    loop {
        // SAFETY: the kernel writes whole entries to our buffer.
        let got =
            unsafe { sys::call(libc::SYS_getdents64, [fd, start as usize, WORDS * 8, 0, 0, 0]) };
        let Ok(len @ 1..) = got else { return };
        let mut at = 0;
        while at < len {
            // SAFETY: an entry, which begins at a multiple of eight and ends with a zero.
            let (name, entry_len) = unsafe {
                let entry = start.cast::<u8>().add(at);
                let name = CStr::from_ptr(entry.add(offset_of!(dirent64, d_name)).cast());
                (name, entry.add(offset_of!(dirent64, d_reclen)).cast::<u16>().read())
            };
            name.to_str().ok().and_then(|name| name.parse().ok()).map(&mut act);
            at += usize::from(entry_len);
        }
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kill(process: pid_t, signal: c_int) -> c_int {
    status(do_kill(process, signal))
}
