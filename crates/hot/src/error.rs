//! Errors of tracking and managing a process.

use std::io;

/// Why it failed. The message states what the user can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HotError {
    /// Expected: processes end.
    #[error("process {pid} has ended")]
    Gone { pid: u32 },
    #[error("no process {pid}: see `ps`")]
    NoProcess { pid: u32 },
    #[error("process {pid} is a thread of the kernel: it has no memory of its own")]
    KernelThread { pid: u32 },
    #[error(
        "no right to look into process {pid} ({doing}): run as its user or as root (sudo hiroma hot …; in a container with CAP_SYS_PTRACE)"
    )]
    NotPermitted { pid: u32, doing: &'static str },
    #[error("no way to track process {pid} here:\n{reasons}")]
    NoBackend { pid: u32, reasons: String },
    #[error("{backend} does not work here: {reason}")]
    Backend { backend: &'static str, reason: String },
    #[error(
        "process {pid} is managed by process {manager} already: stop that one first, or ask it with `hiroma hot explain --pid {pid}`"
    )]
    Managed { pid: u32, manager: u32 },
    #[error("nothing is known of process {pid}: it is not managed, and was not")]
    NoLedger { pid: u32 },
    #[error("process {pid} cannot have huge pages: {reason}")]
    NoHugePages { pid: u32, reason: String },
    #[error("process {pid}: {doing}: {source}")]
    Io { pid: u32, doing: &'static str, source: io::Error },
}

impl HotError {
    /// Returns a function that converts the kernel's error into a [`HotError`]; `doing` names the
    /// operation on process `pid` that failed.
    pub fn of(pid: u32, doing: &'static str) -> impl Fn(io::Error) -> HotError {
        move |source| match source.raw_os_error() {
            Some(libc_errno::ESRCH) => HotError::Gone { pid },
            Some(libc_errno::EPERM | libc_errno::EACCES) => HotError::NotPermitted { pid, doing },
            // Of the page map of memory that is gone, nothing can be read.
            _ if matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
            ) =>
            {
                HotError::Gone { pid }
            }
            _ => HotError::Io { pid, doing, source },
        }
    }

    /// Whether the error only means that the process, or the memory that it had, is gone.
    pub fn is_gone(&self) -> bool {
        matches!(self, HotError::Gone { .. } | HotError::NoProcess { .. })
    }
}

mod libc_errno {
    use rustix::io::Errno;

    pub const ESRCH: i32 = Errno::SRCH.raw_os_error();
    pub const EPERM: i32 = Errno::PERM.raw_os_error();
    pub const EACCES: i32 = Errno::ACCESS.raw_os_error();
}
