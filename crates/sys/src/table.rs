//! A large table whose entries are zero until they are first touched, and take memory only then.
//!
//! Contract: an entry type for which all-zero bytes are a value (`FromZeros`), stored in anonymous
//! memory that the kernel zeroes.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Index, IndexMut, Range};
use std::ptr::NonNull;

use hiroma_units::PAGE;
use zerocopy::FromZeros;

use crate::vm::{Access, Reservation};

/// A fixed number of entries, lazily backed.
pub struct LazyTable<T> {
    start: NonNull<T>,
    count: usize,
    /// One bit for each page of the table that may have been written.
    written: Vec<u64>,
    written_pages: usize,
    _memory: Reservation,
}

// SAFETY: owns its entries, like a Vec.
unsafe impl<T: Send> Send for LazyTable<T> {}
// SAFETY: a shared table gives shared entries only, like a Vec.
unsafe impl<T: Sync> Sync for LazyTable<T> {}

impl<T: FromZeros> LazyTable<T> {
    /// A table of `count` zero entries.
    pub fn new(count: usize) -> io::Result<LazyTable<T>> {
        assert!(align_of::<T>() <= PAGE);
        let len = (count * size_of::<T>()).next_multiple_of(PAGE).max(PAGE);
        let memory = Reservation::new(len, PAGE, Access::ReadWrite)?;
        let start = NonNull::new(memory.base() as *mut T).ok_or(io::ErrorKind::OutOfMemory)?;
        let written = vec![0; (len / PAGE).div_ceil(64)];
        Ok(LazyTable { start, count, written, written_pages: 0, _memory: memory })
    }

    /// Bytes of memory that the table takes: its written pages. Where it was only read, the kernel
    /// maps its zero page.
    pub fn resident_bytes(&self) -> usize {
        self.written_pages * PAGE
    }

    /// The first entry from `index` on that may have been written; [`LazyTable::len`] if there is none.
    pub fn next_written(&self, index: usize) -> usize {
        let first = index * size_of::<T>() / PAGE;
        let words = self.written.iter().enumerate().skip(first / 64);
        let mut pages = words.filter_map(|(number, &word)| {
            let before = if number == first / 64 { (1 << (first % 64)) - 1 } else { 0 };
            let word = word & !before;
            (word != 0).then(|| number * 64 + word.trailing_zeros() as usize)
        });
        let entry = pages.next().map(|page| page * PAGE / size_of::<T>());
        entry.map_or(self.count, |entry| entry.max(index).min(self.count))
    }

    /// Calls `change` for those entries of a range that may have been written and that `needs` is
    /// true of.
    pub fn for_each_written(
        &mut self,
        range: Range<usize>,
        needs: impl Fn(usize, &T) -> bool,
        mut change: impl FnMut(&mut T),
    ) {
        let mut index = self.next_written(range.start);
        while index < range.end {
            // One look at the bits for all entries that begin in this page.
            let page_end = (index * size_of::<T>() / PAGE + 1) * PAGE;
            let end = page_end.div_ceil(size_of::<T>()).min(range.end);
            for index in index..end {
                if needs(index, &self[index]) {
                    change(&mut self[index]);
                }
            }
            index = self.next_written(end);
        }
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
        let (first, end) = (index * size_of::<T>(), (index + 1) * size_of::<T>());
        for page in first / PAGE..end.div_ceil(PAGE) {
            let (word, bit) = (&mut self.written[page / 64], 1 << (page % 64));
            self.written_pages += usize::from(*word & bit == 0);
            *word |= bit;
        }
        // SAFETY: as in `index`, exclusive with the borrow of `self`.
        unsafe { self.start.add(index).as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_pages_take_memory() {
        let mut table = LazyTable::<[u64; 3]>::new(1 << 20).unwrap();
        assert_eq!(table[1 << 19], [0; 3]);
        assert_eq!(table.resident_bytes(), 0);
        // Entry 170 lies in two pages.
        for index in [0, 1, 170, 171, (1 << 20) - 1] {
            table[index][0] = 7;
        }
        assert_eq!(table.resident_bytes(), 3 * PAGE);
    }

    #[test]
    fn unwritten_entries_are_passed_over() {
        let mut table = LazyTable::<[u64; 3]>::new(1 << 20).unwrap();
        assert_eq!(table.next_written(0), 1 << 20);
        for index in [3, 170, 700_000] {
            table[index][0] = 7;
        }
        let mut found = Vec::new();
        let mut at = table.next_written(0);
        while at < table.len() {
            // No entry is passed over that shares a page with one that was written.
            found.push(at);
            at = table.next_written(at + 1);
        }
        assert!([3, 170, 700_000].iter().all(|index| found.contains(index)));
        assert!(found.len() < 1000, "{} entries", found.len());
        assert_eq!(table.next_written(1 << 20), 1 << 20);
    }
}
