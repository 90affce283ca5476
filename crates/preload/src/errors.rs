//! `strerror_r` as this library's own code sees it: no lock, no translation, no memory.
//!
//! Rust's standard library calls it whenever an error of the system is printed. glibc's takes the
//! lock of the locale, which it shares with the program's `setlocale`; a child that the program
//! forks at that moment would find the lock held for ever. The symbol below is hidden: it is found
//! by what is linked into this library, and by nobody else.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// glibc's `strerrordesc_np` (since 2.32): it only looks into a table.
static DESCRIBE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

#[cfg(target_arch = "x86_64")]
global_asm!(".globl __xpg_strerror_r", ".hidden __xpg_strerror_r", "__xpg_strerror_r:", "jmp {text}", text = sym text);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl __xpg_strerror_r", ".hidden __xpg_strerror_r", "__xpg_strerror_r:", "b {text}", text = sym text);

/// Looks up what describes errors, on a thread of the program: the dynamic linker's lock must not
/// be waited for later.
pub fn settle() {
    // SAFETY: a string that ends with a zero.
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
    // SAFETY: a string of the C library that is there for good.
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
