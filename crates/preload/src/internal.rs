//! The heap of the pager and of this library: dlmalloc over a separate stretch of address space,
//! which is never managed.
//!
//! Contract: all memory of this heap is in one stretch starting at `START`, so that the address of
//! a block identifies its heap. Blocks for callers of `malloc` have their size in front of them
//! ([`Header`]); blocks of Rust's allocator do not, and are never passed to `free`.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlmalloc::{Allocator, Dlmalloc};
use libc::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE,
};

use crate::sys::{self, Lock};

/// Address space for the heap; only the used part takes memory. Smaller if the address space is
/// limited.
const SPAN_MAX: usize = 64 << 30;
const SPAN_MIN: usize = 16 << 20;
/// The heap grows by multiples of this.
const STEP: usize = 256 << 10;

static SPAN: AtomicUsize = AtomicUsize::new(0);
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static HEAP: Lock<Dlmalloc<Stretch>> = Lock::new(Dlmalloc::new_with_allocator(Stretch));

/// Hands out the reserved stretch from its start upwards, like a private `brk`. Called with the
/// heap's lock held.
struct Stretch;

impl Stretch {
    fn reserve() -> usize {
        let start = START.load(Ordering::Relaxed);
        if start != 0 {
            return start;
        }
        let mut span = SPAN_MAX;
        let start = loop {
            // SAFETY: a new mapping at an address that the kernel chooses.
            match unsafe {
                sys::mmap(0, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
            } {
                Ok(start) => break start,
                Err(_) if span > SPAN_MIN => span /= 2,
                Err(_) => return 0,
            }
        };
        SPAN.store(span, Ordering::Relaxed);
        END.store(start, Ordering::Relaxed);
        START.store(start, Ordering::Release);
        start
    }

    fn give_back(from: usize, to: usize) -> bool {
        // SAFETY: dlmalloc has just declared the end of the stretch unused.
        let result = unsafe {
            sys::mmap(
                from,
                to - from,
                PROT_NONE,
                MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1,
                0,
            )
        };
        if result.is_ok() {
            END.store(from, Ordering::Relaxed);
        }
        result.is_ok()
    }
}

// SAFETY: `alloc` returns memory that is readable, writable, zero and otherwise unused; `free` and
// `free_part` accept it back only at the end, and report whether they did.
unsafe impl Allocator for Stretch {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let start = Stretch::reserve();
        let end = END.load(Ordering::Relaxed);
        let Some(size) = size
            .checked_next_multiple_of(STEP)
            .filter(|&size| start != 0 && size <= start + SPAN.load(Ordering::Relaxed) - end)
        else {
            return (ptr::null_mut(), 0, 0);
        };
        // SAFETY: follows the used part, within the stretch.
        if unsafe { sys::mprotect(end, size, PROT_READ | PROT_WRITE) }.is_err() {
            return (ptr::null_mut(), 0, 0);
        }
        END.store(end + size, Ordering::Relaxed);
        (end as *mut u8, size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        let end = start as usize + old;
        let from = (start as usize + new).next_multiple_of(self.page_size());
        end == END.load(Ordering::Relaxed)
            && from == start as usize + new
            && Stretch::give_back(from, end)
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        let end = start as usize + size;
        end == END.load(Ordering::Relaxed) && Stretch::give_back(start as usize, end)
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// Whether `address` is in this heap.
#[inline]
pub fn contains(address: usize) -> bool {
    let start = START.load(Ordering::Relaxed);
    start != 0 && address.wrapping_sub(start) < SPAN.load(Ordering::Relaxed)
}

/// Number of bytes of address space that are reserved for the heap.
pub fn reserved_bytes() -> usize {
    if START.load(Ordering::Relaxed) == 0 { 0 } else { SPAN.load(Ordering::Relaxed) }
}

/// Number of bytes of memory that the heap takes.
pub fn bytes() -> usize {
    END.load(Ordering::Relaxed) - START.load(Ordering::Relaxed)
}

/// Prevents other threads from allocating here until [`after_fork`]. Called last before a fork.
pub fn before_fork() {
    HEAP.hold();
}

/// Called after a fork, in the parent and in the child.
pub fn after_fork() {
    HEAP.release();
}

/// Rust's global allocator in this library.
pub struct Internal;

#[cfg(not(test))]
#[global_allocator]
static GLOBAL: Internal = Internal;

// SAFETY: dlmalloc under a lock. Signals need not be blocked here: program code only gets here with
// signals blocked, or before the first handler can have been installed.
unsafe impl GlobalAlloc for Internal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not zero by the trait's contract.
        unsafe { HEAP.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { HEAP.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: from `alloc`, with the same layout.
        unsafe { HEAP.lock().free(block, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { HEAP.lock().realloc(block, layout.size(), layout.align(), new_size) }
    }
}

/// Precedes each block of [`allocate`].
#[repr(C)]
struct Header {
    block: *mut u8,
    size: usize,
}

/// Allocates a block for a caller of `malloc`; null if there is no memory. `align` must be a power
/// of two.
pub fn allocate(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    let align = align.max(size_of::<Header>());
    let Some(layout) =
        size.checked_add(align).and_then(|size| Layout::from_size_align(size, align).ok())
    else {
        return ptr::null_mut();
    };
    // SAFETY: the layout is at least as long as the header.
    let block =
        unsafe { if zeroed { Internal.alloc_zeroed(layout) } else { Internal.alloc(layout) } };
    if block.is_null() {
        return block;
    }
    // SAFETY: there is room for `size` bytes at offset `align`, and for a header before them.
    unsafe {
        let user = block.add(align);
        user.cast::<Header>().sub(1).write(Header { block, size });
        user
    }
}

/// Number of bytes of a block of [`allocate`] that the caller may use.
///
/// # Safety
/// The block must come from [`allocate`] and not be freed.
pub unsafe fn usable_size(user: *mut u8) -> usize {
    // SAFETY: the header precedes the block.
    unsafe { (*user.cast::<Header>().sub(1)).size }
}

/// Frees a block of [`allocate`].
///
/// # Safety
/// As in [`usable_size`]; the block must not be used any more.
pub unsafe fn release(user: *mut u8) {
    // SAFETY: the header contains the start of the block, which has no mapping of its own.
    unsafe { HEAP.lock().c_free((*user.cast::<Header>().sub(1)).block) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_zeroed_and_known_by_address() {
        for (size, align) in [(0, 1), (1, 16), (100, 64), (5000, 4096), (3 << 20, 2 << 20)] {
            let block = allocate(size, align, true);
            assert!(!block.is_null() && block as usize % align == 0 && contains(block as usize));
            // SAFETY: just allocated, with this size.
            unsafe {
                assert_eq!(usable_size(block), size);
                assert!((0..size).all(|at| *block.add(at) == 0));
                block.write_bytes(0xA5, size);
                release(block);
            }
        }
    }

    #[test]
    fn zeroed_allocation_clears_reused_memory() {
        let size = 8 << 20;
        for _ in 0..3 {
            let block = allocate(size, 16, true);
            // SAFETY: just allocated, with this size.
            unsafe {
                assert!((0..size).step_by(4096).all(|at| *block.add(at) == 0));
                block.write_bytes(0xFF, size);
                release(block);
            }
        }
    }

    #[test]
    fn allocation_beyond_the_reserve_is_refused() {
        assert!(allocate(SPAN_MAX, 16, false).is_null());
        assert!(allocate(usize::MAX - 8, 16, false).is_null());
    }

    #[test]
    fn many_blocks_of_all_sizes_keep_their_content() {
        let mut blocks: Vec<(*mut u8, usize, u8)> = Vec::new();
        for round in 0..4000_usize {
            let size = (round * 7919) % 20_000;
            let block = allocate(size, 16, false);
            // SAFETY: just allocated, with this size.
            unsafe { block.write_bytes(round as u8, size) };
            blocks.push((block, size, round as u8));
            if round % 3 == 0 {
                let (block, size, fill) = blocks.swap_remove((round * 31) % blocks.len());
                // SAFETY: still allocated; removed from the list, so freed once.
                unsafe {
                    assert!((0..size).all(|at| *block.add(at) == fill));
                    release(block);
                }
            }
        }
        for (block, size, fill) in blocks {
            // SAFETY: still allocated.
            unsafe {
                assert!((0..size).all(|at| *block.add(at) == fill));
                release(block);
            }
        }
    }
}
