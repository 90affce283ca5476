//! `ioctl`: a program with its own userfaultfd takes memory over from the pager.
//!
//! Contract: C's. A mapping has one userfaultfd at a time, so memory that the program registers is
//! no longer managed: it is mapped anew, with its content. Pages of zeros become missing pages,
//! which the program has to expect of pages that it has not written.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};
use std::ops::Range;

use hiroma_units::PAGE;

use crate::sys::{self, Errno};
use crate::{classify, nursery, runtime, scope};

/// `_IOWR(0xAA, 0, struct uffdio_register)`.
const UFFDIO_REGISTER: usize = 0xc020_aa00;

/// Number of bytes that are read at a time.
const STEP: usize = 256 << 10;

/// Releases the memory that the program is about to register.
///
/// # Safety
/// `argument` is the argument of an `ioctl`, which may be anything.
pub unsafe fn before_ioctl(request: usize, argument: usize) {
    if request & 0xffff_ffff != UFFDIO_REGISTER || scope::is_internal() {
        return;
    }
    let mut range = [0_usize; 2];
    // SAFETY: the kernel copies, into our own variable.
    let copied =
        unsafe { sys::copy_readable(argument, &raw mut range as usize, size_of_val(&range)) };
    let arena = runtime::arena();
    if copied != size_of_val(&range) || arena.is_empty() {
        return;
    }
    if classify::split(range[0], range[1], &arena).is_some() {
        nursery::start_now();
    }
    if let Some(split) = classify::split(range[0], range[1], &arena) {
        // The library's heap has a lock, which a signal handler of the program must not wait for.
        let mask = sys::block_signals();
        // If this fails, the kernel refuses the program's request (EBUSY).
        let _ = give_up(split.inside);
        sys::restore_signals(mask);
    }
}

/// Maps a range anew as an unmanaged mapping, with its content.
fn give_up(range: Range<usize>) -> Result<(), Errno> {
    let Range { start, end } = range;
    let protection = match runtime::far(|pager| {
        pager.all_mapped(start, end - start).and_then(|()| pager.protection(start))
    }) {
        Some(Ok(protection)) => protection as c_int,
        Some(Err(error)) => return Err(Errno(error.errno())),
        None => return Ok(()),
    };
    let mut kept: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut buffer = vec![0_u8; STEP];
    let mut at = start;
    while at < end {
        let len = STEP.min(end - at);
        // SAFETY: the buffer is ours, and has this length.
        match unsafe { sys::copy_readable(at, buffer.as_mut_ptr() as usize, len) } {
            0 => at += PAGE,
            copied => {
                let pages = buffer[..copied].chunks(PAGE).enumerate();
                kept.extend(
                    pages
                        .filter(|(_, page)| page.iter().any(|&byte| byte != 0))
                        .map(|(number, page)| (at + number * PAGE, page.to_vec())),
                );
                at += copied;
            }
        }
    }
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the program's memory, whose content was saved; the pager has released the range.
    unsafe {
        runtime::far(|pager| pager.release(start, end - start))
            .unwrap_or(Ok(()))
            .map_err(|error| Errno(error.errno()))?;
        sys::mmap(start, end - start, writable, flags, -1, 0)?;
        for (at, page) in &kept {
            std::ptr::copy_nonoverlapping(page.as_ptr(), *at as *mut u8, page.len());
        }
        if protection != writable {
            sys::mprotect(start, end - start, protection)?;
        }
    }
    Ok(())
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the program requested this call.
    let result = unsafe {
        before_ioctl(request as usize, argument as usize);
        sys::call(libc::SYS_ioctl, [fd as usize, request as usize, argument as usize, 0, 0, 0])
    };
    result.map_or_else(
        |Errno(errno)| {
            sys::set_errno(errno);
            -1
        },
        |value| value as c_int,
    )
}
