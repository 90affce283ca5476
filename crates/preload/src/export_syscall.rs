//! `syscall`: programs that pass by the functions of the C library, but not by the C library.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::ops::Range;

use hiroma_units::PAGE;

use crate::classify::RemapCall;
use crate::export_fork::{await_vfork, for_kernel, passed_to_clone};
use crate::export_lock::{do_mlock, do_mlockall, do_munlockall};
use crate::export_mmap::{
    CallResult, answer, do_look, do_madvise, do_mmap, do_mprotect, do_munmap, do_pkey_mprotect,
    do_prctl, managed,
};
use crate::export_shm::{do_shmat, do_shmdt};
use crate::sys::{self, Errno};
use crate::{export_exec, export_limits, nursery, runtime};

/// `mseal` (Linux 6.10).
const SYS_MSEAL: c_long = 462;

/// Whether a `clone` makes a process with memory of its own on the caller's stack, that is, forks.
fn is_fork(flags: usize, stack: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0 && stack == 0
}

/// The arguments of a `clone3` that forks, and everything that it touches.
///
/// # Safety
/// `args` must be readable for `len` bytes.
unsafe fn clone3_fork(args: usize, len: usize) -> Option<[Range<usize>; 6]> {
    if len < 64 {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    let word = |at: usize| unsafe { (args as *const u64).add(at).read_unaligned() as usize };
    let [flags, pidfd, child_tid, parent_tid] = [0, 1, 2, 3].map(word);
    if flags & libc::CLONE_VM as usize != 0 || word(5) != 0 {
        return None;
    }
    let part = |start: usize, len: usize| start..start.saturating_add(len);
    let has_pidfd = flags & libc::CLONE_PIDFD as usize != 0;
    let pidfd = part(pidfd, if has_pidfd { size_of::<c_int>() } else { 0 });
    let set_tid = if len < 80 { 0..0 } else { part(word(8), word(9).min(32) * size_of::<c_int>()) };
    // Here the descriptor has an argument of its own.
    let flags = flags as u64 & !(libc::CLONE_PIDFD as u64);
    let [a, b, c] = passed_to_clone(flags, parent_tid, child_tid, word(7));
    Some([a, b, c, set_tid, pidfd, part(args, len)])
}

/// Forks by `clone3`, with everything that it touches.
///
/// # Safety
/// As for [`clone3_fork`].
unsafe fn fork_by_clone3(
    args: usize,
    len: usize,
    mut touched: [Range<usize>; 6],
) -> CallResult<usize> {
    // The kernel takes what is longer only if all of that is zero.
    let mut copy = [0_u8; 256];
    // SAFETY: guaranteed by the caller; the flags come first.
    let flags = unsafe { (args as *const u64).read_unaligned() as usize };
    let (mut args, mut len) = (args, len);
    if flags & libc::CLONE_VFORK as usize != 0 {
        len = len.min(copy.len());
        // SAFETY: guaranteed by the caller.
        unsafe { std::ptr::copy_nonoverlapping(args as *const u8, copy.as_mut_ptr(), len) };
        copy[..8].copy_from_slice(&for_kernel(flags).to_ne_bytes());
        args = copy.as_ptr() as usize;
        touched[5] = args..args + len;
    }
    let outcome = runtime::around_fork(&touched, || {
        // SAFETY: the program requested this call.
        unsafe { sys::call(libc::SYS_clone3, [args, len, 0, 0, 0, 0]) }
    });
    await_vfork(flags, outcome.unwrap_or(0));
    outcome
}

/// Forks by `clone` on the caller's stack.
fn fork_by_clone([flags, stack, parent_tid, child_tid, tls]: [usize; 5]) -> CallResult<usize> {
    let in_kernel = for_kernel(flags);
    let touched = passed_to_clone(flags as u64, parent_tid, child_tid, tls);
    let outcome = runtime::around_fork(&touched, || {
        // SAFETY: the program requested this call.
        unsafe { sys::call(libc::SYS_clone, [in_kernel, stack, parent_tid, child_tid, tls, 0]) }
    });
    await_vfork(flags, outcome.unwrap_or(0));
    outcome
}

/// A futex operation of the program. Those that write to a word fail with `EFAULT` where it is far:
/// the kernel cannot wait there (`fault_in_user_writeable`). So it is fetched, and they are repeated.
fn futex(
    words: [usize; 2],
    operation: c_int,
    kernel: impl Fn() -> CallResult<usize>,
) -> CallResult<usize> {
    const TRIES: usize = 1000;
    let has_second = matches!(
        operation & libc::FUTEX_CMD_MASK,
        libc::FUTEX_REQUEUE
            | libc::FUTEX_CMP_REQUEUE
            | libc::FUTEX_WAKE_OP
            | libc::FUTEX_WAIT_REQUEUE_PI
            | libc::FUTEX_CMP_REQUEUE_PI
    );
    let words = &words[..1 + usize::from(has_second)];
    let mut outcome = kernel();
    for _ in 0..TRIES {
        let is_far = outcome == Err(Errno(libc::EFAULT));
        if !is_far || !words.iter().any(|&word| managed(word & !(PAGE - 1), PAGE).is_some()) {
            break;
        }
        for &word in words {
            let page = word & !(PAGE - 1);
            // SAFETY: populating changes no content.
            let populated = unsafe {
                let advice = libc::MADV_POPULATE_WRITE as usize;
                sys::call(libc::SYS_madvise, [page, PAGE, advice, 0, 0, 0])
            };
            if populated.is_err() {
                return outcome;
            }
        }
        outcome = kernel();
    }
    outcome
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
    let done = |outcome: CallResult<()>| outcome.map(|()| 0);
    let outcome = match number {
        libc::SYS_mmap => do_mmap(a, b, c as c_int, d as c_int, e as c_int, f as i64),
        libc::SYS_munmap => done(do_munmap(a, b)),
        libc::SYS_mprotect => done(do_mprotect(a, b, c as c_int)),
        libc::SYS_pkey_mprotect => done(do_pkey_mprotect(a, b, c as c_int, d as c_int)),
        libc::SYS_madvise => done(do_madvise(a, b, c as c_int)),
        libc::SYS_mremap => crate::remap::do_mremap(RemapCall {
            old: a,
            old_len: b,
            new_len: c,
            flags: d as c_int,
            new: e,
        }),
        libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => done(do_mlock(number, a, b, c)),
        // Sealed memory could not be moved; kernels before 6.10 have no seals either.
        SYS_MSEAL if managed(a, b).is_some() => Err(Errno(libc::ENOSYS)),
        libc::SYS_shmat => do_shmat(a as c_int, b, c as c_int),
        libc::SYS_shmdt => done(do_shmdt(a)),
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
        libc::SYS_fork => runtime::around_fork(&[], kernel),
        // A child that returns from here would leave its caller no stack to return to.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork if runtime::is_followed() => {
            fork_by_clone([(libc::CLONE_VFORK | libc::SIGCHLD) as usize, 0, 0, 0, 0])
        }
        libc::SYS_clone if runtime::is_followed() && is_fork(a, b) => {
            fork_by_clone([a, b, c, d, e])
        }
        // The kernel takes no more than a page.
        libc::SYS_clone3 if runtime::is_followed() && b <= PAGE && sys::is_readable(a, b) => {
            // SAFETY: the program's structure, which has the given length and can be read.
            match unsafe { clone3_fork(a, b) } {
                // SAFETY: as above.
                Some(touched) => unsafe { fork_by_clone3(a, b, touched) },
                None => kernel(),
            }
        }
        libc::SYS_futex => futex([a, e], b as c_int, kernel),
        libc::SYS_seccomp => {
            nursery::start_now();
            export_exec::stop();
            kernel()
        }
        libc::SYS_kill => done(crate::export_kill::do_kill(a as i32, b as c_int)),
        libc::SYS_prctl => do_prctl(a as c_int, [b, c, d, e]),
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_capset
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_unshare
        | libc::SYS_setns
        | libc::SYS_landlock_restrict_self => {
            nursery::start_now();
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
