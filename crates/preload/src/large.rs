//! Large objects of `malloc`: one managed mapping each, so that they can be resized without copying
//! and disappear when freed.
//!
//! Contract: each begins at the start of an extent, and the table has one word per extent: the
//! mapped length, or 0. The words are atomic and outside managed memory.
#![allow(unsafe_code)]

use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use hiroma_units::{EXTENT, PAGE};

use crate::classify::RemapCall;
use crate::sys::Errno;
use crate::{export_lock, nursery, runtime, sys};

/// Objects of this size and more are large: mimalloc's segments cannot contain larger ones, and it
/// would make a mapping for each, too.
pub const LARGE_MIN: usize = (16 << 20) - (64 << 10);
/// Objects aligned more strictly than this are large, too.
pub const ALIGN_MAX: usize = 1 << 20;

struct Table {
    start: usize,
    words: &'static [AtomicU64],
}

static TABLE: OnceLock<Table> = OnceLock::new();

/// Makes the table for an arena.
pub fn start(arena: usize, len: usize) -> Result<(), Errno> {
    let extents = len / EXTENT;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, never unmapped; zeros are valid atomics.
    let words = unsafe {
        let words = sys::mmap(
            0,
            extents * size_of::<AtomicU64>(),
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )?;
        slice::from_raw_parts(words as *const AtomicU64, extents)
    };
    let _ = TABLE.set(Table { start: arena, words });
    Ok(())
}

#[inline]
fn word(address: usize) -> Option<&'static AtomicU64> {
    if address % EXTENT != 0 {
        return None;
    }
    let table = TABLE.get()?;
    table.words.get(address.wrapping_sub(table.start) / EXTENT)
}

/// The mapped length of the large object at `address`, if there is one.
#[inline]
pub fn length(address: usize) -> Option<usize> {
    word(address).map(|word| word.load(Ordering::Acquire) as usize).filter(|&len| len != 0)
}

/// Allocates a large object, which is zero.
pub fn allocate(size: usize, align: usize) -> Option<usize> {
    let len = size.max(1).checked_next_multiple_of(PAGE)?;
    runtime::far(|pager| {
        let address = pager.map(len, align.max(EXTENT)).ok()?;
        // If the table has no such word, the pager has violated the requested alignment.
        word(address)
            .expect("the pager maps large objects at extents")
            .store(len as u64, Ordering::Release);
        if export_lock::LOCK_FUTURE.load(Ordering::Relaxed) {
            let _ = pager.pin_on_touch(address, len);
        }
        Some(address)
    })?
}

/// Allocates a large object for a process without a pager. `None`: it has one now, or has to get
/// one.
pub fn allocate_early(size: usize, align: usize) -> Option<usize> {
    let len = size.max(1).checked_next_multiple_of(PAGE)?;
    let address = if align <= EXTENT {
        nursery::map_early(len, true, libc::PROT_READ | libc::PROT_WRITE)?
    } else {
        return None;
    };
    word(address)?.store(len as u64, Ordering::Release);
    Some(address)
}

/// Frees the large object at `address`; false if there is none.
pub fn free(address: usize) -> bool {
    let Some(len) =
        word(address).map(|word| word.swap(0, Ordering::AcqRel) as usize).filter(|&len| len != 0)
    else {
        return false;
    };
    // Twice: a pager that was about to start when it was asked may not have been able to.
    for _ in 0..2 {
        match nursery::unmaps(address, len) {
            Some(Ok(())) => return true,
            Some(Err(_)) => {
                // Too many mappings: the addresses are lost, the memory is not.
                // SAFETY: the caller has given the object up.
                let _ = unsafe { sys::madvise(address, len, libc::MADV_DONTNEED) };
                return true;
            }
            None => nursery::start_now(),
        }
        // Where there are too many mappings, the same.
        let unmap = |pager: &hiroma_far::Pager| {
            if pager.unmap(address, len).is_err() {
                let _ = pager.discard(address, len);
            }
        };
        if runtime::far(unmap).is_some() {
            return true;
        }
    }
    // The process goes on without a pager.
    // SAFETY: the caller has given the object up.
    let _ = unsafe { sys::munmap(address, len) };
    true
}

/// Resizes the large object at `address` and keeps its content; the object may move. `None`: there
/// is no room, and nothing has changed.
pub fn resize(address: usize, old_len: usize, size: usize) -> Option<usize> {
    let new_len = size.checked_next_multiple_of(PAGE)?;
    if new_len == old_len {
        return Some(address);
    }
    if let Some(new) = resize_early(address, old_len, new_len) {
        return Some(new);
    }
    nursery::start_now();
    runtime::far(|pager| {
        let word_of_old = word(address)?;
        // Another thread may get the old address immediately, so the table's entry must be removed
        // before.
        word_of_old.store(0, Ordering::Release);
        let moved = pager.resize(address, old_len, new_len, true).ok();
        match moved.and_then(|new| word(new).map(|word| (new, word))) {
            Some((new, word)) => {
                word.store(new_len as u64, Ordering::Release);
                Some(new)
            }
            None => {
                assert!(moved.is_none(), "the pager moves large objects to extents");
                word_of_old.store(old_len as u64, Ordering::Release);
                None
            }
        }
    })?
}

/// Resizes a large object of a process without a pager. `None`: nothing has changed.
fn resize_early(old: usize, old_len: usize, new_len: usize) -> Option<usize> {
    let word_of_old = word(old)?;
    // As in `resize`.
    word_of_old.store(0, Ordering::Release);
    let call = RemapCall { old, old_len, new_len, flags: libc::MREMAP_MAYMOVE, new: 0 };
    match nursery::resizes(call).and_then(Result::ok).and_then(|new| Some((new, word(new)?))) {
        Some((new, word_of_new)) => {
            word_of_new.store(new_len as u64, Ordering::Release);
            Some(new)
        }
        None => {
            word_of_old.store(old_len as u64, Ordering::Release);
            None
        }
    }
}
