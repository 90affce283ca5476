//! Errors in what a peer sends.

use crate::auth::KeyError;

/// A peer violated the protocol, or the two are not compatible. The connection cannot be used any
/// more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A different protocol.
    #[error(
        "the peer does not speak the hiroma protocol (first word {0:#010x}): is the address right?"
    )]
    Magic(u32),
    /// A header of a version that was not agreed on.
    #[error(
        "the peer speaks version {found} of the protocol, this program {expected}: use the same release of hiroma on both sides"
    )]
    Version { found: u16, expected: u16 },
    /// No version in common.
    #[error(
        "no common version: the client speaks {client_min} to {client_max}, the server {server_min} to {server_max}; use the same release of hiroma on both sides"
    )]
    NoCommonVersion { client_min: u16, client_max: u16, server_min: u16, server_max: u16 },
    /// The header's checksum does not match.
    #[error(
        "a frame header arrived damaged (checksum {found:#010x}, expected {expected:#010x}): check the network, or end whatever else writes to this connection"
    )]
    Checksum { found: u32, expected: u32 },
    /// A kind of frame that does not exist.
    #[error("unknown kind of frame {0}: use the same release of hiroma on both sides")]
    Kind(u16),
    /// A kind that the other side must not send now.
    #[error("a frame of kind {kind:?} came when {expected} was due")]
    Unexpected { kind: crate::Kind, expected: &'static str },
    /// A length that is not possible for this kind.
    #[error("a frame of kind {kind:?} claims {len} bytes: that cannot be")]
    Length { kind: crate::Kind, len: u32 },
    /// An invalid body.
    #[error("a frame of kind {kind:?} has a body that makes no sense")]
    Body { kind: crate::Kind },
    /// The key is missing on one side, or the keys differ.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The peer ended the connection and gave the reason.
    #[error("{text}")]
    Told { code: ErrorCode, text: String },
}

/// Why a request failed, as transmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// No free memory for another chunk.
    Full,
    /// Nothing is stored at that address, or a request crosses the end of a chunk.
    BadAddress,
    /// The session does not exist (any more): its content is gone.
    NoSession,
    /// Wrong key, or none.
    Key,
    /// No version in common.
    Version,
    /// An invalid frame.
    Malformed,
    /// More connections or attached sessions than the server accepts.
    TooMany,
    /// A code unknown to this release.
    Other(u16),
}

impl From<u16> for ErrorCode {
    fn from(number: u16) -> Self {
        match number {
            1 => ErrorCode::Full,
            2 => ErrorCode::BadAddress,
            3 => ErrorCode::NoSession,
            4 => ErrorCode::Key,
            5 => ErrorCode::Version,
            6 => ErrorCode::Malformed,
            7 => ErrorCode::TooMany,
            other => ErrorCode::Other(other),
        }
    }
}

impl From<ErrorCode> for u16 {
    fn from(code: ErrorCode) -> u16 {
        match code {
            ErrorCode::Full => 1,
            ErrorCode::BadAddress => 2,
            ErrorCode::NoSession => 3,
            ErrorCode::Key => 4,
            ErrorCode::Version => 5,
            ErrorCode::Malformed => 6,
            ErrorCode::TooMany => 7,
            ErrorCode::Other(other) => other,
        }
    }
}

impl WireError {
    /// The code with which this error is reported to a peer.
    pub fn code(&self) -> ErrorCode {
        match self {
            WireError::Version { .. } | WireError::NoCommonVersion { .. } => ErrorCode::Version,
            WireError::Key(_) => ErrorCode::Key,
            WireError::Told { code, .. } => *code,
            _ => ErrorCode::Malformed,
        }
    }
}
