//! Byte buffers in the staging area, which the pager lends to a store while a request is under way.
//!
//! Contract: a `FrameBuf` is made once for a range of private, mapped memory, which nothing else
//! reads or writes until the `FrameBuf` is returned. The pager's frame table guarantees that: a
//! frame is lent to one request at a time.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::slice;

/// A range of staging memory on loan: readable and writable by its holder alone.
#[derive(Debug)]
pub struct FrameBuf {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to the holder alone (see the contract above), so it may be sent to
// another thread with it.
unsafe impl Send for FrameBuf {}

impl FrameBuf {
    /// Lends out `len` bytes from `start`.
    ///
    /// # Safety
    /// The bytes are mapped, readable and writable, and nothing else uses them while the `FrameBuf`
    /// exists.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        FrameBuf { start, len }
    }

    /// A page-aligned buffer of zeros that is never freed: for tests and measurements.
    pub fn leak(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 4096).expect("a sane length");
        // SAFETY: the layout is not empty; memory of our own that is never freed meets the contract
        // of `new`.
        unsafe {
            FrameBuf::new(
                NonNull::new(alloc_zeroed(layout)).expect("memory for a buffer").as_ptr(),
                len,
            )
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub fn addr(&self) -> usize {
        self.start as usize
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the contract of `new`; shared with the borrow of `self`.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    /// The bytes, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the contract of `new`; exclusive with the borrow of `self`.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Splits the buffer in two: the first `mid` bytes, and the rest.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "{mid} lies behind the end of {} bytes", self.len);
        // SAFETY: the parts do not overlap, and together are the whole buffer.
        unsafe {
            (FrameBuf::new(self.start, mid), FrameBuf::new(self.start.add(mid), self.len - mid))
        }
    }

    /// Joins what `split_at` split: `rest` begins where this buffer ends.
    pub fn join(self, rest: Self) -> Self {
        assert_eq!(self.addr() + self.len, rest.addr(), "the parts are neighbours");
        // SAFETY: both parts belong to the holder alone, and they are adjacent.
        unsafe { FrameBuf::new(self.start, self.len + rest.len) }
    }
}
