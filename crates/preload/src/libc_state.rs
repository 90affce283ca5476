//! What the C library touches between our handlers of a fork, while the pager stands still: it must
//! not be far then.
//!
//! Contract: glibc's `fork` goes through the streams (their locks are made new in the child, before
//! any handler runs there) and copies the state of the name service switch. The streams are found
//! through glibc's own list, with its lock held until the fork is over; of a stream only what glibc
//! resets is read, at the offsets that its ABI has fixed for good. The state of the name service is
//! made to lie in the internal heap.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// Offset and length of what is touched in a stream, and where its lock's address is.
const STREAM_LEN: usize = 0xd8;
const LOCK_AT: usize = 0x88;
const LOCK_LEN: usize = 16;

unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_iter_begin() -> *mut c_void;
    fn _IO_iter_end() -> *mut c_void;
    fn _IO_iter_next(iterator: *mut c_void) -> *mut c_void;
    fn _IO_iter_file(iterator: *mut c_void) -> *mut u8;
    fn getaliasbyname_r(
        name: *const c_char,
        alias: *mut c_void,
        buffer: *mut c_char,
        len: usize,
        result: *mut *mut c_void,
    ) -> c_int;
}

/// Makes the C library allocate the state of the name service now, in the internal scope of the
/// caller.
pub fn settle() {
    // Mail aliases: nobody has them, nobody asks for them, and no module has to be loaded for them.
    let mut alias = MaybeUninit::<[usize; 8]>::zeroed();
    let mut buffer: [c_char; 256] = [0; 256];
    let mut result = std::ptr::null_mut();
    // SAFETY: room for a `struct aliasent` (four words) and a buffer as long as we say.
    unsafe {
        getaliasbyname_r(
            c"hiroma".as_ptr(),
            alias.as_mut_ptr().cast(),
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut result,
        )
    };
}

/// Keeps other threads from opening and closing streams, until [`unlock_streams`] or the child's
/// start in glibc's `fork`; and where the streams are that there are now.
pub fn lock_streams(touched: &mut dyn FnMut(usize)) {
    // SAFETY: with the list's lock held no stream is taken off the list, and only those are freed.
    // The pager is running, so that those that are far are fetched as we read.
    unsafe {
        _IO_list_lock();
        let mut at = _IO_iter_begin();
        while at != _IO_iter_end() {
            let stream = _IO_iter_file(at);
            let lock = stream.add(LOCK_AT).cast::<usize>().read();
            touched(stream as usize);
            touched(stream as usize + STREAM_LEN - 1);
            if lock != 0 {
                touched(lock);
                touched(lock + LOCK_LEN - 1);
            }
            at = _IO_iter_next(at);
        }
    }
}

/// Lets the others go on.
pub fn unlock_streams() {
    // SAFETY: locked by this thread in `lock_streams`.
    unsafe { _IO_list_unlock() };
}
