//! The `exec` family: records which programs are started, and whether they keep the environment
//! that loads this library.
//!
//! At the end, `hiroma run` reports which of them ran without far memory. Each note is one record
//! in a file in the run's directory: `+` (the environment is kept) or `-`, the path, a zero byte. A
//! name without a slash stands for a search in `PATH`.
//!
//! Contract: C's. A child of `vfork` runs this code on its parent's memory, and a child of `fork`
//! may find any lock held: writing a note takes only system calls and a buffer on the stack, and
//! the C library's functions are resolved when the program starts. A note that cannot be written is
//! omitted. `execl` and its variants have arguments that only C can count, so they are entered by a
//! jump that leaves the arguments in place.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io::Write;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use hiroma_far::config::{CONFIG_ENV, EXECUTED_FILE};

use crate::sys::Errno;
use crate::{export_limits, runtime, sys};

type Strings = *const *const c_char;

/// The file for notes, and the library that `LD_PRELOAD` must contain.
struct Notes {
    file: CString,
    library: CString,
    /// Where that is.
    path: CString,
}

static NOTES: OnceLock<Notes> = OnceLock::new();
static STOPPED: AtomicBool = AtomicBool::new(false);

/// A function of the C library.
struct Next(&'static CStr, AtomicPtr<c_void>);

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next(name, AtomicPtr::new(ptr::null_mut()))
    }

    fn get(&self) -> *mut c_void {
        let known = self.1.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a NUL-terminated string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.0.as_ptr()) };
        if found.is_null() {
            // The program called this function, so the C library that it is linked with has it.
            std::process::abort();
        }
        self.1.store(found, Ordering::Relaxed);
        found
    }
}

macro_rules! nexts {
    ($($name:ident = $symbol:literal),* $(,)?) => {
        $(static $name: Next = Next::new($symbol);)*
        static ALL: &[&Next] = &[$(&$name),*];
    };
}

nexts!(
    EXECVE = c"execve",
    EXECV = c"execv",
    EXECVP = c"execvp",
    EXECVPE = c"execvpe",
    EXECVEAT = c"execveat",
    FEXECVE = c"fexecve",
    EXECL = c"execl",
    EXECLP = c"execlp",
    EXECLE = c"execle",
    POSIX_SPAWN = c"posix_spawn",
    POSIX_SPAWNP = c"posix_spawnp",
);

/// Starts recording, if there is a directory for the notes.
pub fn start(dir: Option<&Path>, preloaded: Option<&CStr>) {
    let (Some(dir), Some(preloaded)) = (dir, preloaded) else { return };
    let Ok(file) = CString::new(dir.join(EXECUTED_FILE).as_os_str().as_bytes()) else { return };
    // Others may stand before it: fakeroot and the like.
    let mut listed = preloaded.to_bytes().split(splits);
    let is_ours = |item: &&[u8]| item.windows(OWN_NAME.len()).any(|part| part == OWN_NAME);
    let library = listed.clone().find(is_ours).or_else(|| listed.next()).unwrap_or_default();
    let Ok(library) = CString::new(library) else { return };
    let Ok(path) = CString::new(path_in(library.to_bytes())) else { return };
    for next in ALL {
        next.get();
    }
    let _ = NOTES.set(Notes { file, library, path });
}

/// Stops recording: a seccomp filter is about to be installed, which could kill the program for our
/// system calls.
pub fn stop() {
    STOPPED.store(true, Ordering::Relaxed);
}

/// The path in an item of `LD_PRELOAD` that leads to the root from wherever a program is.
fn path_in(item: &[u8]) -> &[u8] {
    let mut path = item.strip_prefix(b"$ORIGIN").unwrap_or(item);
    while let Some(rest) = path.strip_prefix(b"/..") {
        path = rest;
    }
    path
}

/// A part of this library's file name.
const OWN_NAME: &[u8] = b"libhiroma_preload";

