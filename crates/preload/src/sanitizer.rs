//! Programs that are built with a sanitizer, and programs into which its library is loaded: they end
//! where another `malloc` comes first. So the process executes its program again, without this library.
//!
//! Contract: runs before any constructor, those of the sanitizer too. Its library has replaced functions
//! of the C library (`strlen`, `memcpy`), which begin with it, so none may be called: strings are read
//! byte by byte, as volatile, so that the compiler makes no such call of it.
#![allow(unsafe_code)]

use std::arch::{asm, global_asm};
use std::ffi::{c_char, c_int};

use crate::sys;

type Strings = *const *const c_char;

global_asm!(
    ".weak __asan_init",
    ".weak __tsan_init",
    ".weak __lsan_init",
    ".weak __msan_init",
    ".weak __hwasan_init"
);

macro_rules! is_there {
    ($($name:literal)*) => {{
        let mut found = 0_usize;
        $(
            let address: usize;
            // SAFETY: reads the word in which the dynamic linker has put the address, or zero.
            unsafe {
                asm!(concat!("mov {0}, qword ptr [rip + ", $name, "@GOTPCREL]"), out(reg) address,
                     options(nostack, readonly, pure));
            }
            found |= address;
        )*
        found != 0
    }};
}

/// Whether a sanitizer is in this process.
fn is_sanitized() -> bool {
    is_there!("__asan_init" "__tsan_init" "__lsan_init" "__msan_init" "__hwasan_init")
}

/// # Safety
/// `at` must be readable.
unsafe fn byte(at: *const c_char) -> u8 {
    // SAFETY: guaranteed by the caller.
    unsafe { at.read_volatile() as u8 }
}

/// What follows `prefix` in a string that begins with it.
///
/// # Safety
/// The string must end with a zero.
unsafe fn rest(string: *const c_char, prefix: &[u8]) -> Option<*mut c_char> {
    let mut at = string;
    for &wanted in prefix {
        // SAFETY: the end of the string is another byte than any wanted one.
        unsafe {
            if byte(at) != wanted {
                return None;
            }
            at = at.add(1);
        }
    }
    Some(at.cast_mut())
}

/// Takes this library out of a list of libraries, in place. Returns whether it was there, and whether
/// anything is left.
///
/// # Safety
/// The string must end with a zero, and be writable and nobody else's.
unsafe fn take_out(list: *mut c_char) -> (bool, bool) {
    const OWN_NAME: &[u8] = b"libhiroma_preload";
    let (mut from, mut to) = (list, list);
    let (mut was_there, mut is_left) = (false, false);
    // SAFETY: both stay in the string, and what is written lies before what is read.
    unsafe {
        while byte(from) != 0 {
            let mut end = from;
            let mut is_ours = false;
            while !matches!(byte(end), 0 | b':' | b' ') {
                is_ours |= rest(end, OWN_NAME).is_some();
                end = end.add(1);
            }
            was_there |= is_ours;
            is_left |= !is_ours && end > from;
            if byte(end) != 0 {
                end = end.add(1);
            }
            while from < end {
                if !is_ours {
                    to.write_volatile(from.read_volatile());
                    to = to.add(1);
                }
                from = from.add(1);
            }
        }
        to.write_volatile(0);
    }
    (was_there, is_left)
}

/// Takes this library out of the environment. Returns whether it was there.
///
/// # Safety
/// `environment` must be as the kernel passes it.
unsafe fn leave(environment: Strings) -> bool {
    let mut at = environment.cast_mut();
    // SAFETY: the list ends with a null pointer; nobody else has read it yet.
    unsafe {
        while !at.read_volatile().is_null() {
            if let Some(list) = rest(at.read_volatile(), b"LD_PRELOAD=") {
                let (was_there, is_left) = take_out(list);
                while !is_left && !at.read_volatile().is_null() {
                    at.write_volatile(at.add(1).read_volatile());
                    at = at.add(1);
                }
                return was_there;
            }
            at = at.add(1);
        }
    }
    false
}

/// Executes the program again without this library, if there is a sanitizer. Returns if not, and if
/// that does not work.
///
/// # Safety
/// The arguments must be as the kernel passes them, and nobody may have read the environment.
pub unsafe fn yield_to(count: c_int, arguments: Strings, environment: Strings) {
    const PATH_BYTES: usize = 4096;
    if count < 1 || !is_sanitized() {
        return;
    }
    // By its name, which becomes that of the process; the link itself is one of the next process too.
    let mut path = [std::mem::MaybeUninit::<u8>::uninit(); PATH_BYTES];
    let link = c"/proc/self/exe".as_ptr() as usize;
    let here = libc::AT_FDCWD as usize;
    // SAFETY: the calls read strings, and write to our buffer, less than its length.
    unsafe {
        if !leave(environment) {
            return;
        }
        let name = path.as_mut_ptr() as usize;
        let len = sys::call(libc::SYS_readlinkat, [here, link, name, PATH_BYTES - 1, 0, 0]);
        if let Ok(len) = len {
            path.as_mut_ptr().add(len).write(std::mem::MaybeUninit::new(0));
            let arguments = arguments as usize;
            for path in [name, link] {
                let all = [path, arguments, environment as usize, 0, 0, 0];
                let _ = sys::call(libc::SYS_execve, all);
            }
        }
    }
}
