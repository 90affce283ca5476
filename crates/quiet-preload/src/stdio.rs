//! stdio: drops the cache behind what went through a `FILE`.
//!
//! Contract: as in `export`. The stream is the program's, and is only used in the call to which it
//! was passed.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{FILE, size_t, ssize_t};

use crate::cache;
use crate::next::next;
use crate::slots;
use crate::stream::WINDOW;
use crate::sys::{self, keeping_errno};

/// # Safety
/// The stream is open.
unsafe fn passed(file: *mut FILE, bytes: usize, write: bool) {
    // SAFETY: guaranteed by the caller; only reads the descriptor's number.
    let fd = unsafe { libc::fileno(file) };
    let Some(mut state) = slots::take(fd) else { return };
    state.stdio += bytes as u64;
    if state.stdio < WINDOW || !keeping_errno(|| state.is_regular(fd) && state.is_same(fd)) {
        return;
    }
    keeping_errno(|| {
        let passed = std::mem::take(&mut state.stdio);
        let Some(end) = sys::position(fd) else { return };
        let stream = if write { &mut state.writing } else { &mut state.reading };
        stream.begin(end.saturating_sub(passed));
        let Some(range) = stream.passed(passed.min(end)) else { return };
        if write {
            state.written_from = cache::drop_written(fd, &state.kept, range, state.written_from);
        } else {
            cache::drop_read(fd, &state.kept, range);
        }
    });
}

type Block = extern "C" fn(usize, size_t, size_t, *mut FILE) -> size_t;

/// Functions that move blocks.
macro_rules! blocks {
    ($($name:ident, $next:ident, $write:literal;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: usize, size: size_t, count: size_t, file: *mut FILE) -> size_t {
            let done = next!(else 0, $next, Block, buffer, size, count, file);
            // SAFETY: as in C.
            unsafe { passed(file, size.saturating_mul(done), $write) };
            done
        }
    )*};
}

blocks! {
    fread, FREAD, false;
    fread_unlocked, FREAD_UNLOCKED, false;
    fwrite, FWRITE, true;
    fwrite_unlocked, FWRITE_UNLOCKED, true;
}

type CheckedBlock = extern "C" fn(usize, size_t, size_t, size_t, *mut FILE) -> size_t;

/// The checked variants (`_FORTIFY_SOURCE`).
macro_rules! checked_blocks {
    ($($name:ident, $next:ident;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: usize, room: size_t, size: size_t, count: size_t, file: *mut FILE) -> size_t {
            let done = next!(else 0, $next, CheckedBlock, buffer, room, size, count, file);
            // SAFETY: as in C.
            unsafe { passed(file, size.saturating_mul(done), false) };
            done
        }
    )*};
}

checked_blocks! {
    __fread_chk, FREAD_CHK;
    __fread_unlocked_chk, FREAD_UNLOCKED_CHK;
}

type Line = extern "C" fn(*mut *mut c_char, *mut size_t, c_int, *mut FILE) -> ssize_t;

/// Functions that read up to a delimiter.
macro_rules! lines {
    ($($name:ident, $next:ident;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(line: *mut *mut c_char, room: *mut size_t, delimiter: c_int, file: *mut FILE) -> ssize_t {
            let done = next!($next, Line, line, room, delimiter, file);
            // SAFETY: as in C.
            unsafe { passed(file, usize::try_from(done).unwrap_or(0), false) };
            done
        }
    )*};
}

lines! {
    getdelim, GETDELIM;
    __getdelim, GETDELIM_INTERNAL;
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getline(
    line: *mut *mut c_char,
    room: *mut size_t,
    file: *mut FILE,
) -> ssize_t {
    let done = next!(
        GETLINE,
        extern "C" fn(*mut *mut c_char, *mut size_t, *mut FILE) -> ssize_t,
        line,
        room,
        file
    );
    // SAFETY: as in C.
    unsafe { passed(file, usize::try_from(done).unwrap_or(0), false) };
    done
}

/// Determines what is cached of a file before it is read.
fn opened(file: *mut FILE) -> *mut FILE {
    if !file.is_null() {
        keeping_errno(|| {
            // SAFETY: the C library has just opened it.
            let fd = unsafe { libc::fileno(file) };
            slots::close(fd);
            if let Some(mut state) = slots::take(fd) {
                state.is_regular(fd);
            }
        });
    }
    file
}

type Open = extern "C" fn(*const c_char, *const c_char) -> *mut FILE;

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    opened(next!(else ptr::null_mut(), FOPEN, Open, path, mode))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    opened(next!(else ptr::null_mut(), FOPEN64, Open, path, mode))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    opened(
        next!(else ptr::null_mut(), FDOPEN, extern "C" fn(c_int, *const c_char) -> *mut FILE, fd, mode),
    )
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    // SAFETY: the stream is still open.
    keeping_errno(|| unsafe { slots::close(libc::fileno(file)) });
    next!(FCLOSE, extern "C" fn(*mut FILE) -> c_int, file)
}
