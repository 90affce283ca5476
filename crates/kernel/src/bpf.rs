//! What BPF programs have in common: their objects, maps that are shared with them, and why they
//! cannot be loaded.
//!
//! Contract: a [`Shared`] is plain memory that the kernel's side may change at any time; who uses
//! it says how that is lived with.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::hot::lockdown;

/// A compiled object, aligned as libbpf wants it.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);

/// A map of a program (`BPF_F_MMAPABLE`), mapped here.
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
        // SAFETY: ours, and with `self` goes the last that could use it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// This kernel cannot do it.
pub(crate) fn unsupported(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, message.to_owned())
}

/// Why a program was refused, and what to do.
pub(crate) fn from_bpf(doing: &str, error: libbpf_rs::Error) -> io::Error {
    // To a user without the rights the kernel answers EPERM, to a program that it does not like
    // EACCES; libbpf-rs takes both for one.
    let kind = if rustix::process::geteuid().is_root() {
        io::ErrorKind::Unsupported
    } else {
        io::ErrorKind::PermissionDenied
    };
    let hint = match (error.kind(), kind) {
        (_, io::ErrorKind::PermissionDenied) => ": it needs root (CAP_BPF and CAP_PERFMON)".to_owned(),
        // A helper that a locked kernel does not have is EINVAL (6.12), a program that may not be
        // loaded EPERM.
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
