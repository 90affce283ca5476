//! `pthread_create`, so that a thread of the pager is internal from its first instruction; and
//! `pthread_setspecific`, so that the C library's tables of values are never far.
//!
//! Contract: C's. A thread that is created in the internal scope starts in it and stays in it: the
//! start-up code of Rust and of the C library allocates before the thread's function runs, and a
//! thread of the pager that waited for managed memory there would wait forever. In a forked child
//! the C library clears these tables of all other threads before any handler runs, when there is no
//! pager yet: a far page would become zeros, with all that the program has there.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{scope, sys};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> c_int;

type SetSpecific = unsafe extern "C" fn(libc::pthread_key_t, *const c_void) -> c_int;

static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static NEXT_SPECIFIC: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The values of the first keys lie in the thread's own descriptor (glibc: PTHREAD_KEY_2NDLEVEL_SIZE).
const KEYS_WITHOUT_TABLE: libc::pthread_key_t = 32;

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

fn found(cell: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut address = cell.load(Ordering::Relaxed);
    if address.is_null() {
        // SAFETY: a NUL-terminated string.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        cell.store(address, Ordering::Relaxed);
    }
    address
}

fn next() -> Option<Create> {
    let address = found(&NEXT, c"pthread_create");
    // SAFETY: the C library's function of this name has this type.
    (!address.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, Create>(address) })
}

fn next_specific() -> Option<SetSpecific> {
    let address = found(&NEXT_SPECIFIC, c"pthread_setspecific");
    // SAFETY: the C library's function of this name has this type.
    (!address.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, SetSpecific>(address) })
}

/// Looks the functions up. Threads of the pager must not: the dynamic linker has a lock.
pub fn settle() {
    let _ = (next(), next_specific());
}

fn set_specific(key: libc::pthread_key_t, value: *const c_void) -> c_int {
    let Some(set) = next_specific() else {
        return libc::ENOMEM;
    };
    // Where there is a value, there is a table.
    // SAFETY: any key may be asked for.
    let has_table = || !unsafe { libc::pthread_getspecific(key) }.is_null();
    if key < KEYS_WITHOUT_TABLE || scope::is_internal() || has_table() {
        // SAFETY: the C library checks the key, and does not look at the value.
        return unsafe { set(key, value) };
    }
    // A handler of a signal would allocate in the internal heap.
    let mask = sys::block_signals();
    scope::enter();
    // SAFETY: as above.
    let result = unsafe { set(key, value) };
    scope::leave();
    sys::restore_signals(mask);
    result
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setspecific(
    key: libc::pthread_key_t,
    value: *const c_void,
) -> c_int {
    set_specific(key, value)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __pthread_setspecific(
    key: libc::pthread_key_t,
    value: *const c_void,
) -> c_int {
    set_specific(key, value)
}

/// # Safety
/// As in C; `thrd_success` is 0, `thrd_error` 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tss_set(key: libc::pthread_key_t, value: *mut c_void) -> c_int {
    if set_specific(key, value) == 0 { 0 } else { 2 }
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
