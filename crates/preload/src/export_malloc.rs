//! The `malloc` family under the names that programs call.
//!
//! Contract: C's, as glibc implements it: alignment 16, `errno` set on failure and preserved on
//! success, `realloc(p, 0)` frees. Nothing unwinds.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::{mem, ptr};

use hiroma_far::control::Counter;
use libmimalloc_sys as mi;

use crate::heap::{self, ALIGN_MIN};
use crate::runtime::{self, Phase};
use crate::{scope, sys};

const PAGE: usize = hiroma_units::PAGE;
const SIZE_MAX: usize = isize::MAX as usize;

fn out_of_memory() -> *mut c_void {
    sys::set_errno(libc::ENOMEM);
    ptr::null_mut()
}

fn allocate(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    if size > SIZE_MAX {
        return out_of_memory();
    }
    let block = heap::allocate(size, align, zeroed);
    if block.is_null() { out_of_memory() } else { block }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    allocate(size, ALIGN_MIN, false)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(size) => allocate(size, ALIGN_MIN, true),
        None => out_of_memory(),
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if !block.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { heap::release(block) };
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return allocate(size, ALIGN_MIN, false);
    }
    if size == 0 {
        // SAFETY: guaranteed by the caller.
        unsafe { heap::release(block) };
        return ptr::null_mut();
    }
    if size > SIZE_MAX {
        return out_of_memory();
    }
    // SAFETY: guaranteed by the caller.
    let new = unsafe { heap::resize(block, size) };
    if new.is_null() { out_of_memory() } else { new }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    block: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: guaranteed by the caller.
        Some(size) => unsafe { realloc(block, size) },
        None => out_of_memory(),
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    result: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    if !align.is_power_of_two() || align % size_of::<*mut c_void>() != 0 {
        return libc::EINVAL;
    }
    let errno = sys::errno();
    let block = allocate(size, align, false);
    if block.is_null() {
        sys::set_errno(errno);
        return libc::ENOMEM;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { result.write(block) };
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two().filter(|&align| align <= SIZE_MAX / 2) {
        Some(align) => allocate(size, align, false),
        None => {
            sys::set_errno(libc::EINVAL);
            ptr::null_mut()
        }
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        sys::set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: checked above.
    unsafe { memalign(align, size) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    allocate(size, PAGE, false)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => allocate(size, PAGE, false),
        None => out_of_memory(),
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: guaranteed by the caller; glibc's function of this name has this type.
    unsafe {
        match heap::usable_size(block) {
            0 if runtime::phase() == Phase::PassThrough => {
                next(c"malloc_usable_size").map_or(0, |address| {
                    mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(
                        address,
                    )(block)
                })
            }
            size => size,
        }
    }
}

/// None of glibc's tuning applies to managed memory. All parameters are accepted, as glibc accepts
/// unknown ones.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    if runtime::phase() != Phase::PassThrough {
        return 1;
    }
    // SAFETY: glibc's function of this name has this type.
    unsafe {
        next(c"mallopt").map_or(0, |address| {
            mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, c_int) -> c_int>(address)(
                parameter, value,
            )
        })
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(pad: usize) -> c_int {
    if runtime::phase() != Phase::PassThrough {
        if !scope::is_internal() {
            // SAFETY: has no arguments that could be invalid.
            unsafe { mi::mi_collect(true) };
        }
        return 1;
    }
    // SAFETY: glibc's function of this name has this type.
    unsafe {
        next(c"malloc_trim").map_or(0, |address| {
            mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> c_int>(address)(pad)
        })
    }
}

/// Reports how much managed memory is mapped. The other fields are zero.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo2() -> libc::mallinfo2 {
    if runtime::phase() == Phase::PassThrough {
        // SAFETY: glibc's function of this name has this type (glibc 2.33); all zeros is a valid
        // value.
        return unsafe {
            next(c"mallinfo2").map_or(mem::zeroed(), |address| {
                mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::mallinfo2>(address)()
            })
        };
    }
    let mapped =
        runtime::far(|pager| pager.snapshot().get(Counter::MappedBytes)).unwrap_or(0) as usize;
    // SAFETY: integers, for which zero is valid.
    libc::mallinfo2 { arena: mapped, uordblks: mapped, ..unsafe { mem::zeroed() } }
}

/// Like [`mallinfo2`], with sizes cut to the range of an `int`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo() -> libc::mallinfo {
    // SAFETY: has no arguments.
    let info = unsafe { mallinfo2() };
    let int = |size: usize| size.min(c_int::MAX as usize) as c_int;
    libc::mallinfo {
        arena: int(info.arena),
        ordblks: int(info.ordblks),
        smblks: int(info.smblks),
        hblks: int(info.hblks),
        hblkhd: int(info.hblkhd),
        usmblks: int(info.usmblks),
        fsmblks: int(info.fsmblks),
        uordblks: int(info.uordblks),
        fordblks: int(info.fordblks),
        keepcost: int(info.keepcost),
    }
}

fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a NUL-terminated string.
    Some(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) })
        .filter(|address| !address.is_null())
}
