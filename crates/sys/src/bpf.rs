//! Common parts of BPF programs: their objects, maps that are shared with them, and the reasons why
//! they cannot be loaded.
//!
//! Contract: a [`Shared`] is plain memory that the kernel's side may change at any time; its user
//! states how it deals with that.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::hot::lockdown;

/// A compiled object, aligned as libbpf requires.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);

/// A map of a program (`BPF_F_MMAPABLE`), mapped into this process.
pub(crate) struct Shared<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: plain memory that belongs to its owner alone.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Maps `len` bytes of a map.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Shared<T>> {
        // SAFETY: a new mapping at an address of the kernel's choice; the map is at least `len`
        // bytes, or the call fails.
        let start = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
        Ok(Shared { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Its first element.
    pub fn start(&self) -> *mut T {
        self.start.as_ptr()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: our mapping, and `self` was its last user.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// An error for what this kernel does not support.
pub(crate) fn unsupported(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, message.to_owned())
}

/// Why a program was refused, and what to do about it.
pub(crate) fn from_bpf(doing: &str, error: libbpf_rs::Error) -> io::Error {
    // A user without the rights gets EPERM, a program that the verifier rejects EACCES; libbpf-rs
    // maps both to one kind.
    let kind = if rustix::process::geteuid().is_root() {
        io::ErrorKind::Unsupported
    } else {
        io::ErrorKind::PermissionDenied
    };
    let hint = match (error.kind(), kind) {
        (_, io::ErrorKind::PermissionDenied) => ": it needs root (CAP_BPF and CAP_PERFMON)".to_owned(),
        // A helper that a locked-down kernel does not have gives EINVAL (6.12), a program that may
        // not be loaded EPERM.
        (refused, _) => match lockdown::reason() {
            Some(reason) => format!(": {reason}"),
            None if refused == libbpf_rs::ErrorKind::PermissionDenied => {
                ": this root has not all rights, or the kernel is locked down, or it refuses the program".to_owned()
            }
            None => String::new(),
        },
    };
    io::Error::new(kind, format!("{doing}: {error:#}{hint}"))
}