/// Separators in `LD_PRELOAD`.
fn splits(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// Maximum length of a directory's name. A caller of `execve` may have a stack of only one page.
const DIR_BYTES_MAX: usize = 512;

/// The path of a directory, or of the file that a descriptor refers to.
struct Name {
    bytes: [u8; DIR_BYTES_MAX],
    len: usize,
}

impl Name {
    /// An empty name.
    fn none() -> Name {
        Name { bytes: [0; DIR_BYTES_MAX], len: 0 }
    }

    /// The target of a symbolic link, if it fits.
    fn of_link(link: &CStr) -> Name {
        let mut name = Name::none();
        let args = [
            libc::AT_FDCWD as usize,
            link.as_ptr() as usize,
            &raw mut name.bytes as usize,
            DIR_BYTES_MAX,
            0,
            0,
        ];
        // SAFETY: the kernel writes into our buffer only.
        let len = unsafe { sys::call(libc::SYS_readlinkat, args) }.unwrap_or(0);
        name.len = if len < DIR_BYTES_MAX { len } else { 0 };
        name
    }

    /// The path of the file that descriptor `fd` refers to; the working directory for `AT_FDCWD`.
    fn of_descriptor(fd: c_int) -> Name {
        if fd == libc::AT_FDCWD {
            return Name::of_link(c"/proc/self/cwd");
        }
        // Writing to a slice stops at its end, and the rest of it stays zero.
        let mut link = [0_u8; 32];
        let _ = write!(&mut link[..], "/proc/self/fd/{fd}");
        CStr::from_bytes_until_nul(&link).map_or_else(|_| Name::none(), Name::of_link)
    }
}

/// Appends one record with a single call, so that the records of several processes do not mix.
fn append(file: &CStr, parts: [&[u8]; 5]) {
    let parts =
        parts.map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() });
    let flags =
        libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let open = [libc::AT_FDCWD as usize, file.as_ptr() as usize, flags as usize, 0o600, 0, 0];
    // SAFETY: the calls read our data and the program's strings; the descriptor is this function's
    // own.
    unsafe {
        if let Ok(fd) = sys::call(libc::SYS_openat, open) {
            let _ =
                sys::call(libc::SYS_writev, [fd, parts.as_ptr() as usize, parts.len(), 0, 0, 0]);
            let _ = sys::call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        }
    }
}

/// Records that `path`, relative to `dir`, is about to be started. `searched`: in `PATH`.
///
/// # Safety
/// `path` and `environment` must be as C requires, or null.
unsafe fn note(dir: c_int, path: *const c_char, environment: Strings, searched: bool) {
    let Some(notes) = NOTES.get().filter(|_| !STOPPED.load(Ordering::Relaxed)) else { return };
    let errno = sys::errno();
    // Where C specifies it, the kernel reports bad pointers (EFAULT).
    if !is_string(path) || !is_list(environment) {
        return;
    }
    // SAFETY: guaranteed by the caller.
    let (path, kept) = unsafe {
        (CStr::from_ptr(path).to_bytes(), keeps_far_memory(environment, notes.library.to_bytes()))
    };
    if kept && !is_there(&notes.path) {
        warn(&notes.path);
    }
    let first = if kept { b"+" } else { b"-" };
    let is_descriptor = path.is_empty() && dir != libc::AT_FDCWD;
    let is_relative = !path.starts_with(b"/") && (path.contains(&b'/') || !searched);
    let name = if is_descriptor || is_relative { Name::of_descriptor(dir) } else { Name::none() };
    let between: &[u8] = if is_relative && !is_descriptor { b"/" } else { b"" };
    append(&notes.file, [first, &name.bytes[..name.len], between, path, b"\0"]);
    sys::set_errno(errno);
}

/// Must be called before this process executes another program.
pub fn begin() {
    if !STOPPED.load(Ordering::Relaxed) {
        export_limits::before_exec();
    }
}

/// Must be called if that failed.
pub fn failed() {
    if !STOPPED.load(Ordering::Relaxed) {
        export_limits::after_failed_exec();
    }
}

/// Records the program that a direct system call of the program starts.
///
/// # Safety
/// As for the call.
pub unsafe fn note_call(number: c_long, args: [usize; 4]) {
    let (dir, path, environment) = if number == libc::SYS_execve {
        (HERE, args[0], args[2])
    } else {
        (args[0] as c_int, args[1], args[3])
    };
    // SAFETY: guaranteed by the caller.
    unsafe { note(dir, path as *const c_char, environment as Strings, false) };
}

/// Whether a file exists, in the directory tree that this process currently sees.
fn is_there(file: &CStr) -> bool {
    // SAFETY: reads a NUL-terminated string.
    unsafe {
        sys::call(
            libc::SYS_faccessat,
            [libc::AT_FDCWD as usize, file.as_ptr() as usize, 0, 0, 0, 0],
        )
    }
    .is_ok()
}

/// Warns the user that the library cannot be loaded into the program that is started. Makes one
/// call and allocates nothing.
fn warn(library: &CStr) {
    let first = b"hiroma: what is started now runs without far memory: ".as_slice();
    let last =
        b" cannot be seen from here (another root directory, or a mount namespace of its own)\n"
            .as_slice();
    let parts = [first, library.to_bytes(), last]
        .map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() });
    // SAFETY: reads our own data.
    let _ =
        unsafe { sys::call(libc::SYS_writev, [2, parts.as_ptr() as usize, parts.len(), 0, 0, 0]) };
}

