//! Errors of the pager.

use std::io;

use hiroma_sys::uffd::UffdError;
use hiroma_units::Bytes;

use crate::config::ARENA_BYTES_MAX;
use crate::store::StoreError;

/// Why the pager did not do what was requested. The message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagerError {
    #[error(transparent)]
    Uffd(#[from] UffdError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "no {wanted} of managed address space left (arena of {arena}): give it more with arena_bytes, or allocate less"
    )]
    NoAddresses { wanted: Bytes, arena: Bytes },
    #[error("the program's own limit (RLIMIT_AS, RLIMIT_DATA) allows no {wanted} more")]
    OwnLimit { wanted: Bytes },
    #[error("the range {addr:#x}+{len:#x} is not managed memory, or not page aligned")]
    BadRange { addr: usize, len: usize },
    #[error(
        "the range {addr:#x}+{len:#x} is not managed as a whole: something else was mapped over it, or a part was unmapped"
    )]
    NotWhole { addr: usize, len: usize },
    #[error("not all of the range {addr:#x}+{len:#x} is mapped")]
    NotMapped { addr: usize, len: usize },
    #[error("a limit of {0} is too small: 16MiB is the least")]
    LimitTooSmall(Bytes),
    #[error("an arena of {0} is too large: {max} is the most", max = Bytes(ARENA_BYTES_MAX))]
    ArenaTooLarge(Bytes),
    #[error("{doing}: {source}")]
    Io { doing: &'static str, source: io::Error },
}

impl PagerError {
    /// The errno that fits best.
    pub fn errno(&self) -> i32 {
        match self {
            PagerError::Uffd(UffdError::NotPermitted(_)) => libc::EPERM,
            PagerError::Uffd(_) => libc::ENOSYS,
            PagerError::Store(_) => libc::EIO,
            PagerError::NotWhole { .. } => libc::EFAULT,
            PagerError::NoAddresses { .. }
            | PagerError::OwnLimit { .. }
            | PagerError::NotMapped { .. } => libc::ENOMEM,
            PagerError::BadRange { .. }
            | PagerError::LimitTooSmall(_)
            | PagerError::ArenaTooLarge(_) => libc::EINVAL,
            PagerError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// Whether it may work a moment later: the kernel starts no thread in a process of which another
    /// thread is executing a program.
    pub fn is_passing(&self) -> bool {
        matches!(self, PagerError::Io { source, .. } if source.raw_os_error() == Some(libc::EAGAIN))
    }

    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> PagerError {
        move |source| PagerError::Io { doing, source }
    }
}
