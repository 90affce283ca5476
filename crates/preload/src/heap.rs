//! Chooses the heap that serves a call of the `malloc` family.
//!
//! Contract: every block belongs to exactly one heap, which its address determines: the internal
//! heap has its own stretch; blocks in the arena are mimalloc's, except for large objects, which
//! are in the table of [`large`]; all others are glibc's. The caller has checked sizes and
//! alignments: the alignment is a power of two, the size at most `isize::MAX`.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use libmimalloc_sys as mi;

use crate::large::{self, ALIGN_MAX, LARGE_MIN};
use crate::runtime::{self, Phase};
use crate::{internal, nursery, scope, sys};

/// The alignment that glibc guarantees for every block; programs store tags in the low bits.
pub const ALIGN_MIN: usize = 16;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
}

/// The owner of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Internal,
    Mimalloc,
    Large(usize),
    /// glibc's, if it serves the program.
    Libc,
    /// Unknown.
    Stranger,
}

fn owner(block: *mut c_void) -> Owner {
    let address = block as usize;
    if internal::contains(address) {
        Owner::Internal
    } else if runtime::arena().contains(&address) {
        large::length(address).map_or(Owner::Mimalloc, Owner::Large)
    } else if runtime::phase() == Phase::PassThrough {
        Owner::Libc
    } else if nursery::is_on_heap(address) {
        Owner::Mimalloc
    } else {
        Owner::Stranger
    }
}

/// A new block; null when there is no memory.
#[inline]
pub fn allocate(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    if scope::is_internal() || runtime::phase() != Phase::Managed {
        return allocate_elsewhere(size, align, zeroed);
    }
    if size >= LARGE_MIN || align > ALIGN_MAX {
        return large::allocate(size, align)
            .map_or(ptr::null_mut(), |address| address as *mut c_void);
    }
    allocate_small(size, align, zeroed)
}

#[inline]
fn allocate_small(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    let size = size.max(ALIGN_MIN);
    // SAFETY: any size and any power of two are valid.
    unsafe {
        match (align <= ALIGN_MIN, zeroed) {
            (true, false) => mi::mi_malloc(size),
            (true, true) => mi::mi_zalloc(size),
            (false, false) => mi::mi_malloc_aligned(size, align),
            (false, true) => mi::mi_zalloc_aligned(size, align),
        }
    }
}

#[cold]
fn allocate_elsewhere(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    if scope::is_internal() || runtime::phase() == Phase::Early {
        return internal::allocate(size, align, zeroed).cast();
    }
    if runtime::phase() != Phase::PassThrough {
        return allocate_without_pager(size, align, zeroed);
    }
    // SAFETY: glibc's own functions; a zeroed block is never requested with an alignment.
    unsafe {
        match (align <= ALIGN_MIN, zeroed) {
            (true, false) => __libc_malloc(size),
            (true, true) => __libc_calloc(1, size),
            (false, _) => __libc_memalign(align, size),
        }
    }
}

/// From the nursery, while the process is small.
fn allocate_without_pager(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    if size >= LARGE_MIN || align > ALIGN_MAX {
        if let Some(block) = large::allocate_early(size, align) {
            return block as *mut c_void;
        }
        nursery::start_now();
    } else {
        nursery::allocates(size);
    }
    if runtime::phase() == Phase::Managed {
        return allocate(size, align, zeroed);
    }
    let block = allocate_small(size, align, zeroed);
    count_early(block, 0);
    block
}

/// Counts a block of a process without a pager that had `before` usable bytes.
#[inline]
fn count_early(block: *mut c_void, before: usize) {
    if runtime::phase() == Phase::Nursery && !scope::is_internal() {
        // SAFETY: null, or allocated by mimalloc.
        let bytes = unsafe { mi::mi_usable_size(block) };
        nursery::hands_out(block as usize);
        nursery::counts(bytes as isize - before as isize);
    }
}

/// Frees a block. Does nothing for null and for blocks of unknown owners: the dynamic linker
/// allocated those before this library was loaded, so they are not ours to free.
///
/// # Safety
/// As for `free`.
#[inline]
pub unsafe fn release(block: *mut c_void) {
    match owner(block) {
        // A thread of the pager must not touch managed memory, which contains mimalloc's lists; it
        // frees hardly any blocks other than its own.
        Owner::Mimalloc | Owner::Large(_) if scope::is_internal() => {}
        // SAFETY: allocated by mimalloc, and owned by the caller.
        Owner::Mimalloc => unsafe {
            if runtime::phase() == Phase::Nursery {
                nursery::counts(-(mi::mi_usable_size(block) as isize));
            }
            mi::mi_free(block)
        },
        Owner::Large(_) => {
            large::free(block as usize);
        }
        // SAFETY: from `internal::allocate`.
        Owner::Internal if scope::is_internal() => unsafe { internal::release(block.cast()) },
        // A table of thread-specific values, at the end of a thread of the program: a handler of a
        // signal must not run while the heap's lock is held.
        Owner::Internal => {
            let mask = sys::block_signals();
            // SAFETY: as above.
            unsafe { internal::release(block.cast()) };
            sys::restore_signals(mask);
        }
        // SAFETY: allocated by glibc.
        Owner::Libc => unsafe { __libc_free(block) },
        Owner::Stranger => {}
    }
}

/// Number of usable bytes of a block; 0 for unknown owners.
///
/// # Safety
/// As for `malloc_usable_size`.
pub unsafe fn usable_size(block: *mut c_void) -> usize {
    match owner(block) {
        // SAFETY: allocated by mimalloc.
        Owner::Mimalloc => unsafe { mi::mi_usable_size(block) },
        Owner::Large(len) => len,
        // SAFETY: from `internal::allocate`.
        Owner::Internal => unsafe { internal::usable_size(block.cast()) },
        Owner::Libc | Owner::Stranger => 0,
    }
}

/// Changes the size of a block and keeps its content. Null: no memory, and the block is unchanged.
///
/// # Safety
/// As for `realloc`, with a block and a size that are not null.
pub unsafe fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    let owner = owner(block);
    let working_for_pager = scope::is_internal();
    match owner {
        // SAFETY: allocated by glibc.
        Owner::Libc => return unsafe { __libc_realloc(block, size) },
        Owner::Mimalloc if !working_for_pager && size < LARGE_MIN => {
            if runtime::phase() == Phase::Nursery {
                nursery::allocates(size);
            }
            // SAFETY: allocated by mimalloc; it remains so while it is small.
            return unsafe {
                let before = mi::mi_usable_size(block);
                let new = mi::mi_realloc(block, size.max(ALIGN_MIN));
                if !new.is_null() {
                    count_early(new, before);
                }
                new
            };
        }
        Owner::Large(len) if !working_for_pager && size > len / 2 => {
            match large::resize(block as usize, len, size) {
                Some(address) => return address as *mut c_void,
                None if runtime::phase() == Phase::Managed => return ptr::null_mut(),
                // The pager cannot start: the content moves elsewhere.
                None => {}
            }
        }
        _ => {}
    }
    let new = allocate(size, ALIGN_MIN, false);
    if new.is_null() {
        return new;
    }
    // SAFETY: both blocks are at least as long as the copied range, and different. The length of a
    // block of an unknown owner is unknown: readable bytes past its end are copied as well, and are
    // irrelevant.
    unsafe {
        if owner == Owner::Stranger {
            sys::copy_readable(block as usize, new as usize, size);
        } else {
            ptr::copy_nonoverlapping(
                block.cast::<u8>(),
                new.cast::<u8>(),
                size.min(usable_size(block)),
            );
            release(block);
        }
    }
    new
}
