//! A separate descriptor table for a thread.
//!
//! Contract: called on a thread that has not used any descriptor yet, and that starts the threads
//! that will share the new table.
#![allow(unsafe_code)]

use std::io;

/// Leaves the process's descriptor table (`unshare(2)`, `CLONE_FILES`) and closes all but standard
/// error in the new one.
pub fn leave() -> io::Result<()> {
    // SAFETY: changes which table the calling thread uses; what is closed there stays open in the
    // process's table.
    unsafe {
        if libc::syscall(libc::SYS_unshare, libc::CLONE_FILES) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
        for fd in 0..2 {
            let null = libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                c"/dev/null".as_ptr(),
                libc::O_RDWR,
            );
            if null >= 0 {
                libc::syscall(libc::SYS_dup3, null, fd, 0);
                libc::syscall(libc::SYS_close, null);
            }
        }
    }
    Ok(())
}
