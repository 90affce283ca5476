//! `pthread_create`, so that a thread of the pager is internal from its first instruction.
//!
//! Contract: C's. A thread that is created in the internal scope starts in it and stays in it: the
//! start-up code of Rust and of the C library allocates before the thread's function runs, and a
//! thread of the pager that waited for managed memory there would wait forever.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::scope;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> c_int;

static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// What a thread of the pager executes.
struct Birth {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn born_internal(birth: *mut c_void) -> *mut c_void {
    scope::enter();
    // SAFETY: from the box that `pthread_create` made for this thread alone.
    let Birth { start, argument } = *unsafe { Box::from_raw(birth.cast::<Birth>()) };
    start(argument)
}

fn next() -> Option<Create> {
    let mut address = NEXT.load(Ordering::Relaxed);
    if address.is_null() {
        // SAFETY: a NUL-terminated string.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
        NEXT.store(address, Ordering::Relaxed);
    }
    // SAFETY: the C library's function of this name has this type.
    (!address.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, Create>(address) })
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = next() else {
        return libc::EAGAIN;
    };
    if !scope::is_internal() {
        // SAFETY: guaranteed by the caller.
        return unsafe { create(thread, attributes, start, argument) };
    }
    let birth = Box::into_raw(Box::new(Birth { start, argument }));
    // SAFETY: guaranteed by the caller; the new thread owns the box.
    let result = unsafe { create(thread, attributes, born_internal, birth.cast()) };
    if result != 0 {
        // SAFETY: no thread was created, so the box is still ours.
        drop(unsafe { Box::from_raw(birth) });
    }
    result
}
