//! Errors of the library, as errno and as a message.

use hiroma_far::PagerError;
use hiroma_far::config::ConfigError;
use hiroma_hot::service::client::ClientError;

/// Why a call failed. The message states a remedy; C programs test the errno.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CapiError {
    /// An argument is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The options structure is of a later version, and sets fields that this version does not
    /// know.
    #[error(
        "the options use fields that this version of libhiroma does not know: install the library that hiroma.h came with"
    )]
    TooNew,
    /// The text of an option is invalid.
    #[error("option {option}: {source}")]
    Option { option: &'static str, source: ConfigError },
    /// The process's pager is running already, with another value of this option.
    #[error(
        "this process's far memory was started with {option} = {running}, not {wanted}: leave the option unset, or set it before the first region"
    )]
    Conflict { option: &'static str, running: String, wanted: String },
    /// The region has no free stretch of that length.
    #[error(
        "no room for {bytes} bytes in the region of {region} bytes: free something, or create a larger region (regions cost nothing until used)"
    )]
    NoRoom { bytes: usize, region: usize },
    /// The address was never handed out, or was freed already.
    #[error("{addr:#x} was not allocated by hiroma, or was freed already")]
    NotAllocated { addr: usize },
    /// The region was destroyed already, or the pointer is not a region.
    #[error("this is not a region: it was destroyed already, or the pointer is wrong")]
    NoRegion,
    /// An error of tracking active pages, or of a huge arena.
    #[error("{message}")]
    Hot { errno: i32, message: String },
    /// An error of the hot page daemon.
    #[error(transparent)]
    HotClient(#[from] ClientError),
    /// The pager refused the request.
    #[error(transparent)]
    Pager(#[from] PagerError),
}

impl CapiError {
    /// The errno for this error.
    pub fn errno(&self) -> i32 {
        match self {
            CapiError::Invalid(_)
            | CapiError::Option { .. }
            | CapiError::NotAllocated { .. }
            | CapiError::NoRegion => libc::EINVAL,
            CapiError::TooNew => libc::E2BIG,
            CapiError::Conflict { .. } => libc::EBUSY,
            CapiError::NoRoom { .. } => libc::ENOMEM,
            CapiError::Hot { errno, .. } => *errno,
            CapiError::HotClient(error) => error.errno(),
            CapiError::Pager(error) => error.errno(),
        }
    }
}

/// The meaning of an errno that a hiroma function sets.
pub fn explain(errno: i32) -> &'static std::ffi::CStr {
    match errno {
        0 => c"no error",
        libc::ENOMEM => c"no room: the region, the arena or the machine is full",
        libc::EINVAL => c"an argument or option makes no sense, or the memory was not allocated by hiroma",
        libc::E2BIG => c"the options use fields that this version of libhiroma does not know",
        libc::EBUSY => c"in use already: far memory with other options, the signal, or another function of the library",
        libc::ENOTCONN => c"tracking is not enabled, or the hot page daemon has ended",
        libc::ECONNREFUSED => c"no hot page daemon runs: start `hiroma hot serve`",
        libc::EALREADY => c"tracking is enabled already",
        libc::EDEADLK => c"not possible in a function that the library calls",
        libc::EPERM | libc::EACCES => c"no right to use userfaultfd: `hiroma doctor` prints the command that grants it",
        libc::ENOSYS => c"the kernel lacks what is needed: `hiroma doctor` says what",
        libc::EIO => c"a store cannot be used: see hiroma_last_error()",
        _ => c"system error: see hiroma_last_error()",
    }
}
