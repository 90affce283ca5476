//! A large table whose entries are zero until they are first touched, and take memory only then.
//!
//! Contract: an entry type for which all-zero bytes are a value (`FromZeros`), stored in anonymous
//! memory that the kernel zeroes.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Index, IndexMut};
use std::ptr::NonNull;

use zerocopy::FromZeros;

use crate::vm::{Access, Reservation};

/// A fixed number of entries, lazily backed.
pub struct LazyTable<T> {
    start: NonNull<T>,
    count: usize,
    _memory: Reservation,
}

// SAFETY: owns its entries, like a Vec.
unsafe impl<T: Send> Send for LazyTable<T> {}
// SAFETY: a shared table gives shared entries only, like a Vec.
unsafe impl<T: Sync> Sync for LazyTable<T> {}

impl<T: FromZeros> LazyTable<T> {
    /// A table of `count` zero entries.
    pub fn new(count: usize) -> io::Result<LazyTable<T>> {
        assert!(align_of::<T>() <= 4096);
        let len = (count * size_of::<T>()).next_multiple_of(4096).max(4096);
        let memory = Reservation::new(len, 4096, Access::ReadWrite)?;
        let start = NonNull::new(memory.base() as *mut T).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(LazyTable { start, count, _memory: memory })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<T: FromZeros> Index<usize> for LazyTable<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        assert!(index < self.count, "entry {index} of {}", self.count);
        // SAFETY: in bounds; zeroed memory is a `T`, and so is everything written since.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl<T: FromZeros> IndexMut<usize> for LazyTable<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        assert!(index < self.count, "entry {index} of {}", self.count);
        // SAFETY: as in `index`, exclusive with the borrow of `self`.
        unsafe { self.start.add(index).as_mut() }
    }
}
