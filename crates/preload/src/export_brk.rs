//! `sbrk` and `brk`: the program's heap that grows at one end, in managed memory.
//!
//! Contract: C's. The heap is a reservation in the arena, made on the first call; its pages become
//! usable as the break passes them. As with the kernel's break, callers ensure that only one thread
//! moves it at a time.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use hiroma_units::{EXTENT, PAGE};

use crate::sys::{self, Errno};
use crate::{nursery, runtime};

/// Maximum size of the heap. It is only address space.
const SPAN_MAX: usize = 1 << 40;

static START: AtomicUsize = AtomicUsize::new(0);
static SPAN: AtomicUsize = AtomicUsize::new(0);
static BREAK: AtomicUsize = AtomicUsize::new(0);

/// The heap's first address. `None`: the kernel serves this program.
fn start() -> Option<usize> {
    nursery::start_now();
    let known = START.load(Ordering::Acquire);
    let arena = runtime::arena();
    if known != 0 || !runtime::is_managed() {
        return Some(known).filter(|&start| start != 0);
    }
    let span = (arena.len() / 8).min(SPAN_MAX) / EXTENT * EXTENT;
    let start = runtime::far(|pager| pager.reserve(span, EXTENT).ok())??;
    SPAN.store(span, Ordering::Relaxed);
    BREAK.store(start, Ordering::Relaxed);
    START.store(start, Ordering::Release);
    Some(start)
}

/// Moves the break from `old` to `new`.
fn change(start: usize, old: usize, new: usize) -> Result<(), Errno> {
    if new < start || new > start + SPAN.load(Ordering::Relaxed) {
        return Err(Errno(libc::ENOMEM));
    }
    let (from, to) = (old.next_multiple_of(PAGE), new.next_multiple_of(PAGE));
    let done = if to > from {
        runtime::far(|pager| pager.refresh(from, to - from, libc::PROT_READ | libc::PROT_WRITE))
    } else if to < from {
        runtime::far(|pager| pager.refresh(to, from - to, libc::PROT_NONE))
    } else {
        None
    };
    done.unwrap_or(Ok(())).map_err(|error| Errno(error.errno()))?;
    BREAK.store(new, Ordering::Release);
    Ok(())
}

fn no_memory() -> *mut c_void {
    sys::set_errno(libc::ENOMEM);
    usize::MAX as *mut c_void
}

/// Moves the kernel's break, for programs that the kernel serves.
fn kernel_break(to: usize) -> usize {
    // SAFETY: moves the break as the program requested; nothing else in this library uses it.
    unsafe { sys::call(libc::SYS_brk, [to, 0, 0, 0, 0, 0]) }.unwrap_or(0)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    let (old, moved) = match start() {
        Some(start) => {
            let old = BREAK.load(Ordering::Acquire);
            (
                old,
                old.checked_add_signed(increment)
                    .is_some_and(|new| change(start, old, new).is_ok()),
            )
        }
        None => {
            let old = kernel_break(0);
            let new = old.checked_add_signed(increment).unwrap_or(0);
            (old, increment == 0 || kernel_break(new) == new)
        }
    };
    if moved { old as *mut c_void } else { no_memory() }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(to: *mut c_void) -> c_int {
    let moved = match start() {
        Some(start) => change(start, BREAK.load(Ordering::Acquire), to as usize).is_ok(),
        None => kernel_break(to as usize) == to as usize,
    };
    if moved {
        return 0;
    }
    no_memory();
    -1
}
