//! The fixed header of every frame.

use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::message::{MAX_BODY, body_bytes};
use crate::{CHUNK, TENANT_MAX, WireError};

/// Length of a header.
pub const HEADER_BYTES: usize = 32;
/// Maximum number of payload bytes in one frame.
pub const MAX_PAYLOAD: usize = CHUNK;
/// Maximum number of bytes of a query.
pub const MAX_QUERY: usize = 4096;
const MAGIC: u32 = u32::from_le_bytes(*b"HIRO");

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    kind: U16,
    id: U64,
    addr: U64,
    len: U32,
    check: U32,
}

/// Description of one frame. `len` is the length of what follows, except in `Read` and `Free`,
/// where nothing follows and it is the number of bytes that the request refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Protocol version.
    pub version: u16,
    /// What the frame is.
    pub kind: Kind,
    /// Number of the request, repeated in replies.
    pub id: u64,
    /// Address in the memory space of the session.
    pub addr: u64,
    /// See above.
    pub len: u32,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// The kind of a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind { $($(#[$doc])* $name = $number),* }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];

            fn from_number(number: u16) -> Result<Kind, WireError> {
                match number {
                    $($number => Ok(Kind::$name),)*
                    other => Err(WireError::Kind(other)),
                }
            }
        }
    };
}

kinds! {
    /// First frame of a client.
    Hello = 1,
    /// The server's answer to it.
    Challenge = 2,
    /// The client proves that it has the key.
    Proof = 3,
    /// The server proves that it has the key.
    Welcome = 4,
    /// Binds the connection to a session.
    Open = 5,
    /// The session is open.
    Opened = 6,
    /// Makes another session's memory readable.
    Attach = 7,
    /// Announces a child that will attach this session: the session must outlive its client until
    /// then.
    Fork = 8,
    /// Requests room for that many more chunks.
    Reserve = 9,
    /// Room for that many chunks was reserved.
    Granted = 10,
    /// Stores the payload at an address.
    Write = 11,
    /// Requests the bytes at an address.
    Read = 12,
    /// The requested bytes.
    ReadReply = 13,
    /// A request without a reply of its own was executed.
    Ack = 14,
    /// Frees chunks.
    Free = 15,
    /// Requests the usage of session and server.
    Usage = 16,
    /// The reply to `Usage`.
    UsageReply = 17,
    /// A request failed, or the connection ends.
    Error = 18,
    /// Requests an `Ack`.
    Ping = 19,
    /// The client no longer needs the session.
    Bye = 20,
    /// Says who the client is, before `Open`.
    Introduce = 21,
    /// Says how many blocks of the client have fewer pieces than they should.
    Tell = 22,
    /// Asks for rings in shared memory, which carry the connection from then on.
    AskRings = 23,
    /// Where the client may come to take them.
    OfferRings = 24,
    /// The client has come. After the `Ack`, the connection goes on in the rings.
    TakeRings = 25,
    /// A request of a person or a tool about server and pool; JSON follows as payload.
    Query = 40,
    /// The answer to it; JSON follows as payload.
    QueryReply = 41,
}

