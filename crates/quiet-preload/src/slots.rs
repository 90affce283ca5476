//! What is known about each descriptor.
//!
//! Contract: only the holder of a slot's lock uses it. No thread waits for the lock: a thread (or a
//! signal handler) that finds it taken proceeds without the slot.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::cache;
use crate::stream::{CachedBlocks, SMALL, Stream};
use crate::sys::{self, File};

/// Descriptors from this number on are left alone.
const SLOTS: usize = 1024;

/// How a descriptor is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Unknown,
    /// Not a file that can be streamed.
    Other,
    Regular,
}

/// One descriptor.
pub struct State {
    pub kind: Kind,
    pub file: File,
    pub kept: CachedBlocks,
    /// The position, if it is known.
    pub at: Option<u64>,
    pub reading: Stream,
    pub writing: Stream,
    /// Bytes that went through stdio since the last check.
    pub stdio: u64,
    /// The offset up to which no written data is left in the cache.
    pub written_from: u64,
    /// The kernel refused `RWF_DONTCACHE`.
    pub refused: bool,
}

pub struct Slot {
    taken: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: only the holder of the lock accesses the state.
unsafe impl Sync for Slot {}

/// The right to use a slot.
pub struct Held<'a>(&'a Slot);

static TABLE: [Slot; SLOTS] =
    [const { Slot { taken: AtomicBool::new(false), state: UnsafeCell::new(State::new()) } }; SLOTS];

/// 0: not read yet; otherwise the choice of the environment variable.
static METHOD: AtomicU8 = AtomicU8::new(0);
const AUTO: u8 = 1;
const FADVISE: u8 = 2;

/// Whether `RWF_DONTCACHE` may be tried.
pub fn may_dontcache() -> bool {
    let mut method = METHOD.load(Ordering::Relaxed);
    if method == 0 {
        // SAFETY: the name ends with a zero byte; the value is only read.
        let value = unsafe { libc::getenv(c"HIROMA_QUIET_METHOD".as_ptr()) };
        // SAFETY: a value of the environment ends with a zero byte.
        let fadvise = !value.is_null() && unsafe { std::ffi::CStr::from_ptr(value) } == c"fadvise";
        method = if fadvise { FADVISE } else { AUTO };
        METHOD.store(method, Ordering::Relaxed);
    }
    method == AUTO
}

impl State {
    const fn new() -> State {
        State {
            kind: Kind::Unknown,
            file: File { device: 0, inode: 0, size: 0 },
            kept: CachedBlocks::none(),
            at: None,
            stdio: 0,
            reading: Stream::new(),
            writing: Stream::new(),
            written_from: 0,
            refused: false,
        }
    }

    fn forget(&mut self) {
        // The list of kept blocks is large: it is only overwritten when needed.
        (self.kind, self.refused, self.written_from, self.stdio) = (Kind::Unknown, false, 0, 0);
        (self.at, self.reading, self.writing) = (None, Stream::new(), Stream::new());
    }

    /// Finds out what a descriptor is, if unknown. Returns whether it may be streamed.
    pub fn is_regular(&mut self, fd: c_int) -> bool {
        if self.kind == Kind::Unknown {
            self.kind = Kind::Other;
            if let Some(file) = sys::regular(fd) {
                // A file that is being written grows: its previous size does not matter.
                let small = file.size > 0 && file.size < SMALL;
                if let Some(kept) = (!small).then(|| cache::look(fd, file.size)).flatten() {
                    (self.kind, self.file, self.kept) = (Kind::Regular, file, kept);
                }
            }
        }
        self.kind == Kind::Regular
    }

    /// Whether the descriptor still refers to the same file: it may have been closed without our
    /// noticing.
    pub fn is_same(&mut self, fd: c_int) -> bool {
        let same = sys::regular(fd)
            .is_some_and(|now| (now.device, now.inode) == (self.file.device, self.file.inode));
        if !same {
            self.forget();
        }
        same
    }
}

/// The slot of a descriptor, if it is not in use.
pub fn take(fd: c_int) -> Option<Held<'static>> {
    let slot = TABLE.get(usize::try_from(fd).ok()?)?;
    slot.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
    Some(Held(slot))
}

/// To be called before the descriptor is closed: drops what is left behind its streams, and forgets
/// it.
pub fn close(fd: c_int) {
    let Some(mut state) = take(fd) else { return };
    if state.kind == Kind::Regular {
        let same = state.is_same(fd);
        if let Some(range) = state.reading.rest().filter(|_| same) {
            cache::drop_read(fd, &state.kept, range);
        }
        if let Some(range) = state.writing.rest().filter(|_| same) {
            sys::start_write_back(fd, range.start, range.end - range.start);
            let from = state.written_from.min(range.start);
            cache::drop_read(fd, &state.kept, from..range.end);
        }
    }
    state.forget();
}

/// To be called before the descriptors of a range are closed.
pub fn close_all(first: c_int, last: c_int) {
    (first.max(0)..=last.min(SLOTS as c_int - 1)).for_each(close);
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        // SAFETY: the lock is held.
        unsafe { &*self.0.state.get() }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: the lock is held, and `self` is borrowed exclusively.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_has_one_user_and_never_blocks() {
        let held = take(900).unwrap();
        assert!(take(900).is_none());
        drop(held);
        assert!(take(900).is_some());
        assert!(take(-1).is_none() && take(1 << 20).is_none());
    }

    #[test]
    fn sockets_and_small_files_are_not_streamed() {
        use std::os::fd::AsRawFd;
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!take(reader.as_raw_fd()).unwrap().is_regular(reader.as_raw_fd()));
        let mut small = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut small, b"small").unwrap();
        assert!(!take(small.as_raw_fd()).unwrap().is_regular(small.as_raw_fd()));
    }
}
