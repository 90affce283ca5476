//! `wait` and its variants: what a process had is gone when its parent learns of its end.
//!
//! A pager shares the memory of its process, and ends a moment after it, or after that has executed
//! another program. Until then the program's file cannot be overwritten (`ETXTBSY`), its file system not be
//! unmounted, and its memory is in use, which natively is over when a parent's `wait` returns, and when
//! the next program begins. So these wait for the pager, whose number is the target of a link in the run's
//! directory.
//!
//! Contract: C's, cancellation points included. A handler of `SIGCHLD` may call these: a link is read and
//! looked at by system calls that need no descriptor, no lock and no memory but the stack.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use hiroma_far::control::PAGER_EXTENSION;
use hiroma_far::elsewhere;
use libc::{id_t, idtype_t, pid_t, rusage, siginfo_t};

use crate::sys::Errno;
use crate::{scope, sys};

/// How often a thread looks whether a pager has ended, 50 us apart at least.
const LOOKS_MAX: u32 = 10_000;
/// Room for a path. A `sockaddr_un` has less.
const PATH_BYTES: usize = 256;

/// The run's directory.
static DIR: OnceLock<Vec<u8>> = OnceLock::new();
/// A pager did not end in time; where nobody waits for orphans, none seems to.
static IS_IN_VAIN: AtomicBool = AtomicBool::new(false);

struct Next(&'static CStr, AtomicPtr<c_void>);

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next(name, AtomicPtr::new(ptr::null_mut()))
    }

    fn look_up(&self) {
        // SAFETY: a NUL-terminated string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.0.as_ptr()) };
        self.1.store(found, Ordering::Relaxed);
    }

    /// Where the library is not settled, the program has none of the C library's threads either.
    fn get(&self) -> *mut c_void {
        if self.1.load(Ordering::Relaxed).is_null() {
            self.look_up();
        }
        self.1.load(Ordering::Relaxed)
    }
}

static WAIT: Next = Next::new(c"wait");
static WAITPID: Next = Next::new(c"waitpid");
static WAIT3: Next = Next::new(c"wait3");
static WAIT4: Next = Next::new(c"wait4");
static WAITID: Next = Next::new(c"waitid");

/// Looks the C library's functions up.
pub fn settle() {
    [&WAIT, &WAITPID, &WAIT3, &WAIT4, &WAITID].into_iter().for_each(Next::look_up);
}

/// The run has this directory. If this process has executed its program, returns when the pager of the
/// program before has ended.
pub fn start(dir: Option<&Path>) {
    let Some(dir) = dir else { return };
    let _ = DIR.set(dir.as_os_str().as_bytes().to_vec());
    elsewhere::note(Some(dir));
    // As `/proc` numbers processes, and the run's directory.
    let Some(own) = number_of(c"/proc/self".as_ptr().cast()) else { return };
    if let Some((link, pager)) = pager_of(own as u32) {
        wake(own as u32);
        await_pager(&link, pager);
    }
}

/// A path in the run's directory; `None`: it is too long.
pub fn path_of(process: u32, extension: &str) -> Option<[u8; PATH_BYTES]> {
    let mut path = [0; PATH_BYTES];
    let mut rest = &mut path[..PATH_BYTES - 1];
    rest.write_all(DIR.get()?).ok()?;
    write!(rest, "/{}.{extension}", elsewhere::in_run(process)).ok()?;
    Some(path)
}

/// The link that names the pager of a process, and that pager.
fn pager_of(process: u32) -> Option<([u8; PATH_BYTES], i32)> {
    if IS_IN_VAIN.load(Ordering::Relaxed) {
        return None;
    }
    let path = path_of(process, PAGER_EXTENSION)?;
    number_of(path.as_ptr()).map(|pager| (path, pager))
}

/// The number that a link leads to.
fn number_of(path: *const u8) -> Option<i32> {
    let mut text = [0_u8; 16];
    let number = target_of(path, &mut text)?.parse().ok()?;
    (number > 0).then_some(number)
}

/// What a link leads to.
pub fn target_of(path: *const u8, text: &mut [u8]) -> Option<&str> {
    let here = libc::AT_FDCWD as usize;
    let arguments = [here, path as usize, text.as_mut_ptr() as usize, text.len(), 0, 0];
    // SAFETY: reads a string that ends with a zero, and writes to our buffer.
    let len = unsafe { sys::call(libc::SYS_readlinkat, arguments) }.ok()?;
    std::str::from_utf8(text.get(..len)?).ok()
}

/// Makes a link, or replaces it as a whole; both strings end with a zero.
pub fn replace_link(path: &[u8; PATH_BYTES], draft: &[u8; PATH_BYTES], target: &[u8]) {
    let here = libc::AT_FDCWD as usize;
    let [path, draft, target] =
        [path.as_ptr(), draft.as_ptr(), target.as_ptr()].map(|at| at as usize);
    // SAFETY: the calls read strings that end with a zero.
    unsafe {
        let _ = sys::call(libc::SYS_unlinkat, [here, draft, 0, 0, 0, 0]);
        if sys::call(libc::SYS_symlinkat, [target, here, draft, 0, 0, 0]).is_ok() {
            let _ = sys::call(libc::SYS_renameat2, [here, draft, here, path, 0, 0]);
        }
    }
}

