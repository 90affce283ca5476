//! State that the C library touches between our fork handlers, while the pager is stopped: it must
//! not be far at that time.
//!
//! Contract: glibc's `fork` walks the streams (their locks are reinitialized in the child, before
//! any handler runs there) and copies the state of the name service switch. The streams are found
//! through glibc's own list, with its lock held until the fork is over. Of a stream only the fields
//! that glibc resets are read, at the offsets that its ABI fixes. The state of the name service is
//! allocated in the internal heap.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// Offset and length of the part of a stream that is touched, and the offset of the pointer to its
/// lock.
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
    // Mail aliases: they are not used in practice, and no module has to be loaded for them.
    let mut alias = MaybeUninit::<[usize; 8]>::zeroed();
    let mut buffer: [c_char; 256] = [0; 256];
    let mut result = std::ptr::null_mut();
    // SAFETY: there is room for a `struct aliasent` (four words), and the buffer has the given
    // length.
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

/// Prevents other threads from opening and closing streams, until [`unlock_streams`] or until the
/// child starts in glibc's `fork`. Calls `touched` with the addresses of the present streams.
pub fn lock_streams(touched: &mut dyn FnMut(usize)) {
    // SAFETY: with the list's lock held no stream is removed from the list, and only removed
    // streams are freed. The pager is running, so far streams are fetched as they are read.
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

/// Allows other threads to open and close streams again.
pub fn unlock_streams() {
    // SAFETY: locked by this thread in `lock_streams`.
    unsafe { _IO_list_unlock() };
}
