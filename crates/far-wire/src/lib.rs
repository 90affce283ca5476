//! The protocol between a client and a memory server, without sockets, clocks or threads.
//!
//! Every frame is a [`Header`] of 32 bytes, little endian, with its own checksum. Control messages
//! have a body of a few bytes ([`Message`]). `Write` and `ReadReply` carry a payload that never
//! passes through this crate: the session states how many bytes follow and what they are, and the
//! transport moves them directly to their destination.
//!
//! A connection starts with four control frames: the client's `Hello` (versions, nonce), the
//! server's `Challenge` (version chosen, whether a key is needed, nonce), the client's `Proof` and
//! the server's `Welcome`. The two proofs are HMAC-SHA256 over both nonces under the shared key, so
//! each side knows that the other one has it. Until then a server accepts only a `Hello` and a
//! `Proof` of fixed length. The key authenticates both sides when the connection is made; what
//! follows is not encrypted.
//!
//! Where both sides have an identity in a pool, a TLS handshake comes first (`identity.rs`). The
//! key of that connection's greeting is derived from it.
//!
//! From version 2 on, a client may then say who it is (`Introduce`); nothing is answered.
//! Then the connection is bound to a session (`Open`), with a lane number that the client chooses.
//! From version 4 on, a client on the server's machine may then ask for rings in shared memory
//! (`AskRings`, `OfferRings`, `TakeRings`), in which the same frames go on.
//! If a lane is opened again, the server first ends the older connection of that lane, so that
//! nothing left in it can overtake what is sent again.

mod auth;
mod client;
mod error;
mod header;
mod identity;
mod inbound;
mod message;
mod server;
mod tenant;

pub use auth::{Key, KeyError, Nonce, Proof};
pub use client::{ClientEvent, ClientSession};
pub use error::{ErrorCode, WireError};
pub use header::{HEADER_BYTES, Header, Kind, MAX_PAYLOAD, MAX_QUERY};
pub use identity::{Clock, MEMBER_NAME, POOL_KEY_LINE};
pub use inbound::Inbound;
pub use message::{Frame, MAX_BODY, Message, Purpose, SessionToken, SessionUsage};
pub use server::{ServerEvent, ServerSession};
pub use tenant::{Introduction, TENANT_MAX, TenantError, check_tenant};

/// The protocol versions that this build supports.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=4;
/// The first version in which a client can introduce itself.
pub const INTRODUCTION_VERSION: u16 = 2;
/// The first version in which a client says how many of its blocks have too few pieces.
pub const TELL_VERSION: u16 = 3;
/// The first version in which a connection can go on in shared memory.
pub const RINGS_VERSION: u16 = 4;
/// Memory is allocated, addressed and freed in chunks of 2 MiB; no request crosses the end of one.
pub const CHUNK: usize = hiroma_units::EXTENT;
/// Number of address bits inside one memory space. The bits above select the space: 0 is the
/// session's own, the others are sessions that it has attached.
pub const SPACE_SHIFT: u32 = 48;
/// Maximum number of sessions that one session can have attached at a time.
pub const MAX_SPACES: u16 = 255;
