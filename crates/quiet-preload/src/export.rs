//! The C library's functions that move file data, under the names that programs call.
//!
//! Contract: C's, as the C library fulfils it, including `errno`. Pointers are the program's and
//! are passed to the kernel unchanged. No function unwinds, allocates, or waits for a lock.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use libc::{iovec, off_t, size_t, ssize_t};

use crate::cache;
use crate::next::next;
use crate::slots::{self, State};
use crate::stream::Stream;
use crate::sys::{self, DONTCACHE, keeping_errno};

/// Smaller writes are not worth a write-back each.
const WRITE_MIN: usize = 64 << 10;
/// Maximum number of bytes that the kernel copies between two files in one call: between calls,
/// what is behind is dropped.
const CHUNK: usize = 16 << 20;

/// One end of a transfer: a descriptor, and an offset unless the descriptor's position is used.
#[derive(Clone, Copy)]
struct End {
    fd: c_int,
    offset: Option<u64>,
    write: bool,
}

impl End {
    fn stream<'a>(&self, state: &'a mut State) -> &'a mut Stream {
        if self.write { &mut state.writing } else { &mut state.reading }
    }

    /// Determines where the next transfer begins, and returns whether it belongs to a stream; none
    /// if the descriptor must be left alone.
    fn begin(&self, state: &mut State) -> Option<bool> {
        keeping_errno(|| {
            if !state.is_regular(self.fd) {
                return None;
            }
            let at = match self.offset {
                Some(offset) => offset,
                None => {
                    if state.at.is_none() {
                        state.at = sys::position(self.fd);
                    }
                    state.at?
                }
            };
            Some(self.stream(state).begin(at))
        })
    }

    /// Records that `bytes` were transferred.
    fn passed(&self, state: &mut State, bytes: isize) {
        let Ok(bytes) = u64::try_from(bytes) else { return };
        if self.offset.is_none() {
            state.at = state.at.map(|at| at + bytes);
        }
        let Some(range) = self.stream(state).passed(bytes) else { return };
        keeping_errno(|| {
            // Other processes can move the position of a shared descriptor, or it may have become
            // another file without our noticing.
            let moved = self.offset.is_none() && sys::position(self.fd) != state.at;
            if moved || !state.is_same(self.fd) {
                state.at = None;
                *self.stream(state) = Stream::new();
            } else if self.write {
                state.written_from =
                    cache::drop_written(self.fd, &state.kept, range, state.written_from);
            } else {
                cache::drop_read(self.fd, &state.kept, range);
            }
        });
    }
}

/// Reads or writes these vectors. `plain` is the C library's function.
///
/// # Safety
/// The vectors are the program's, as it passed them.
unsafe fn moved(
    end: End,
    vectors: *const iovec,
    count: c_int,
    bytes: usize,
    plain: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(mut state) = slots::take(end.fd) else { return plain() };
    let Some(streaming) = end.begin(&mut state) else {
        drop(state);
        return plain();
    };
    let past_cache =
        streaming && !state.refused && slots::may_dontcache() && (!end.write || bytes >= WRITE_MIN);
    let done = if past_cache {
        let offset = end.offset.map_or(-1, |offset| offset as i64);
        let before = sys::errno();
        // SAFETY: guaranteed by the caller.
        let done = unsafe { sys::transfer(end.write, end.fd, vectors, count, offset, DONTCACHE) };
        if done < 0 && matches!(sys::errno(), libc::EOPNOTSUPP | libc::ENOSYS) {
            sys::set_errno(before);
            state.refused = true;
            plain()
        } else {
            done
        }
    } else {
        plain()
    };
    end.passed(&mut state, done);
    done
}

/// # Safety
/// As in C.
unsafe fn one(end: End, buffer: usize, bytes: size_t, plain: impl FnOnce() -> ssize_t) -> ssize_t {
    let vector = iovec { iov_base: buffer as *mut _, iov_len: bytes };
    // SAFETY: guaranteed by the caller.
    unsafe { moved(end, &raw const vector, 1, bytes, plain) }
}

/// # Safety
/// As in C.
unsafe fn many(
    end: End,
    vectors: *const iovec,
    count: c_int,
    plain: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if vectors.is_null() || !(1..=libc::UIO_MAXIOV).contains(&count) {
        return plain();
    }
    // SAFETY: the program states that there are `count` vectors; the kernel would read them too.
    let bytes = unsafe { std::slice::from_raw_parts(vectors, count as usize) }
        .iter()
        .fold(0, |sum: usize, one| sum.saturating_add(one.iov_len));
    // SAFETY: guaranteed by the caller.
    unsafe { moved(end, vectors, count, bytes, plain) }
}

fn at(fd: c_int, offset: off_t, write: bool) -> End {
    // The kernel refuses negative offsets; here one must not be mistaken for the position.
    End { fd, offset: Some(offset.max(0) as u64), write }
}

