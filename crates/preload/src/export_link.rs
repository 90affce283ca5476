//! `dlopen` and `dlsym`: a lookup of the `malloc` family that bypasses the global scope finds ours
//! anyway.
//!
//! A block of one heap must not be freed by another. With `RTLD_DEEPBIND` (PHP's extensions) a
//! library binds to the C library's own `free`, and so does code that looks `free` up in a handle
//! (`ctypes`, `ffi`). Therefore that flag is removed, and a result that is the C library's function
//! is replaced.
//!
//! Contract: libc's. Both functions identify their caller by the return address (search paths,
//! `RTLD_NEXT`), so they are entered by a jump that preserves it. Nothing unwinds.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::export_malloc as ours;

type Look = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The symbol version of both functions in glibc, since its first release for x86-64.
const SINCE: &CStr = c"GLIBC_2.2.5";

/// # Safety
/// As in C.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "and esi, {keep}",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jnz 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "2:",
        "jmp rax",
        keep = const !libc::RTLD_DEEPBIND,
        real = sym REAL_DLOPEN,
        find = sym find_dlopen,
    )
}

/// # Safety
/// As in C.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        answer = sym answer,
        real = sym REAL_DLSYM,
    )
}

/// The C library's own function.
fn real(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: both are NUL-terminated strings; `dlvsym` is not replaced.
    let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), SINCE.as_ptr()) };
    if found.is_null() {
        // No program works without it; glibc always has it.
        std::process::abort();
    }
    place.store(found, Ordering::Relaxed);
    found
}

extern "C" fn find_dlopen() -> *mut c_void {
    real(&REAL_DLOPEN, c"dlopen")
}

/// Our function, if the lookup would return the C library's own; null: let the C library answer.
unsafe extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = real(&REAL_DLSYM, c"dlsym");
    if name.is_null() || handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT {
        return ptr::null_mut();
    }
    // SAFETY: the string is the caller's.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(ours) = replacement(name) else { return ptr::null_mut() };
    // SAFETY: the real function has this type; the arguments are the caller's.
    let (theirs, next) = unsafe {
        let look = mem::transmute::<*mut c_void, Look>(real);
        (look(handle, name.as_ptr()), look(libc::RTLD_NEXT, name.as_ptr()))
    };
    if !theirs.is_null() && theirs == next { ours } else { ptr::null_mut() }
}

/// Our replacement of a function that returns or accepts blocks.
fn replacement(name: &CStr) -> Option<*mut c_void> {
    Some(match name.to_bytes() {
        b"malloc" => ours::malloc as *mut c_void,
        b"calloc" => ours::calloc as *mut c_void,
        b"realloc" => ours::realloc as *mut c_void,
        b"reallocarray" => ours::reallocarray as *mut c_void,
        b"free" => ours::free as *mut c_void,
        b"memalign" => ours::memalign as *mut c_void,
        b"aligned_alloc" => ours::aligned_alloc as *mut c_void,
        b"posix_memalign" => ours::posix_memalign as *mut c_void,
        b"valloc" => ours::valloc as *mut c_void,
        b"pvalloc" => ours::pvalloc as *mut c_void,
        b"malloc_usable_size" => ours::malloc_usable_size as *mut c_void,
        _ => return None,
    })
}
