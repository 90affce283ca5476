//! State that the C library touches between our fork handlers, while the pager is stopped: it must
//! not be far at that time.
//!
//! Contract: glibc's `fork` walks the streams (their locks are reinitialized in the child, before
//! any handler runs there) and copies the state of the name service switch. The streams are found
//! through glibc's own list, with its lock held until the fork is over. Of a stream only the fields
//! that glibc resets are read, at the offsets that its ABI fixes. The state of the name service is
//! allocated in the internal heap. In the child it also takes the thread that forked out of its list
//! of threads.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Offset and length of the part of a stream that is touched, and the offset of the pointer to its
/// lock.
const STREAM_LEN: usize = 0xd8;
const LOCK_AT: usize = 0x88;
const LOCK_LEN: usize = 16;

/// Offset of a thread's entry in glibc's list of threads from its thread pointer; 0: unknown.
static LIST_AT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
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
/// caller, and finds out where it has its list of threads.
pub fn settle() {
    // What it tells debuggers about the field: bits, elements, offset.
    // SAFETY: a NUL-terminated name; the C library's constant is an array of three words.
    unsafe {
        let field = libc::dlsym(libc::RTLD_DEFAULT, c"_thread_db_pthread_list".as_ptr());
        if !field.is_null() {
            LIST_AT.store(field.cast::<u32>().add(2).read() as usize, Ordering::Relaxed);
        }
    }
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

/// In a child: no thread holds the lock of the streams, whoever ran the fork handlers. glibc's `fork`
/// has reset it already; a program that runs the handlers around a `clone` of its own has not.
pub fn reset_streams() {
    // SAFETY: this is the only thread of the process.
    unsafe { _IO_list_resetlock() };
}

/// Calls `touched` with the addresses that glibc's `fork` writes in the child when it takes the
/// thread that forked out of its list of threads: the entries before and after it. These are in the
/// stacks of other threads, which the program may have allocated itself.
pub fn neighbours_in_thread_list(touched: &mut dyn FnMut(usize)) {
    let offset = LIST_AT.load(Ordering::Relaxed);
    if offset == 0 {
        return;
    }
    let entry = (crate::sys::thread_pointer() + offset) as *const [usize; 2];
    // SAFETY: the entry of this thread: two pointers, which are not followed, because the threads
    // that they lead to may end meanwhile.
    for neighbour in unsafe { entry.read_volatile() } {
        touched(neighbour);
        touched(neighbour + size_of::<[usize; 2]>() - 1);
    }
}

/// Allows other threads to open and close streams again.
pub fn unlock_streams() {
    // SAFETY: locked by this thread in `lock_streams`.
    unsafe { _IO_list_unlock() };
}