/// Whether the kernel can read a path at this address.
fn is_string(path: *const c_char) -> bool {
    // SAFETY: the kernel reads the string, and returns an error where it cannot.
    let looked = unsafe {
        sys::call(libc::SYS_faccessat, [libc::AT_FDCWD as usize, path as usize, 0, 0, 0, 0])
    };
    looked != Err(Errno(libc::EFAULT))
}

/// Whether there is a readable list, or null.
fn is_list(list: Strings) -> bool {
    let mut first = 0_usize;
    // SAFETY: the kernel does the reading, into our own variable.
    list.is_null()
        || unsafe { sys::copy_readable(list as usize, &raw mut first as usize, size_of::<usize>()) }
            == size_of::<usize>()
}

/// # Safety
/// `environment` must be as C requires, or null.
unsafe fn keeps_far_memory(environment: Strings, library: &[u8]) -> bool {
    // SAFETY: guaranteed by the caller.
    let find = |name| unsafe { runtime::find(environment, name) };
    find(CONFIG_ENV).is_some()
        && find("LD_PRELOAD")
            .is_some_and(|list| list.to_bytes().split(splits).any(|item| item == library))
}

macro_rules! export {
    ($($name:ident($($arg:ident: $type:ty),*) by $next:ident, notes $dir:expr, $path:expr, $environment:expr, $searched:expr;)*) => {
        $(
            /// # Safety
            /// As in C.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                // SAFETY: guaranteed by the caller; the C library's function of this name has this
                // type.
                unsafe {
                    note($dir, $path, $environment, $searched);
                    let replaces = !stringify!($name).starts_with("posix_spawn");
                    if replaces {
                        begin();
                    }
                    let result = mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>($next.get())($($arg),*);
                    if replaces {
                        failed();
                    }
                    result
                }
            }
        )*
    };
}

const HERE: c_int = libc::AT_FDCWD;

export! {
    execve(path: *const c_char, argv: Strings, envp: Strings) by EXECVE, notes HERE, path, envp, false;
    execv(path: *const c_char, argv: Strings) by EXECV, notes HERE, path, runtime::environment(), false;
    execvp(name: *const c_char, argv: Strings) by EXECVP, notes HERE, name, runtime::environment(), true;
    execvpe(name: *const c_char, argv: Strings, envp: Strings) by EXECVPE, notes HERE, name, envp, true;
    execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) by EXECVEAT, notes dir, path, envp, false;
    fexecve(fd: c_int, argv: Strings, envp: Strings) by FEXECVE, notes fd, c"".as_ptr(), envp, false;
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings)
        by POSIX_SPAWN, notes HERE, path, envp, false;
    posix_spawnp(pid: *mut c_int, name: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings)
        by POSIX_SPAWNP, notes HERE, name, envp, true;
}

#[cfg(target_arch = "x86_64")]
mod counted_by_c {
    use std::arch::naked_asm;

    use super::*;

    /// In `words`: the path, five arguments from registers, `rax`, the return address, the other
    /// arguments.
    const REGISTERS: usize = 6;
    const STACK: usize = 8;

    macro_rules! listed {
        ($($name:ident by $note:ident;)*) => {
            $(
                /// # Safety
                /// As in C.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
                    naked_asm!(
                        "endbr64",
                        "push rax",
                        "push r9",
                        "push r8",
                        "push rcx",
                        "push rdx",
                        "push rsi",
                        "push rdi",
                        "mov rdi, rsp",
                        "call {note}",
                        "mov r11, rax",
                        "pop rdi",
                        "pop rsi",
                        "pop rdx",
                        "pop rcx",
                        "pop r8",
                        "pop r9",
                        "pop rax",
                        "jmp r11",
                        note = sym $note,
                    )
                }
            )*
        };
    }

    listed! {
        execl by note_execl;
        execlp by note_execlp;
        execle by note_execle;
    }

    unsafe extern "C" fn note_execl(words: *const usize) -> *mut c_void {
        // SAFETY: the first word is the path.
        unsafe { note(HERE, *words as *const c_char, runtime::environment(), false) };
        begin();
        EXECL.get()
    }

    unsafe extern "C" fn note_execlp(words: *const usize) -> *mut c_void {
        // SAFETY: the first word is the name.
        unsafe { note(HERE, *words as *const c_char, runtime::environment(), true) };
        begin();
        EXECLP.get()
    }

    unsafe extern "C" fn note_execle(words: *const usize) -> *mut c_void {
        // SAFETY: C ends the arguments with a null pointer, and the environment follows it.
        unsafe {
            let mut places = (1..REGISTERS).chain(STACK..);
            while places.next().is_some_and(|place| *words.add(place) != 0) {}
            let environment = places.next().map_or(0, |place| *words.add(place));
            note(HERE, *words as *const c_char, environment as Strings, false);
        }
        begin();
        EXECLE.get()
    }
}
