//! Runs a function on a stack of its own: the calling thread's may have a page left, or be a
//! coroutine's.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;

/// Size of the stack, without its guard.
const STACK_BYTES: usize = 256 << 10;
/// Area without access below the stack.
const GUARD_BYTES: usize = 16 << 10;

/// A call, and room for its result.
struct Call<F, T> {
    work: Option<F>,
    result: MaybeUninit<T>,
}

extern "C" fn enter<F: FnOnce() -> T, T>(call: *mut c_void) {
    // SAFETY: `run` passes its own variable, of this type, which nothing else refers to.
    let call = unsafe { &mut *call.cast::<Call<F, T>>() };
    if let Some(work) = call.work.take() {
        call.result.write(work());
    }
}

/// Runs `work` on a new stack, which is unmapped again. `work` must not panic. Processors other
/// than x86-64 run it on the present stack.
pub fn run<T, F: FnOnce() -> T>(work: F) -> io::Result<T> {
    let mut call = Call { work: Some(work), result: MaybeUninit::uninit() };
    let argument = (&raw mut call).cast::<c_void>();
    if cfg!(target_arch = "x86_64") {
        let stack = Stack::new()?;
        // SAFETY: the stack is new, and large enough; `enter` gets what it expects.
        unsafe { switch(stack.0 + GUARD_BYTES + STACK_BYTES, enter::<F, T>, argument) };
    } else {
        enter::<F, T>(argument);
    }
    // SAFETY: `enter` has written it, because `work` was there.
    Ok(unsafe { call.result.assume_init() })
}

/// The mapping of a stack: its lowest address.
struct Stack(usize);

impl Stack {
    fn new() -> io::Result<Stack> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (prot, len) = (libc::PROT_READ | libc::PROT_WRITE, STACK_BYTES + GUARD_BYTES);
        // SAFETY: a new mapping at an address of the kernel's choice, and its lower end. The raw
        // system calls, because the C library's functions may be replaced.
        unsafe {
            let start = libc::syscall(libc::SYS_mmap, 0usize, len, prot, flags, -1i32, 0usize);
            if start == -1 {
                return Err(io::Error::last_os_error());
            }
            libc::syscall(libc::SYS_mprotect, start, GUARD_BYTES, libc::PROT_NONE);
            Ok(Stack(start as usize))
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nothing runs on it any more.
        unsafe { libc::syscall(libc::SYS_munmap, self.0, STACK_BYTES + GUARD_BYTES) };
    }
}

/// Calls `entry` with `argument` on the stack that ends at `top`.
///
/// # Safety
/// The stack must be unused and large enough, and `top` a multiple of 16.
#[cfg(target_arch = "x86_64")]
unsafe fn switch(top: usize, entry: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: r12 is preserved by the callee (System V ABI), so the old stack pointer comes back.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {entry}",
            "mov rsp, r12",
            top = in(reg) top,
            entry = in(reg) entry,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn switch(_: usize, entry: extern "C" fn(*mut c_void), argument: *mut c_void) {
    entry(argument);
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_with_a_small_stack_calls_deep_functions() {
        fn depth(left: usize) -> usize {
            let room = std::hint::black_box([left; 64]);
            if left == 0 { 0 } else { 1 + depth(left - 1) + room[1] - left }
        }
        let here = 0_u8;
        let text = String::from("kept");
        let (reached, there, len) = super::run(|| {
            let there = 0_u8;
            (depth(200), &raw const there as usize, text.len())
        })
        .unwrap();
        assert_eq!((reached, len), (200, 4));
        let apart = (&raw const here as usize).abs_diff(there);
        assert!(apart > super::STACK_BYTES || cfg!(not(target_arch = "x86_64")), "{apart}");
    }
}