impl Header {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = RawHeader {
            magic: U32::new(MAGIC),
            version: U16::new(self.version),
            kind: U16::new(self.kind as u16),
            id: U64::new(self.id),
            addr: U64::new(self.addr),
            len: U32::new(self.len),
            check: U32::ZERO,
        };
        raw.check = U32::new(checksum(raw.as_bytes()));
        zerocopy::transmute!(raw)
    }

    /// Decodes a header and checks everything that can be checked without the state of the session.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, WireError> {
        let raw: &RawHeader = zerocopy::transmute_ref!(bytes);
        if raw.magic.get() != MAGIC {
            return Err(WireError::Magic(raw.magic.get()));
        }
        let expected = checksum(bytes);
        if raw.check.get() != expected {
            return Err(WireError::Checksum { found: raw.check.get(), expected });
        }
        if !crate::VERSIONS.contains(&raw.version.get()) {
            return Err(WireError::Version {
                found: raw.version.get(),
                expected: *crate::VERSIONS.end(),
            });
        }
        let kind = Kind::from_number(raw.kind.get())?;
        let header = Header {
            version: raw.version.get(),
            kind,
            id: raw.id.get(),
            addr: raw.addr.get(),
            len: raw.len.get(),
        };
        header.check_length()?;
        Ok(header)
    }

    fn check_length(&self) -> Result<(), WireError> {
        let len = self.len as usize;
        let fits = match self.kind {
            Kind::Read | Kind::Write | Kind::ReadReply | Kind::QueryReply => {
                (1..=MAX_PAYLOAD).contains(&len)
            }
            Kind::Query => (1..=MAX_QUERY).contains(&len),
            Kind::Free => len >= CHUNK && len % CHUNK == 0,
            Kind::Error => (2..=MAX_BODY).contains(&len),
            Kind::Introduce => (1..=1 + TENANT_MAX).contains(&len),
            kind => len == body_bytes(kind),
        };
        if fits { Ok(()) } else { Err(WireError::Length { kind: self.kind, len: self.len }) }
    }

    /// Number of bytes of the control body that follows.
    pub fn body_bytes(&self) -> usize {
        match self.kind {
            Kind::Read | Kind::Free => 0,
            _ if self.payload_bytes() > 0 => 0,
            _ => self.len as usize,
        }
    }

    /// Number of bytes of the payload that follows.
    pub fn payload_bytes(&self) -> usize {
        match self.kind {
            Kind::Write | Kind::ReadReply | Kind::Query | Kind::QueryReply => self.len as usize,
            _ => 0,
        }
    }
}

/// The lower half of the XXH3-64 of a header up to its last field.
fn checksum(header: &[u8]) -> u32 {
    XxHash3_64::oneshot(&header[..HEADER_BYTES - 4]) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_header() -> Header {
        Header { version: 1, kind: Kind::Read, id: 7, addr: 1 << 40, len: 8192 }
    }

    #[test]
    fn header_round_trips() {
        let header = read_header();
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    /// Programs and servers of different builds communicate: these bytes never change.
    #[test]
    fn header_bytes_never_change() {
        let golden = [
            0x48, 0x49, 0x52, 0x4f, 0x01, 0x00, 0x0c, 0x00, 0x07, 0, 0, 0, 0, 0, 0, 0, //
            0, 0, 0, 0, 0, 0x01, 0, 0, 0x00, 0x20, 0, 0, 0x58, 0x95, 0xfc, 0x75,
        ];
        assert_eq!(read_header().encode(), golden);
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let bytes = read_header().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = Header::decode(&damaged).unwrap_err();
            assert!(
                matches!(error, WireError::Magic(_) | WireError::Checksum { .. }),
                "bit {bit}: {error:?}"
            );
        }
    }

    #[test]
    fn invalid_lengths_are_refused() {
        for (kind, len) in [
            (Kind::Read, 0),
            (Kind::Read, u32::MAX),
            (Kind::Write, 0),
            (Kind::Write, CHUNK as u32 + 1),
            (Kind::ReadReply, u32::MAX),
            (Kind::Hello, 0),
            (Kind::Hello, 1 << 20),
            (Kind::Error, u32::MAX),
            (Kind::Free, 4096),
            (Kind::Bye, 1),
            (Kind::Introduce, 0),
            (Kind::Introduce, 65),
        ] {
            let bytes = Header { kind, len, ..read_header() }.encode();
            assert_eq!(Header::decode(&bytes), Err(WireError::Length { kind, len }));
        }
    }

    #[test]
    fn other_versions_and_unknown_kinds_are_named() {
        let bytes = Header { version: 9, ..read_header() }.encode();
        assert_eq!(Header::decode(&bytes), Err(WireError::Version { found: 9, expected: 4 }));
        let mut bytes = read_header().encode();
        bytes[6] = 99;
        let check = checksum(&bytes).to_le_bytes();
        bytes[28..].copy_from_slice(&check);
        assert_eq!(Header::decode(&bytes), Err(WireError::Kind(99)));
    }
}
