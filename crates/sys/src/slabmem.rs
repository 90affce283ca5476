//! A large area of private memory that is filled and emptied in pieces, from several threads.
//!
//! Contract: the mapping lives as long as the `SlabMemory`. Its content is accessed with relaxed
//! atomic operations on words only, so threads that use the same bytes at the same time get mixed
//! words but nothing worse; the caller decides which thread may use which bytes when. The memory is
//! `MAP_PRIVATE`: a child of a fork has its own copy.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::territory;

const WORD: usize = 8;

/// Mapped memory, all zeros until written, that takes memory only where it is used.
pub struct SlabMemory {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the words are atomics, made to be shared between threads.
unsafe impl Send for SlabMemory {}
// SAFETY: as above.
unsafe impl Sync for SlabMemory {}

impl SlabMemory {
    /// Reserves `len` bytes (a multiple of the page size) of address space.
    pub fn reserve(len: usize) -> io::Result<SlabMemory> {
        let (place, fixed) = territory::place(len);
        // SAFETY: a new mapping in our territory, or at an address of the kernel's choice, touches
        // nothing that is in use.
        let start = unsafe {
            mmap_anonymous(
                place,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | fixed,
            )?
        };
        // SAFETY: our own mapping of that length; the advice changes no content. Huge pages would
        // take memory that is not accounted for; a kernel without them refuses the advice, which is
        // equally good.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        // SAFETY: as above. For a core file the kernel visits each page of a mapping, used or not.
        let _ = unsafe { madvise(start, len, Advice::LinuxDontDump) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SlabMemory { start, words: len / WORD })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.words * WORD
    }

    /// Whether nothing is reserved.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Copies `bytes` to `offset`, a multiple of 8. The rest of the last word becomes zero.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let words = self.words(offset, bytes.len());
        let mut chunks = bytes.chunks_exact(WORD);
        for (word, chunk) in words.iter().zip(&mut chunks) {
            word.store(u64::from_le_bytes(chunk.try_into().unwrap()), Ordering::Relaxed);
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            words[words.len() - 1].store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
    }

    /// Copies from `offset`, a multiple of 8, until `bytes` is full.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let words = self.words(offset, bytes.len());
        let mut chunks = bytes.chunks_exact_mut(WORD);
        for (word, chunk) in words.iter().zip(&mut chunks) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let rest = chunks.into_remainder();
        if !rest.is_empty() {
            rest.copy_from_slice(
                &words[words.len() - 1].load(Ordering::Relaxed).to_le_bytes()[..rest.len()],
            );
        }
    }

    /// Frees the memory of `len` bytes from `offset` (both multiples of the page size); they are
    /// zero again.
    pub fn release(&self, offset: usize, len: usize) -> io::Result<()> {
        let words = self.words(offset, len);
        // SAFETY: inside our own private anonymous mapping; the content becomes zeros, which are
        // valid words.
        unsafe { madvise(words.as_ptr().cast_mut().cast(), len, Advice::LinuxDontNeed)? };
        Ok(())
    }

    fn words(&self, offset: usize, len: usize) -> &[AtomicU64] {
        assert!(offset % WORD == 0, "not a word's address: {offset}");
        // SAFETY: mapped while `self` lives, and any bit pattern is an `AtomicU64`.
        let all = unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) };
        &all[offset / WORD..][..len.div_ceil(WORD)]
    }
}

impl Drop for SlabMemory {
    fn drop(&mut self) {
        // SAFETY: no references into the mapping exist any more.
        unsafe { territory::unmap(self.start.as_ptr() as usize, self.words * WORD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_round_trip_at_every_length() {
        let memory = SlabMemory::reserve(4096).unwrap();
        let content: Vec<u8> = (1..=40).collect();
        for len in 0..=content.len() {
            memory.write(64, &content[..len]);
            let mut back = vec![0; len];
            memory.read(64, &mut back);
            assert_eq!(back, content[..len]);
        }
    }

    #[test]
    fn release_zeroes_only_the_released_range() {
        let memory = SlabMemory::reserve(3 * 4096).unwrap();
        memory.write(0, &[7; 3 * 4096]);
        memory.release(4096, 4096).unwrap();
        let mut back = vec![0; 3 * 4096];
        memory.read(0, &mut back);
        assert!(back[..4096].iter().chain(&back[8192..]).all(|&byte| byte == 7));
        assert!(back[4096..8192].iter().all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "range")]
    fn access_beyond_the_end_is_refused() {
        SlabMemory::reserve(4096).unwrap().write(4088, &[0; 16]);
    }
}
