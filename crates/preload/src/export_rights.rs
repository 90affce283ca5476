//! Functions by which a process gives up rights, or sees other files: a pager that starts later
//! could lack what it needs, so it starts before.
//!
//! Contract: C's. Nothing unwinds.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;

use libc::{gid_t, uid_t};

use crate::{nursery, sys};

/// The next function with this name, which is the C library's.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        sys::set_errno(libc::ENOSYS);
    }
    found
}

macro_rules! before {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            /// As in C.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                nursery::start_now();
                let found = next($symbol);
                if found.is_null() {
                    return -1;
                }
                // SAFETY: the C library's function of this name has this type; the arguments are
                // the program's.
                unsafe {
                    let real = mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(found);
                    real($($arg),*)
                }
            }
        )*
    };
}

before! {
    setuid = c"setuid" (user: uid_t);
    seteuid = c"seteuid" (user: uid_t);
    setreuid = c"setreuid" (real_user: uid_t, user: uid_t);
    setresuid = c"setresuid" (real_user: uid_t, user: uid_t, saved: uid_t);
    setfsuid = c"setfsuid" (user: uid_t);
    setgid = c"setgid" (group: gid_t);
    setegid = c"setegid" (group: gid_t);
    setregid = c"setregid" (real_group: gid_t, group: gid_t);
    setresgid = c"setresgid" (real_group: gid_t, group: gid_t, saved: gid_t);
    setfsgid = c"setfsgid" (group: gid_t);
    chroot = c"chroot" (path: *const c_char);
    unshare = c"unshare" (flags: c_int);
    setns = c"setns" (fd: c_int, kind: c_int);
    capset = c"capset" (header: *mut c_void, data: *const c_void);
}