fn await_pager(link: &[u8; PATH_BYTES], pager: i32) {
    for look in 0.. {
        if is_gone(pager) {
            break;
        }
        if look == LOOKS_MAX {
            IS_IN_VAIN.store(true, Ordering::Relaxed);
            return;
        }
        sys::nap();
    }
    let here = libc::AT_FDCWD as usize;
    // SAFETY: removes a link of ours.
    let _ = unsafe { sys::call(libc::SYS_unlinkat, [here, link.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Whether a process has no memory any more. Nobody may have waited for it yet; then it has one thread,
/// which has given up its directory: that comes after its memory.
fn is_gone(process: i32) -> bool {
    const LINKS_OF_ONE_THREAD: libc::nlink_t = 3;
    let here = libc::AT_FDCWD as usize;
    let name = |of: &str| {
        let mut path = [0_u8; 32];
        let _ = write!(&mut path[..31], "/proc/{process}/{of}");
        path
    };
    // SAFETY: a structure without invalid values, which the kernel fills, and strings that end with a
    // zero.
    unsafe {
        if sys::call(libc::SYS_kill, [process as usize, 0, 0, 0, 0, 0]).is_err() {
            return true;
        }
        let mut threads: libc::stat = mem::zeroed();
        let (path, to) = (name("task"), &raw mut threads as usize);
        let got = sys::call(libc::SYS_newfstatat, [here, path.as_ptr() as usize, to, 0, 0, 0]);
        if got.is_ok() && threads.st_nlink != LINKS_OF_ONE_THREAD {
            return false;
        }
        let (path, mut text) = (name("cwd"), [0_u8; 8]);
        let (path, to) = (path.as_ptr() as usize, text.as_mut_ptr() as usize);
        sys::call(libc::SYS_readlinkat, [here, path, to, text.len(), 0, 0])
            == Err(Errno(libc::ENOENT))
    }
}

/// Wakes the pager of the program that this process executed before, which looks from time to time only
/// whether that is over: it is asked for a descriptor, without the secret that belongs to it.
fn wake(own: u32) {
    let Some(path) = path_of(own, "socket") else { return };
    // SAFETY: a structure without invalid values.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let fits = address.sun_path.len() - 1;
    for (to, &from) in address.sun_path[..fits].iter_mut().zip(&path) {
        *to = from as c_char;
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the descriptor is ours; no thread of the program exists yet.
    unsafe {
        let socket = [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0];
        if let Ok(fd) = sys::call(libc::SYS_socket, socket) {
            let (at, len) = (&raw const address as usize, size_of::<libc::sockaddr_un>());
            let _ = sys::call(libc::SYS_connect, [fd, at, len, 0, 0, 0]);
            let _ = sys::call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        }
    }
}

/// A process of this number has ended: returns when its pager has, too.
fn has_ended(process: pid_t) {
    if scope::is_internal() || DIR.get().is_none() {
        return;
    }
    let errno = sys::errno();
    if let Some((link, pager)) = u32::try_from(process).ok().and_then(pager_of) {
        await_pager(&link, pager);
    }
    sys::set_errno(errno);
}

/// Calls the C library's function with a status of our own, if the program wants none.
///
/// # Safety
/// `status` must be null or writable.
unsafe fn with_status(status: *mut c_int, wait: impl FnOnce(*mut c_int) -> pid_t) -> pid_t {
    let mut own = 0;
    let status = if status.is_null() { &raw mut own } else { status };
    let process = wait(status);
    if process > 0 {
        // SAFETY: guaranteed by the caller; the kernel has just written it.
        let status = unsafe { *status };
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            has_ended(process);
        }
    }
    process
}

macro_rules! export {
    ($($name:ident by $next:ident ($($arg:ident: $type:ty),*) for $status:ident;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> pid_t {
            // SAFETY: the C library's function of this name has this type; the arguments are the
            // program's.
            unsafe {
                let real = mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> pid_t>($next.get());
                with_status($status, |$status| real($($arg),*))
            }
        }
    )*};
}

export! {
    wait by WAIT (status: *mut c_int) for status;
    waitpid by WAITPID (process: pid_t, status: *mut c_int, options: c_int) for status;
    wait3 by WAIT3 (status: *mut c_int, options: c_int, usage: *mut rusage) for status;
    wait4 by WAIT4 (process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) for status;
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn waitid(
    kind: idtype_t,
    id: id_t,
    info: *mut siginfo_t,
    options: c_int,
) -> c_int {
    type Wait = unsafe extern "C" fn(idtype_t, id_t, *mut siginfo_t, c_int) -> c_int;
    // SAFETY: a structure without invalid values; the rest as above.
    unsafe {
        let mut own: siginfo_t = mem::zeroed();
        let info = if info.is_null() { &raw mut own } else { info };
        let result = mem::transmute::<*mut c_void, Wait>(WAITID.get())(kind, id, info, options);
        let is_end = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
        if result == 0 && options & libc::WNOWAIT == 0 && is_end.contains(&(*info).si_code) {
            has_ended((*info).si_pid());
        }
        result
    }
}
