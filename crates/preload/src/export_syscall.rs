//! `syscall`: programs that pass by the functions of the C library, but not by the C library.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

use crate::classify::RemapCall;
use crate::export_lock::{do_mlock, do_mlockall, do_munlockall};
use crate::export_mmap::{
    Outcome, answer, do_look, do_madvise, do_mmap, do_mprotect, do_mremap, do_munmap,
    do_pkey_mprotect, managed,
};
use crate::sys::{self, Errno};
use crate::{export_exec, export_limits, runtime};

/// `mseal` (Linux 6.10).
const SYS_MSEAL: c_long = 462;

/// Whether a `clone` makes a process with memory of its own on the caller's stack, that is, forks.
fn is_fork(flags: usize, stack: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0 && stack == 0
}

/// The same for `clone3`, whose structure begins with the flags and has the stack in its sixth
/// word.
///
/// # Safety
/// `args` must be readable for `len` bytes.
unsafe fn clone3_is_fork(args: usize, len: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    let word = |at: usize| unsafe { *(args as *const u64).add(at) };
    len >= 64 && word(0) & libc::CLONE_VM as u64 == 0 && word(5) == 0
}

/// C's arguments are variable. Registers and stack slots that were not passed have arbitrary
/// values, and the kernel does not read them.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program requested this call.
    let kernel = || unsafe { sys::call(number, [a, b, c, d, e, f]) };
    let done = |outcome: Outcome<()>| outcome.map(|()| 0);
    let outcome = match number {
        libc::SYS_mmap => do_mmap(a, b, c as c_int, d as c_int, e as c_int, f as i64),
        libc::SYS_munmap => done(do_munmap(a, b)),
        libc::SYS_mprotect => done(do_mprotect(a, b, c as c_int)),
        libc::SYS_pkey_mprotect => done(do_pkey_mprotect(a, b, c as c_int, d as c_int)),
        libc::SYS_madvise => done(do_madvise(a, b, c as c_int)),
        libc::SYS_mremap => {
            do_mremap(RemapCall { old: a, old_len: b, new_len: c, flags: d as c_int, new: e })
        }
        libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => done(do_mlock(number, a, b, c)),
        // Sealed memory could not be moved; kernels before 6.10 have no seals either.
        SYS_MSEAL if managed(a, b).is_some() => Err(Errno(libc::ENOSYS)),
        libc::SYS_mlockall => done(do_mlockall(a)),
        libc::SYS_munlockall => done(do_munlockall()),
        libc::SYS_mincore | libc::SYS_msync => done(do_look(number, a, b, c)),
        libc::SYS_ioctl => {
            // SAFETY: the argument is the program's.
            unsafe { crate::export_uffd::before_ioctl(b, c) };
            kernel()
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_setrlimit | libc::SYS_getrlimit => {
            let (new, old) = if number == libc::SYS_setrlimit { (b, 0) } else { (0, b) };
            // SAFETY: the arguments are the program's.
            unsafe { export_limits::limit(0, a, new, old) }.map(|()| 0)
        }
        // SAFETY: the arguments are the program's.
        libc::SYS_prlimit64 => unsafe { export_limits::limit(a as i32, b, c, d) }.map(|()| 0),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => runtime::around_fork(kernel),
        libc::SYS_clone if is_fork(a, b) => runtime::around_fork(kernel),
        // SAFETY: the program's structure, which has the given length.
        libc::SYS_clone3 if unsafe { clone3_is_fork(a, b) } => runtime::around_fork(kernel),
        libc::SYS_vmsplice => {
            crate::export_lend::lends_pages();
            kernel()
        }
        libc::SYS_setsockopt
            if b == libc::SOL_SOCKET as usize && c == libc::SO_ZEROCOPY as usize =>
        {
            crate::export_lend::lends_pages();
            kernel()
        }
        libc::SYS_seccomp => {
            export_exec::stop();
            kernel()
        }
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => {
            export_exec::stop();
            kernel()
        }
        libc::SYS_execve | libc::SYS_execveat => {
            // SAFETY: the arguments are the program's, and the kernel checks them as well.
            unsafe { export_exec::note_call(number, [a, b, c, d]) };
            export_exec::begin();
            kernel().inspect_err(|_| export_exec::failed())
        }
        _ => kernel(),
    };
    answer(outcome) as c_long
}
