//! Calls that lend pages of the program to the kernel beyond their return: `vmsplice`, and sockets
//! that send without copying.
//!
//! Contract: C's. The kernel does not show which pages it holds in this way, so the pager is
//! notified before the first such call.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::{self, Errno};
use crate::{runtime, scope};

static TOLD: AtomicBool = AtomicBool::new(false);

/// Notifies the pager, once.
pub fn lends_pages() {
    if !scope::is_internal() && !TOLD.swap(true, Ordering::Relaxed) {
        runtime::far(hiroma_pager::Pager::be_wary);
    }
}

fn answer(outcome: Result<usize, Errno>) -> isize {
    outcome.map_or_else(
        |Errno(errno)| {
            sys::set_errno(errno);
            -1
        },
        |value| value as isize,
    )
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: c_int,
    parts: *const libc::iovec,
    count: usize,
    flags: u32,
) -> isize {
    lends_pages();
    // SAFETY: the program requested this call.
    answer(unsafe {
        sys::call(libc::SYS_vmsplice, [fd as usize, parts as usize, count, flags as usize, 0, 0])
    })
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY {
        lends_pages();
    }
    // SAFETY: the program requested this call.
    answer(unsafe {
        sys::call(
            libc::SYS_setsockopt,
            [fd as usize, level as usize, name as usize, value as usize, len as usize, 0],
        )
    }) as c_int
}