fn here(fd: c_int, write: bool) -> End {
    End { fd, offset: None, write }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: usize, bytes: size_t) -> ssize_t {
    let plain = || next!(READ, extern "C" fn(c_int, usize, size_t) -> ssize_t, fd, buffer, bytes);
    // SAFETY: as in C.
    unsafe { one(here(fd, false), buffer, bytes, plain) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: usize,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    if bytes > room {
        return next!(
            READ_CHK,
            extern "C" fn(c_int, usize, size_t, size_t) -> ssize_t,
            fd,
            buffer,
            bytes,
            room
        );
    }
    // SAFETY: as in C.
    unsafe { read(fd, buffer, bytes) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: usize, bytes: size_t) -> ssize_t {
    let plain = || next!(WRITE, extern "C" fn(c_int, usize, size_t) -> ssize_t, fd, buffer, bytes);
    // SAFETY: as in C.
    unsafe { one(here(fd, true), buffer, bytes, plain) }
}

/// Functions that take an offset and one buffer.
macro_rules! positioned {
    ($($name:ident, $next:ident, $write:literal;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buffer: usize, bytes: size_t, offset: off_t) -> ssize_t {
            let plain = || next!($next, extern "C" fn(c_int, usize, size_t, off_t) -> ssize_t, fd, buffer, bytes, offset);
            if offset < 0 {
                return plain();
            }
            // SAFETY: as in C.
            unsafe { one(at(fd, offset, $write), buffer, bytes, plain) }
        }
    )*};
}

positioned! {
    pread, PREAD, false;
    pread64, PREAD64, false;
    pwrite, PWRITE, true;
    pwrite64, PWRITE64, true;
}

/// Functions that take vectors.
macro_rules! vectored {
    ($($name:ident, $next:ident, $write:literal;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
            let plain = || next!($next, extern "C" fn(c_int, *const iovec, c_int) -> ssize_t, fd, vectors, count);
            // SAFETY: as in C.
            unsafe { many(here(fd, $write), vectors, count, plain) }
        }
    )*};
}

vectored! {
    readv, READV, false;
    writev, WRITEV, true;
}

/// Functions that take an offset and vectors.
macro_rules! positioned_vectored {
    ($($name:ident, $next:ident, $write:literal;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t {
            let plain = || next!($next, extern "C" fn(c_int, *const iovec, c_int, off_t) -> ssize_t, fd, vectors, count, offset);
            if offset < 0 {
                return plain();
            }
            // SAFETY: as in C.
            unsafe { many(at(fd, offset, $write), vectors, count, plain) }
        }
    )*};
}

positioned_vectored! {
    preadv, PREADV, false;
    preadv64, PREADV64, false;
    pwritev, PWRITEV, true;
    pwritev64, PWRITEV64, true;
}

/// A transfer within the kernel, limited to [`CHUNK`] bytes if it is streamed: a transfer may
/// always return less than was requested.
fn within(from: End, to: End, bytes: size_t, copy: impl FnOnce(size_t) -> ssize_t) -> ssize_t {
    let mut states =
        [slots::take(from.fd), if to.fd == from.fd { None } else { slots::take(to.fd) }];
    let mut streamed = false;
    for (state, end) in states.iter_mut().zip([from, to]) {
        if state.as_mut().is_some_and(|state| end.begin(state).is_none()) {
            *state = None;
        }
        streamed |= state.is_some();
    }
    let done = copy(if streamed { bytes.min(CHUNK) } else { bytes });
    for (state, end) in states.iter_mut().zip([from, to]) {
        if let Some(state) = state {
            end.passed(state, done);
        }
    }
    done
}

/// # Safety
/// `offset` is null or points to an offset.
unsafe fn given(fd: c_int, offset: *const off_t, write: bool) -> End {
    // SAFETY: guaranteed by the caller.
    let offset = unsafe { offset.as_ref() };
    End { fd, offset: offset.map(|&offset| offset.max(0) as u64), write }
}

type Copy = extern "C" fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copy_file_range(
    from: c_int,
    off_from: *mut off_t,
    to: c_int,
    off_to: *mut off_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: as in C.
    let ends = unsafe { (given(from, off_from, false), given(to, off_to, true)) };
    within(ends.0, ends.1, bytes, |bytes| {
        next!(COPY_FILE_RANGE, Copy, from, off_from, to, off_to, bytes, flags)
    })
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    off_from: *mut off_t,
    to: c_int,
    off_to: *mut off_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: as in C.
    let ends = unsafe { (given(from, off_from, false), given(to, off_to, true)) };
    within(ends.0, ends.1, bytes, |bytes| {
        next!(SPLICE, Copy, from, off_from, to, off_to, bytes, flags)
    })
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: as in C.
    let end = unsafe { given(from, offset, false) };
    let send = |bytes| {
        next!(
            SENDFILE,
            extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t,
            to,
            from,
            offset,
            bytes
        )
    };
    within(end, here(to, true), bytes, send)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: the same function on 64-bit machines.
    unsafe { sendfile(to, from, offset, bytes) }
}

/// Discards the known position, which is about to change.
fn forget_position(fd: c_int) {
    if let Some(mut state) = slots::take(fd) {
        state.at = None;
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    forget_position(fd);
    next!(LSEEK, extern "C" fn(c_int, off_t, c_int) -> off_t, fd, offset, whence)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: the same function on 64-bit machines.
    unsafe { lseek(fd, offset, whence) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    keeping_errno(|| slots::close(fd));
    next!(CLOSE, extern "C" fn(c_int) -> c_int, fd)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old != new {
        keeping_errno(|| slots::close(new));
    }
    next!(DUP2, extern "C" fn(c_int, c_int) -> c_int, old, new)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old != new {
        keeping_errno(|| slots::close(new));
    }
    next!(DUP3, extern "C" fn(c_int, c_int, c_int) -> c_int, old, new, flags)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With flags, the descriptors may stay open for now.
    if flags == 0 {
        let number = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
        keeping_errno(|| slots::close_all(number(first), number(last)));
    }
    next!(CLOSE_RANGE, extern "C" fn(c_uint, c_uint, c_int) -> c_int, first, last, flags)
}

/// Handles the descriptors that the program leaves open when it ends.
extern "C" fn at_end() {
    keeping_errno(|| slots::close_all(0, c_int::MAX));
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;
