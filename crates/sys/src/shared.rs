//! Words of memory that several processes share through a file.
//!
//! Contract: the mapping lives as long as the `SharedWords`, and is accessed with atomic operations
//! only.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::thread::futex::{self, Flags, Timespec};

use crate::territory;

/// A mapped array of 64-bit words.
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    count: usize,
    on_heap: bool,
}

// SAFETY: the words are atomics, made to be shared between threads.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes an empty `file` that long, and maps its `count` words. Its blocks are allocated now: when
    /// the file system has become full, a store to one that is not there would end the process.
    pub fn create(file: &File, count: usize) -> io::Result<SharedWords> {
        let len = (count * 8) as u64;
        match fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                file.write_all_at(&vec![0; count * 8], 0)?;
            }
            answer => answer?,
        }
        SharedWords::map(file, count)
    }

    /// Maps the first `count` words of `file`, which must be that long.
    pub fn map(file: &File, count: usize) -> io::Result<SharedWords> {
        let (place, fixed) = territory::place(count * 8);
        // SAFETY: a new mapping in our territory, or at an address of the kernel's choice, touches
        // nothing that is in use.
        let start = unsafe {
            mmap(
                place,
                count * 8,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | fixed,
                file.as_fd(),
                0,
            )?
        };
        SharedWords::wrap(start.cast(), count)
    }

    /// `count` words, all zero, that this process shares with those that are forked from it.
    pub fn inherited(count: usize) -> io::Result<SharedWords> {
        let (place, fixed) = territory::place(count * 8);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `map`.
        let start =
            unsafe { mmap_anonymous(place, count * 8, protection, MapFlags::SHARED | fixed)? };
        SharedWords::wrap(start.cast(), count)
    }

    /// `count` words, all zero, that no other process sees. On the heap: where the address space is
    /// limited, a mapping may not be possible.
    pub fn private(count: usize) -> io::Result<SharedWords> {
        let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let mut words = SharedWords::wrap(Box::into_raw(words).cast(), count)?;
        words.on_heap = true;
        Ok(words)
    }

    fn wrap(start: *mut AtomicU64, count: usize) -> io::Result<SharedWords> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, count, on_heap: false })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped while `self` lives; any bit pattern is an `AtomicU64`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }

    /// The first half of word `index`, for [`SharedWords::ring`] and [`SharedWords::wait`] only.
    fn bell(&self, index: usize) -> &AtomicU32 {
        let word: *const AtomicU64 = &self.words()[index];
        // SAFETY: an `AtomicU64` is large enough for an `AtomicU32` and aligned for it, and the
        // word is not accessed in any other way.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// Uses word `index` as a bell: wakes all threads, of any process, that wait for it.
    pub fn ring(&self, index: usize) {
        self.bell(index).fetch_add(1, Ordering::Release);
        let _ = futex::wake(self.bell(index), Flags::empty(), i32::MAX as u32);
    }

    /// How often word `index` was rung, modulo 2^32.
    pub fn rung(&self, index: usize) -> u32 {
        self.bell(index).load(Ordering::Acquire)
    }

    /// Sleeps until word `index` has been rung since it was `rung`, at most `timeout`. Spurious
    /// wake-ups are possible.
    pub fn wait(&self, index: usize, rung: u32, timeout: Duration) {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let _ = futex::wait(self.bell(index), Flags::empty(), rung, Some(&timeout));
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if self.on_heap {
            // SAFETY: from `Box::into_raw`, with this length; no references into it exist any more.
            drop(unsafe {
                Box::from_raw(ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.count))
            });
            return;
        }
        // SAFETY: no references into the mapping exist any more.
        unsafe { territory::unmap(self.start.as_ptr() as usize, self.count * 8) };
    }
}
