//! Ways to fork that do not run the C library's fork handlers: `_Fork`, and `clone` without shared
//! memory.
//!
//! Contract: C's. A child that shares our memory (`CLONE_VM`) needs no handling: the pager serves
//! any process that uses this memory.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{mem, ptr};

use crate::sys::Errno;
use crate::{runtime, sys};

type Body = extern "C" fn(*mut c_void) -> c_int;
type Clone =
    unsafe extern "C" fn(Body, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;
type Fork = unsafe extern "C" fn() -> c_int;

fn next(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

fn refused() -> c_int {
    sys::set_errno(libc::ENOSYS);
    -1
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    let address = next(c"_Fork");
    if address.is_null() {
        return refused();
    }
    // SAFETY: the C library's function of this name has this type.
    let fork = unsafe { mem::transmute::<*mut c_void, Fork>(address) };
    let outcome = runtime::around_fork(&[], || {
        // SAFETY: the program requested this call.
        let pid = unsafe { fork() };
        if pid < 0 { Err(Errno(sys::errno())) } else { Ok(pid as usize) }
    });
    outcome.map_or_else(
        |Errno(errno)| {
            sys::set_errno(errno);
            -1
        },
        |pid| pid as c_int,
    )
}

/// What the kernel writes for a `clone` with these arguments, and the memory around the thread
/// pointer that the child has from its beginning.
pub fn passed_to_clone(
    flags: u64,
    parent_tid: usize,
    child_tid: usize,
    tls: usize,
) -> [Range<usize>; 3] {
    // Without its flag an argument has an arbitrary value.
    let with = |wanted: c_int, part: Range<usize>| {
        if flags & wanted as u64 == 0 { 0..0 } else { part }
    };
    let word = |addr: usize| addr..addr.saturating_add(size_of::<c_int>());
    [
        with(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD, word(parent_tid)),
        with(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID, word(child_tid)),
        with(libc::CLONE_SETTLS, runtime::around_thread(tls)),
    ]
}

/// A word that tells a child's copy of this memory from what it executes.
static MARK: AtomicU64 = AtomicU64::new(0);

/// The flags that a fork has in the kernel. With `CLONE_VFORK` the kernel would not let the caller
/// go on before the child executes or ends, which needs the caller's pager to begin; see
/// [`await_vfork`].
pub fn for_kernel(flags: usize) -> usize {
    if flags & libc::CLONE_VFORK as usize != 0 {
        // SAFETY: the kernel gives each program that is executed random bytes of its own.
        let random = unsafe { (libc::getauxval(libc::AT_RANDOM) as *const u64).read_unaligned() };
        MARK.store(random | 1, Ordering::Relaxed);
    }
    flags & !(libc::CLONE_VFORK as usize)
}

/// After a fork with `CLONE_VFORK`: returns when the child has executed or ended. A child whose memory
/// may not be read has executed something with other rights.
pub fn await_vfork(flags: usize, child: usize) {
    if flags & libc::CLONE_VFORK as usize == 0 || child == 0 {
        return;
    }
    while sys::word_in(child, MARK.as_ptr() as usize) == Some(MARK.load(Ordering::Relaxed)) {
        sys::nap();
    }
}

/// What a child of `clone` executes once its pager runs, and on which stack.
struct Birth {
    body: Body,
    argument: *mut c_void,
    stack: *mut c_void,
}

/// Where a child starts its pager. Its own stack may be a few bytes in the middle of its parent's, as a
/// garbage collector makes it that reads memory in a child: deep calls there would overwrite what the
/// program's function is given.
#[repr(C, align(16))]
struct FirstStack(UnsafeCell<[u8; FIRST_STACK_BYTES]>);

const FIRST_STACK_BYTES: usize = 256 << 10;

// SAFETY: only a child of `clone` uses it, in its copy of the memory, when it has no other thread.
unsafe impl Sync for FirstStack {}

static FIRST_STACK: FirstStack = FirstStack(UnsafeCell::new([0; FIRST_STACK_BYTES]));

extern "C" fn born(birth: *mut c_void) -> c_int {
    // SAFETY: the creator's variable, of which the child has a copy.
    let Birth { body, argument, stack } = unsafe { ptr::read(birth.cast::<Birth>()) };
    runtime::begin_child();
    // SAFETY: the program gave this stack to the child, and nothing has used it.
    unsafe { sys::end_on_stack(stack as usize & !0xf, body, argument) }
}

/// C's arguments after the fourth are optional. Registers that were not passed have arbitrary
/// values, and the kernel reads them only if the flags require it.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    body: Option<Body>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> c_int {
    let address = next(c"clone");
    let (Some(body), false) = (body, address.is_null() || stack.is_null()) else {
        sys::set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: the C library's function of this name has this type.
    let real = unsafe { mem::transmute::<*mut c_void, Clone>(address) };
    if flags & libc::CLONE_VM != 0 || !runtime::is_followed() {
        // SAFETY: the program requested this call.
        return unsafe { real(body, stack, flags, argument, parent_tid, tls, child_tid) };
    }
    let mut birth = Birth { body, argument, stack };
    // SAFETY: the end of an array.
    let first = unsafe { FIRST_STACK.0.get().cast::<u8>().add(FIRST_STACK_BYTES) }.cast();
    let [a, b, c] = passed_to_clone(flags as u64, parent_tid, child_tid, tls);
    let in_kernel = for_kernel(flags as usize) as c_int;
    runtime::begin_fork(&[runtime::top_of_stack(stack as usize), a, b, c]);
    // SAFETY: the program requested this call; the child finds its copy of `birth` at the same
    // address.
    let pid = unsafe {
        real(born, first, in_kernel, (&raw mut birth).cast(), parent_tid, tls, child_tid)
    };
    runtime::end_fork();
    await_vfork(flags as usize, usize::try_from(pid).unwrap_or(0));
    pid
}
