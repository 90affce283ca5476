//! `strerror_r` for this library's own code: without locks, translations and allocations.
//!
//! Rust's standard library calls it whenever it prints a system error. glibc's version takes the
//! lock of the locale, which it shares with the program's `setlocale`; a child that the program
//! forks at that moment would inherit a lock that is never released. The symbol below is hidden:
//! only code that is linked into this library uses it.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// glibc's `strerrordesc_np` (since 2.32), which only reads a table.
static DESCRIBE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

#[cfg(target_arch = "x86_64")]
global_asm!(".globl __xpg_strerror_r", ".hidden __xpg_strerror_r", "__xpg_strerror_r:", "jmp {text}", text = sym text);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl __xpg_strerror_r", ".hidden __xpg_strerror_r", "__xpg_strerror_r:", "b {text}", text = sym text);

/// Resolves the function that describes errors. Called on a thread of the program, because later
/// nothing may wait for the dynamic linker's lock.
pub fn settle() {
    // SAFETY: a NUL-terminated string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"strerrordesc_np".as_ptr()) };
    DESCRIBE.store(found.cast(), Ordering::Release);
}

extern "C" fn text(errno: c_int, buffer: *mut c_char, len: usize) -> c_int {
    let describe = DESCRIBE.load(Ordering::Acquire);
    let mut known: *const c_char = ptr::null();
    if !describe.is_null() {
        // SAFETY: glibc's function of this name has this type.
        let describe = unsafe {
            std::mem::transmute::<*mut (), extern "C" fn(c_int) -> *const c_char>(describe)
        };
        known = describe(errno);
    }
    // SAFETY: a string of the C library that is never freed.
    let words = if known.is_null() { c"system error" } else { unsafe { CStr::from_ptr(known) } };
    let words = words.to_bytes();
    if len == 0 {
        return libc::ERANGE;
    }
    let kept = words.len().min(len - 1);
    // SAFETY: the caller's buffer of `len` bytes, of which `kept + 1` are written.
    unsafe {
        ptr::copy_nonoverlapping(words.as_ptr(), buffer.cast(), kept);
        buffer.add(kept).write(0);
    }
    0
}
