//! `sbrk` and `brk`: the program's heap that grows at one end, in managed memory.
//!
//! Contract: C's. The heap is a reservation in the arena, made on the first call; its pages become
//! usable as the break passes them. As with the kernel's break, callers ensure that only one thread
//! moves it at a time. A program at a fixed address whose break follows its own data has the kernel's:
//! it may take both for one piece, as those do that write their memory into a new program and go on
//! there (GCL, and what is made with it).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hiroma_units::{EXTENT, PAGE};

use crate::sys::{self, Errno};
use crate::{classify, nursery, program, runtime};

/// Maximum size of the heap. It is only address space.
const SPAN_MAX: usize = 1 << 40;

static START: AtomicUsize = AtomicUsize::new(0);
static SPAN: AtomicUsize = AtomicUsize::new(0);
static BREAK: AtomicUsize = AtomicUsize::new(0);

/// The heap's first address. `None`: the kernel serves this program. Many allocators only ask where
/// the break is (`moves` is false): that starts no pager.
fn start(moves: bool) -> Option<usize> {
    let known = START.load(Ordering::Acquire);
    if known == 0 && continues_data() {
        return None;
    }
    if moves {
        nursery::start_now();
    }
    if known != 0 {
        return Some(known);
    }
    let span = span(runtime::arena().len());
    let early = nursery::reserve_break();
    let start = match early {
        Some(start) => start,
        None if !runtime::is_managed() => return None,
        None => runtime::far(|pager| pager.reserve(span, EXTENT).ok())??,
    };
    SPAN.store(span, Ordering::Relaxed);
    BREAK.store(start, Ordering::Relaxed);
    START.store(start, Ordering::Release);
    Some(start)
}

/// The kernel's break was right after the program's own data when this was first asked.
fn continues_data() -> bool {
    const YES: usize = 1;
    const NO: usize = 2;
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    if KNOWN.load(Ordering::Relaxed) == 0 {
        let end = program::end_of_data();
        let does = end != 0 && kernel_break(0).next_multiple_of(PAGE) == end;
        KNOWN.store(if does { YES } else { NO }, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed) == YES
}

/// When the kernel's break follows the data of a program that has its own `malloc` there.
pub enum Holds {
    Now,
    /// When it has executed itself again.
    Later,
}

/// Whether the program's own `malloc` takes its memory from such a break, or will when it has executed
/// itself again without randomised addresses. What the C library allocates for a pager would come from
/// there too, before the program expects any.
pub fn holds_everything() -> Option<Holds> {
    let holds = match program::end_of_data() {
        0 => return None,
        _ if continues_data() => Holds::Now,
        _ if program::imports(&[c"sbrk", c"personality"]) => Holds::Later,
        _ => return None,
    };
    program::defines(c"malloc").then_some(holds)
}

/// Reports once that the heap is outside the limit.
fn tell_local(bytes: usize) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if bytes >= classify::WORTH_TELLING && !TOLD.swap(true, Ordering::Relaxed) {
        sys::say(
            "hiroma: the program's heap (brk) continues its own data: what it keeps there is not far and not in --local",
        );
    }
}

/// The pages of the heap that are in use.
pub fn in_use() -> Option<Range<usize>> {
    let start = START.load(Ordering::Acquire);
    let end = BREAK.load(Ordering::Acquire).next_multiple_of(PAGE);
    (start < end).then_some(start..end)
}

/// Length of the heap's reservation in an arena of `len` bytes.
pub fn span(len: usize) -> usize {
    (len / 8).min(SPAN_MAX) / EXTENT * EXTENT
}

/// Moves the break from `old` to `new`. Below the start of the heap it stays where it is, and the C
/// library reports success.
fn change(start: usize, old: usize, new: usize) -> Result<(), Errno> {
    if new < start {
        return Ok(());
    }
    if new > start + SPAN.load(Ordering::Relaxed) {
        return Err(Errno(libc::ENOMEM));
    }
    let (from, to) = (old.next_multiple_of(PAGE), new.next_multiple_of(PAGE));
    if to > from {
        renew(from, to - from, libc::PROT_READ | libc::PROT_WRITE)?;
    } else if to < from {
        renew(to, from - to, libc::PROT_NONE)?;
    }
    BREAK.store(new, Ordering::Release);
    Ok(())
}

fn renew(start: usize, len: usize, prot: c_int) -> Result<(), Errno> {
    match runtime::far(|pager| pager.refresh(start, len, prot)) {
        Some(renewed) => renewed.map_err(|error| Errno(error.errno())),
        None => {
            // The break was given before the pager could not start.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: inside the reservation that is the program's heap.
            unsafe { sys::mmap(start, len, prot, flags | libc::MAP_NORESERVE, -1, 0) }.map(drop)
        }
    }
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
    let (old, moved) = match start(increment != 0) {
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
            if continues_data() && runtime::phase() != runtime::Phase::PassThrough {
                tell_local(new.saturating_sub(program::end_of_data()));
            }
            (old, increment == 0 || kernel_break(new) == new)
        }
    };
    if moved { old as *mut c_void } else { no_memory() }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(to: *mut c_void) -> c_int {
    let moved = match start(true) {
        Some(start) => change(start, BREAK.load(Ordering::Acquire), to as usize).is_ok(),
        None => kernel_break(to as usize) == to as usize,
    };
    if moved {
        return 0;
    }
    no_memory();
    -1
}
