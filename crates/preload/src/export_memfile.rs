//! `read`, `write` and their variants, for programs that access their own memory through
//! `/proc/self/mem`, as some compilers do to fill code that is not writable.
//!
//! Contract: C's, cancellation points included. The kernel does not wait for a far page there: it answers
//! `EIO` (`mem_rw` in `fs/proc/base.c`), or stops in front of it. The page is fetched, and the call is
//! repeated. (`read` and those with vectors may end early, as anywhere.)
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use hiroma_units::PAGE;
use libc::iovec;

use crate::export_mmap::managed;
use crate::{scope, sys};

type Access = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;

/// Times that a page may leave again before the kernel gets to it.
const TRIES: usize = 1000;

struct Call {
    name: &'static CStr,
    number: c_long,
    next: AtomicPtr<c_void>,
}

static READ_AT: Call = Call::new(c"pread64", libc::SYS_pread64);
static WRITE_AT: Call = Call::new(c"pwrite64", libc::SYS_pwrite64);
static READ_VECTOR_AT: Call = Call::new(c"preadv64", libc::SYS_preadv);
static WRITE_VECTOR_AT: Call = Call::new(c"pwritev64", libc::SYS_pwritev);
static READ: Call = Call::new(c"read", libc::SYS_read);
static WRITE: Call = Call::new(c"write", libc::SYS_write);
static READ_VECTOR: Call = Call::new(c"readv", libc::SYS_readv);
static WRITE_VECTOR: Call = Call::new(c"writev", libc::SYS_writev);

impl Call {
    const fn new(name: &'static CStr, number: c_long) -> Call {
        Call { name, number, next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn look_up(&self) {
        // SAFETY: a NUL-terminated string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.next.store(address, Ordering::Relaxed);
    }

    /// Functions without the last argument do not look at it.
    ///
    /// # Safety
    /// As the function's in C.
    #[inline]
    unsafe fn once(&self, fd: c_int, buffer: *mut c_void, len: usize, at: i64) -> isize {
        let next = self.next.load(Ordering::Relaxed);
        // The pager's threads are not cancelled, and the library may not be settled yet.
        if next.is_null() || scope::is_internal() {
            let args = [fd as usize, buffer as usize, len, at as usize, 0, 0];
            // SAFETY: guaranteed by the caller.
            return unsafe { sys::call(self.number, args) }.map_or_else(
                |error| {
                    sys::set_errno(error.0);
                    -1
                },
                |done| done as isize,
            );
        }
        // SAFETY: the C library's function of this name has this type; the rest as above.
        unsafe { mem::transmute::<*mut c_void, Access>(next)(fd, buffer, len, at) }
    }

    /// `at`: where in the file; `None`: at its offset.
    ///
    /// # Safety
    /// As the function's in C.
    #[inline]
    unsafe fn run(&self, fd: c_int, buffer: *mut c_void, len: usize, at: Option<i64>) -> isize {
        // SAFETY: guaranteed by the caller.
        let done = unsafe { self.once(fd, buffer, len, at.unwrap_or(0)) };
        if done == -1 && sys::errno() == libc::EIO && !scope::is_internal() {
            // SAFETY: as above.
            return unsafe { self.again(fd, buffer, len, at) };
        }
        done
    }

    /// After an `EIO`.
    ///
    /// # Safety
    /// As the function's in C.
    #[cold]
    unsafe fn again(&self, fd: c_int, buffer: *mut c_void, len: usize, at: Option<i64>) -> isize {
        for _ in 0..TRIES {
            // SAFETY: changes nothing.
            let offset = || unsafe {
                sys::call(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]).ok()
            };
            let place = at.map(|at| at as usize).or_else(offset);
            let page = place.map(|place| place & !(PAGE - 1));
            if page.is_none_or(|page| managed(page, PAGE).is_none() || !fetch(page)) {
                sys::set_errno(libc::EIO);
                return -1;
            }
            // SAFETY: guaranteed by the caller.
            let done = unsafe { self.once(fd, buffer, len, at.unwrap_or(0)) };
            if done != -1 || sys::errno() != libc::EIO {
                return done;
            }
        }
        -1
    }

    /// With one buffer and at a place: all of what can be accessed.
    ///
    /// # Safety
    /// As the function's in C.
    #[inline]
    unsafe fn run_at(&self, fd: c_int, buffer: *mut c_void, len: usize, at: i64) -> isize {
        // SAFETY: guaranteed by the caller.
        let mut done = unsafe { self.run(fd, buffer, len, Some(at)) };
        while done > 0 && (done as usize) < len && !scope::is_internal() {
            let (next, left) = (at + done as i64, len - done as usize);
            // Files have no such places.
            if next as usize % PAGE != 0 || managed(next as usize, PAGE).is_none() {
                break;
            }
            let errno = sys::errno();
            // SAFETY: the rest of the buffer.
            let more = unsafe { self.run(fd, buffer.byte_add(done as usize), left, Some(next)) };
            if more <= 0 {
                sys::set_errno(errno);
                break;
            }
            done += more;
        }
        done
    }
}

/// Fetches a page, for writing if it may be written to.
fn fetch(page: usize) -> bool {
    [libc::MADV_POPULATE_WRITE, libc::MADV_POPULATE_READ].into_iter().any(|advice| {
        // SAFETY: populating changes no content.
        unsafe { sys::call(libc::SYS_madvise, [page, PAGE, advice as usize, 0, 0, 0]) }.is_ok()
    })
}

/// Looks the functions up. Threads of the pager must not: the dynamic linker has a lock.
pub fn settle() {
    let all = [&READ_AT, &WRITE_AT, &READ_VECTOR_AT, &WRITE_VECTOR_AT];
    all.iter().chain(&[&READ, &WRITE, &READ_VECTOR, &WRITE_VECTOR]).for_each(|call| call.look_up());
}

macro_rules! place {
    () => {
        None
    };
    ($at:ident) => {
        $at.into()
    };
}

macro_rules! export {
    ($($name:ident: $call:ident.$how:ident($($at:ident: $type:ty)?), $buffer:ty, $len:ty;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buffer: $buffer, len: $len $(, $at: $type)?) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { $call.$how(fd, buffer.cast_mut().cast(), len as usize, place!($($at)?)) }
        }
    )*};
}

export! {
    pread: READ_AT.run_at(at: i64), *const c_void, usize;
    pread64: READ_AT.run_at(at: i64), *const c_void, usize;
    pwrite: WRITE_AT.run_at(at: i64), *const c_void, usize;
    pwrite64: WRITE_AT.run_at(at: i64), *const c_void, usize;
    preadv: READ_VECTOR_AT.run(at: i64), *const iovec, c_int;
    preadv64: READ_VECTOR_AT.run(at: i64), *const iovec, c_int;
    pwritev: WRITE_VECTOR_AT.run(at: i64), *const iovec, c_int;
    pwritev64: WRITE_VECTOR_AT.run(at: i64), *const iovec, c_int;
    read: READ.run(), *const c_void, usize;
    write: WRITE.run(), *const c_void, usize;
    readv: READ_VECTOR.run(), *const iovec, c_int;
    writev: WRITE_VECTOR.run(), *const iovec, c_int;
}
