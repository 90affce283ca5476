//! The C library's functions that ours call, looked up when this library is loaded: a signal
//! handler must not have to look one up.
#![allow(unsafe_code)]

use crate::sys::Next;

macro_rules! nexts {
    ($($name:ident: $text:literal;)*) => {
        $(pub static $name: Next = Next::new($text);)*

        extern "C" fn at_start() {
            $($name.get();)*
        }
    };
}

nexts! {
    READ_CHK: c"__read_chk";
    CLOSE: c"close";
    CLOSE_RANGE: c"close_range";
    COPY_FILE_RANGE: c"copy_file_range";
    DUP2: c"dup2";
    DUP3: c"dup3";
    LSEEK: c"lseek";
    PREAD: c"pread";
    PREAD64: c"pread64";
    PREADV: c"preadv";
    PREADV64: c"preadv64";
    PWRITE: c"pwrite";
    PWRITE64: c"pwrite64";
    PWRITEV: c"pwritev";
    PWRITEV64: c"pwritev64";
    READ: c"read";
    READV: c"readv";
    SENDFILE: c"sendfile";
    SPLICE: c"splice";
    WRITE: c"write";
    WRITEV: c"writev";
    FREAD: c"fread";
    FREAD_UNLOCKED: c"fread_unlocked";
    FREAD_CHK: c"__fread_chk";
    FREAD_UNLOCKED_CHK: c"__fread_unlocked_chk";
    FWRITE: c"fwrite";
    FWRITE_UNLOCKED: c"fwrite_unlocked";
    GETLINE: c"getline";
    GETDELIM: c"getdelim";
    GETDELIM_INTERNAL: c"__getdelim";
    FCLOSE: c"fclose";
    FOPEN: c"fopen";
    FOPEN64: c"fopen64";
    FDOPEN: c"fdopen";
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// Calls the C library's function of this name and type; returns `$missing` if it has none.
macro_rules! next {
    ($name:ident, $type:ty, $($arg:expr),*) => {
        crate::next::next!(else -1, $name, $type, $($arg),*)
    };
    (else $missing:expr, $name:ident, $type:ty, $($arg:expr),*) => {{
        let found = crate::next::$name.get();
        if found.is_null() {
            crate::sys::set_errno(libc::ENOSYS);
            $missing
        } else {
            // SAFETY: the C library's function of this name has this type.
            let found = unsafe { std::mem::transmute::<*mut std::ffi::c_void, $type>(found) };
            found($($arg),*)
        }
    }};
}
pub(crate) use next;
