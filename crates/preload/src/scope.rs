//! Tracks which threads currently work for the pager.
//!
//! Contract (x86-64): this library is loaded at the start of the program, so its thread-local
//! storage is at a fixed distance from the thread pointer. The `__tls_get_addr` defined here uses
//! that; it is hidden, so only our own code calls it. It replaces the dynamic linker's function,
//! which may walk its tables after a `dlopen`. The program allocated these tables, so they may be
//! far, and the calling thread may be the one that has to fetch them.
#![allow(unsafe_code)]

use std::cell::Cell;

#[cfg(all(target_arch = "x86_64", not(test)))]
mod tls {
    use std::arch::{asm, global_asm};
    use std::cell::Cell;

    global_asm!(
        ".pushsection .tbss.hiroma_depth,\"awT\",@nobits",
        ".p2align 3",
        ".globl hiroma_depth",
        ".hidden hiroma_depth",
        ".type hiroma_depth,@object",
        ".size hiroma_depth,8",
        "hiroma_depth: .zero 8",
        ".popsection",
        ".pushsection .text.__tls_get_addr,\"ax\",@progbits",
        ".globl __tls_get_addr",
        ".hidden __tls_get_addr",
        ".type __tls_get_addr,@function",
        "__tls_get_addr:",
        "movq 8(%rdi), %rax",
        "subq $hiroma_depth@dtpoff, %rax",
        "addq hiroma_depth@gottpoff(%rip), %rax",
        "addq %fs:0, %rax",
        "ret",
        ".size __tls_get_addr, . - __tls_get_addr",
        ".popsection",
        options(att_syntax)
    );

    #[inline]
    pub fn with_depth<T>(f: impl FnOnce(&Cell<u32>) -> T) -> T {
        let address: *const Cell<u32>;
        // SAFETY: the thread pointer plus the offset of `hiroma_depth`, which the dynamic linker
        // has stored in the table.
        unsafe {
            asm!("mov {0}, qword ptr fs:[0]", "add {0}, qword ptr [rip + hiroma_depth@gottpoff]", out(reg) address,
                 options(nostack, readonly, pure));
        }
        // SAFETY: zeroed and aligned storage of this thread, which no other thread touches.
        f(unsafe { &*address })
    }
}

#[cfg(any(not(target_arch = "x86_64"), test))]
mod tls {
    use std::cell::Cell;

    thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }

    pub fn with_depth<T>(f: impl FnOnce(&Cell<u32>) -> T) -> T {
        DEPTH.with(f)
    }
}

/// Whether the calling thread works for the pager. If so, memory that it allocates or maps must not
/// be managed.
#[inline]
pub fn is_internal() -> bool {
    tls::with_depth(Cell::get) != 0
}

/// Marks the calling thread as working for the pager.
pub fn enter() {
    tls::with_depth(|depth| depth.set(depth.get() + 1));
}

/// Undoes one [`enter`].
pub fn leave() {
    tls::with_depth(|depth| depth.set(depth.get() - 1));
}

/// Keeps the calling thread in the internal scope until it is dropped.
pub struct Internal(());

/// Enters the internal scope until the result is dropped.
pub fn internal_scope() -> Internal {
    enter();
    Internal(())
}

impl Drop for Internal {
    fn drop(&mut self) {
        leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_belong_to_one_thread() {
        assert!(!is_internal());
        let outer = internal_scope();
        {
            let _inner = internal_scope();
            assert!(!std::thread::spawn(is_internal).join().unwrap());
        }
        assert!(is_internal());
        drop(outer);
        assert!(!is_internal());
    }
}
