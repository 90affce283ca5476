//! `pread` and `pwrite`, for programs that access their own memory through `/proc/self/mem`, as
//! some compilers do to fill code that is not writable.
//!
//! Contract: C's, cancellation points included. The kernel does not wait for a far page there, and
//! answers `EIO` (`mem_rw` in `fs/proc/base.c`); the page is fetched, and the call is repeated.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use hiroma_units::PAGE;

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

static READ: Call = Call::new(c"pread64", libc::SYS_pread64);
static WRITE: Call = Call::new(c"pwrite64", libc::SYS_pwrite64);

impl Call {
    const fn new(name: &'static CStr, number: c_long) -> Call {
        Call { name, number, next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn look_up(&self) {
        // SAFETY: a NUL-terminated string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.next.store(address, Ordering::Relaxed);
    }

    /// # Safety
    /// As the function's in C.
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

    /// # Safety
    /// As the function's in C.
    unsafe fn run(&self, fd: c_int, buffer: *mut c_void, len: usize, at: i64) -> isize {
        // SAFETY: guaranteed by the caller.
        let mut done = unsafe { self.once(fd, buffer, len, at) };
        for _ in 0..TRIES {
            if done != -1 || sys::errno() != libc::EIO || scope::is_internal() {
                break;
            }
            let page = at as usize & !(PAGE - 1);
            if managed(page, PAGE).is_none() || !fetch(page) {
                sys::set_errno(libc::EIO);
                break;
            }
            // SAFETY: guaranteed by the caller.
            done = unsafe { self.once(fd, buffer, len, at) };
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
    READ.look_up();
    WRITE.look_up();
}

macro_rules! export {
    ($($name:ident: $call:ident, $buffer:ty;)*) => {$(
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buffer: $buffer, len: usize, at: i64) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { $call.run(fd, buffer.cast_mut(), len, at) }
        }
    )*};
}

export! {
    pread: READ, *const c_void;
    pread64: READ, *const c_void;
    pwrite: WRITE, *const c_void;
    pwrite64: WRITE, *const c_void;
}
