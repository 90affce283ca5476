//! Which heap serves a call of the `malloc` family.
//!
//! Contract: every block belongs to exactly one heap, and its address tells which: the internal
//! heap by its stretch; the arena is mimalloc's but for large objects, which the table of [`large`]
//! knows; everything else is glibc's. Sizes and alignments were checked by the caller: the
//! alignment is a power of two, the size at most `isize::MAX`.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use libmimalloc_sys as mi;

use crate::large::{self, ALIGN_MAX, LARGE_MIN};
use crate::runtime::{self, Phase};
use crate::{internal, scope, sys};

/// What glibc guarantees for every block, and programs keep tags in.
pub const ALIGN_MIN: usize = 16;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
}

/// Whose a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Internal,
    Mimalloc,
    Large(usize),
    /// glibc's when it serves the program.
    Libc,
    /// Nobody's that we know.
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
    let size = size.max(ALIGN_MIN);
    // SAFETY: any size and any power of two will do.
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
    // SAFETY: glibc's own functions; nothing zeroed is ever asked for with an alignment.
    unsafe {
        match (align <= ALIGN_MIN, zeroed) {
            (true, false) => __libc_malloc(size),
            (true, true) => __libc_calloc(1, size),
            (false, _) => __libc_memalign(align, size),
        }
    }
}

/// Frees a block. Null and blocks of strangers are left alone: what the dynamic linker allocated
/// before us is not ours to free.
///
/// # Safety
/// As for `free`.
#[inline]
pub unsafe fn release(block: *mut c_void) {
    match owner(block) {
        // A thread of the pager must not touch managed memory, where mimalloc keeps its lists; it
        // frees next to nothing that is not its own.
        Owner::Mimalloc | Owner::Large(_) if scope::is_internal() => {}
        // SAFETY: mimalloc's, and the caller's to give.
        Owner::Mimalloc => unsafe { mi::mi_free(block) },
        Owner::Large(_) => {
            large::free(block as usize);
        }
        // SAFETY: from `internal::allocate`.
        Owner::Internal => unsafe { internal::release(block.cast()) },
        // SAFETY: glibc's.
        Owner::Libc => unsafe { __libc_free(block) },
        Owner::Stranger => {}
    }
}

/// How many bytes of a block may be used; 0 for strangers.
///
/// # Safety
/// As for `malloc_usable_size`.
pub unsafe fn usable_size(block: *mut c_void) -> usize {
    match owner(block) {
        // SAFETY: mimalloc's.
        Owner::Mimalloc => unsafe { mi::mi_usable_size(block) },
        Owner::Large(len) => len,
        // SAFETY: from `internal::allocate`.
        Owner::Internal => unsafe { internal::usable_size(block.cast()) },
        Owner::Libc | Owner::Stranger => 0,
    }
}

/// Gives a block another size, with its content. Null: no memory, the block is as it was.
///
/// # Safety
/// As for `realloc`, with a block and a size that are not null.
pub unsafe fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    let owner = owner(block);
    let working_for_pager = scope::is_internal();
    match owner {
        // SAFETY: glibc's.
        Owner::Libc => return unsafe { __libc_realloc(block, size) },
        // SAFETY: mimalloc's; it stays mimalloc's while it is small.
        Owner::Mimalloc if !working_for_pager && size < LARGE_MIN => {
            return unsafe { mi::mi_realloc(block, size.max(ALIGN_MIN)) };
        }
        Owner::Large(len) if !working_for_pager && size > len / 2 => {
            return large::resize(block as usize, len, size)
                .map_or(ptr::null_mut(), |address| address as *mut c_void);
        }
        _ => {}
    }
    let new = allocate(size, ALIGN_MIN, false);
    if new.is_null() {
        return new;
    }
    // SAFETY: both blocks are at least as long as what is copied, and different. The length of a
    // stranger's is unknown: what can be read past its end is copied as well, and means nothing.
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
