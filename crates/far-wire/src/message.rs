//! Frames as values: the content of each kind, without the payload.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{ErrorCode, Header, Introduction, Kind, Nonce, Proof, WireError};

/// Maximum number of bytes of a control body.
pub const MAX_BODY: usize = 256;

/// Identifies a session. Any client that has it may read and write the session's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionToken(pub [u8; 16]);

impl SessionToken {
    /// Requests a new session.
    pub const NEW: SessionToken = SessionToken([0; 16]);
}

impl std::fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == SessionToken::NEW {
            "SessionToken(new)"
        } else {
            "SessionToken(secret)"
        })
    }
}

/// The main use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Frees, reservations, usage requests.
    Control,
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Usage of a session and its server, in chunks and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SessionUsage {
    /// Chunks that contain data of this session.
    pub used_chunks: u64,
    /// Chunks reserved for it and not used yet.
    pub reserved_chunks: u64,
    /// Chunks that are neither used nor reserved.
    pub free_chunks: u64,
    /// Total number of chunks of the server.
    pub total_chunks: u64,
    /// Read requests of this session.
    pub reads: u64,
    /// Write requests of this session.
    pub writes: u64,
    /// Bytes sent to it.
    pub read_bytes: u64,
    /// Bytes received from it.
    pub written_bytes: u64,
    /// The client is to move what it has there elsewhere.
    pub is_draining: bool,
    /// Its tenant may have no more than it has.
    pub is_at_quota: bool,
}

/// One frame, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the request.
    pub id: u64,
    /// Its content.
    pub message: Message,
}

/// The content of a frame. The payload of `Write`, `ReadReply`,
/// `Query` and `QueryReply` follows the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Message {
    Hello {
        min: u16,
        max: u16,
        nonce: Nonce,
    },
    Challenge {
        version: u16,
        key_needed: bool,
        nonce: Nonce,
    },
    Proof {
        proof: Proof,
    },
    Welcome {
        proof: Proof,
    },
    Open {
        token: SessionToken,
        lane: u32,
        purpose: Purpose,
    },
    /// `lease_ms`: how long the server keeps the session without a sign of the client's life; 0 if it
    /// does not say so.
    Opened {
        token: SessionToken,
        usage: SessionUsage,
        lease_ms: u32,
    },
    Introduce(Introduction),
    Attach {
        token: SessionToken,
        space: u16,
    },
    Fork,
    Reserve {
        chunks: u32,
    },
    Granted {
        chunks: u32,
        usage: SessionUsage,
    },
    Write {
        addr: u64,
        len: u32,
    },
    Read {
        addr: u64,
        len: u32,
    },
    ReadReply {
        addr: u64,
        len: u32,
    },
    Ack,
    Free {
        addr: u64,
        len: u32,
    },
    Usage,
    UsageReply {
        usage: SessionUsage,
    },
    Error {
        code: ErrorCode,
        text: String,
    },
    Ping,
    /// `short_blocks`: how many blocks have fewer pieces, at all servers together, than they should.
    Tell {
        short_blocks: u64,
    },
    AskRings,
    /// `name`: the abstract name of a Unix socket; `secret`: what to say there.
    OfferRings {
        name: [u8; 16],
        secret: [u8; 16],
    },
    TakeRings,
    Bye,
    Query {
        len: u32,
    },
    QueryReply {
        len: u32,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NonceBody {
    low: U16,
    high: U16,
    nonce: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ProofBody {
    proof: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TokenBody {
    token: [u8; 16],
    lane: U32,
    purpose: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UsageBody {
    token: [u8; 16],
    numbers: [U64; 8],
    chunks: U32,
    flags: U32,
}

/// In the flags of a [`UsageBody`].
const DRAINING: u32 = 1;
const AT_QUOTA: u32 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CountBody {
    chunks: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TellBody {
    short_blocks: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RingsBody {
    name: [u8; 16],
    secret: [u8; 16],
}

/// Length of the control body of a kind whose bodies all have the same length.
pub(crate) fn body_bytes(kind: Kind) -> usize {
    match kind {
        Kind::Hello | Kind::Challenge => size_of::<NonceBody>(),
        Kind::Proof | Kind::Welcome => size_of::<ProofBody>(),
        Kind::Open | Kind::Attach => size_of::<TokenBody>(),
        Kind::Opened | Kind::Granted | Kind::UsageReply => size_of::<UsageBody>(),
        Kind::Reserve => size_of::<CountBody>(),
        Kind::Tell => size_of::<TellBody>(),
        Kind::OfferRings => size_of::<RingsBody>(),
        _ => 0,
    }
}

impl UsageBody {
    fn new(token: SessionToken, chunks: u32, usage: &SessionUsage) -> UsageBody {
        let SessionUsage {
            used_chunks,
            reserved_chunks,
            free_chunks,
            total_chunks,
            reads,
            writes,
            read_bytes,
            written_bytes,
            is_draining,
            is_at_quota,
        } = *usage;
        let numbers = [
            used_chunks,
            reserved_chunks,
            free_chunks,
            total_chunks,
            reads,
            writes,
            read_bytes,
            written_bytes,
        ];
        UsageBody {
            token: token.0,
            numbers: numbers.map(U64::new),
            chunks: U32::new(chunks),
            flags: U32::new(
                if is_draining { DRAINING } else { 0 } | if is_at_quota { AT_QUOTA } else { 0 },
            ),
        }
    }

    fn usage(&self) -> SessionUsage {
        let [
            used_chunks,
            reserved_chunks,
            free_chunks,
            total_chunks,
            reads,
            writes,
            read_bytes,
            written_bytes,
        ] = self.numbers.map(U64::get);
        SessionUsage {
            used_chunks,
            reserved_chunks,
            free_chunks,
            total_chunks,
            reads,
            writes,
            read_bytes,
            written_bytes,
            is_draining: self.flags.get() & DRAINING != 0,
            is_at_quota: self.flags.get() & AT_QUOTA != 0,
        }
    }
}

impl Message {
    /// The kind of the frame.
    pub fn kind(&self) -> Kind {
        match self {
            Message::Hello { .. } => Kind::Hello,
            Message::Challenge { .. } => Kind::Challenge,
            Message::Proof { .. } => Kind::Proof,
            Message::Welcome { .. } => Kind::Welcome,
            Message::Open { .. } => Kind::Open,
            Message::Opened { .. } => Kind::Opened,
            Message::Introduce(_) => Kind::Introduce,
            Message::Attach { .. } => Kind::Attach,
            Message::Fork => Kind::Fork,
            Message::Reserve { .. } => Kind::Reserve,
            Message::Granted { .. } => Kind::Granted,
            Message::Write { .. } => Kind::Write,
            Message::Read { .. } => Kind::Read,
            Message::ReadReply { .. } => Kind::ReadReply,
            Message::Ack => Kind::Ack,
            Message::Free { .. } => Kind::Free,
            Message::Usage => Kind::Usage,
            Message::UsageReply { .. } => Kind::UsageReply,
            Message::Error { .. } => Kind::Error,
            Message::Ping => Kind::Ping,
            Message::Tell { .. } => Kind::Tell,
            Message::AskRings => Kind::AskRings,
            Message::OfferRings { .. } => Kind::OfferRings,
            Message::TakeRings => Kind::TakeRings,
            Message::Bye => Kind::Bye,
            Message::Query { .. } => Kind::Query,
            Message::QueryReply { .. } => Kind::QueryReply,
        }
    }

    /// Appends header and control body to `out`; the transport sends the payload.
    pub fn encode(&self, version: u16, id: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + crate::HEADER_BYTES, 0);
        let (mut addr, mut payload) = (0, None);
        match self {
            Message::Hello { min, max, nonce } => {
                out.extend_from_slice(
                    NonceBody { low: U16::new(*min), high: U16::new(*max), nonce: *nonce }
                        .as_bytes(),
                );
            }
            Message::Challenge { version, key_needed, nonce } => {
                let body = NonceBody {
                    low: U16::new(*version),
                    high: U16::new(u16::from(*key_needed)),
                    nonce: *nonce,
                };
                out.extend_from_slice(body.as_bytes());
            }
            Message::Proof { proof } | Message::Welcome { proof } => out.extend_from_slice(proof),
            Message::Open { token, lane, purpose } => {
                let purpose = U32::new(match purpose {
                    Purpose::Control => 0,
                    Purpose::Read => 1,
                    Purpose::Write => 2,
                });
                out.extend_from_slice(
                    TokenBody { token: token.0, lane: U32::new(*lane), purpose }.as_bytes(),
                );
            }
            Message::Attach { token, space } => {
                let body = TokenBody {
                    token: token.0,
                    lane: U32::new(u32::from(*space)),
                    purpose: U32::ZERO,
                };
                out.extend_from_slice(body.as_bytes());
            }
            Message::Opened { token, usage, lease_ms } => {
                out.extend_from_slice(UsageBody::new(*token, *lease_ms, usage).as_bytes())
            }
            Message::Introduce(introduction) => introduction.encode(out),
            Message::Granted { chunks, usage } => {
                out.extend_from_slice(UsageBody::new(SessionToken::NEW, *chunks, usage).as_bytes())
            }
            Message::UsageReply { usage } => {
                out.extend_from_slice(UsageBody::new(SessionToken::NEW, 0, usage).as_bytes())
            }
            Message::Tell { short_blocks } => out.extend_from_slice(&short_blocks.to_le_bytes()),
            Message::Reserve { chunks } => out.extend_from_slice(&chunks.to_le_bytes()),
            Message::Error { code, text } => {
                out.extend_from_slice(&u16::from(*code).to_le_bytes());
                let end = (0..=text.len().min(MAX_BODY - 2))
                    .rev()
                    .find(|&end| text.is_char_boundary(end))
                    .unwrap_or(0);
                out.extend_from_slice(&text.as_bytes()[..end]);
            }
            Message::Write { addr: at, len }
            | Message::Read { addr: at, len }
            | Message::ReadReply { addr: at, len } => {
                (addr, payload) = (*at, Some(*len));
            }
            Message::Free { addr: at, len } => (addr, payload) = (*at, Some(*len)),
            Message::Query { len } | Message::QueryReply { len } => payload = Some(*len),
            Message::OfferRings { name, secret } => {
                let body = RingsBody { name: *name, secret: *secret };
                out.extend_from_slice(body.as_bytes());
            }
            Message::Fork
            | Message::Ack
            | Message::Usage
            | Message::Ping
            | Message::AskRings
            | Message::TakeRings
            | Message::Bye => {}
        }
        let len = payload.unwrap_or((out.len() - start - crate::HEADER_BYTES) as u32);
        let header = Header { version, kind: self.kind(), id, addr, len };
        out[start..start + crate::HEADER_BYTES].copy_from_slice(&header.encode());
    }

    /// Decodes a frame from a checked header and its control body.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Frame, WireError> {
        let kind = header.kind;
        let wrong = || WireError::Body { kind };
        let (addr, len) = (header.addr, header.len);
        let message = match kind {
            Kind::Hello => {
                let body = NonceBody::ref_from_bytes(body).map_err(|_| wrong())?;
                Message::Hello { min: body.low.get(), max: body.high.get(), nonce: body.nonce }
            }
            Kind::Challenge => {
                let body = NonceBody::ref_from_bytes(body).map_err(|_| wrong())?;
                Message::Challenge {
                    version: body.low.get(),
                    key_needed: body.high.get() != 0,
                    nonce: body.nonce,
                }
            }
            Kind::Proof => Message::Proof { proof: body.try_into().map_err(|_| wrong())? },
            Kind::Welcome => Message::Welcome { proof: body.try_into().map_err(|_| wrong())? },
            Kind::Open => {
                let body = TokenBody::ref_from_bytes(body).map_err(|_| wrong())?;
                let purpose = match body.purpose.get() {
                    0 => Purpose::Control,
                    1 => Purpose::Read,
                    2 => Purpose::Write,
                    _ => return Err(wrong()),
                };
                Message::Open { token: SessionToken(body.token), lane: body.lane.get(), purpose }
            }
            Kind::Attach => {
                let body = TokenBody::ref_from_bytes(body).map_err(|_| wrong())?;
                let space = u16::try_from(body.lane.get()).map_err(|_| wrong())?;
                Message::Attach { token: SessionToken(body.token), space }
            }
            Kind::Opened | Kind::Granted | Kind::UsageReply => {
                let body = UsageBody::ref_from_bytes(body).map_err(|_| wrong())?;
                let usage = body.usage();
                match kind {
                    Kind::Opened => Message::Opened {
                        token: SessionToken(body.token),
                        usage,
                        lease_ms: body.chunks.get(),
                    },
                    Kind::Granted => Message::Granted { chunks: body.chunks.get(), usage },
                    _ => Message::UsageReply { usage },
                }
            }
            Kind::Introduce => Message::Introduce(Introduction::decode(body).ok_or_else(wrong)?),
            Kind::Reserve => Message::Reserve {
                chunks: CountBody::ref_from_bytes(body).map_err(|_| wrong())?.chunks.get(),
            },
            Kind::Tell => Message::Tell {
                short_blocks: TellBody::ref_from_bytes(body)
                    .map_err(|_| wrong())?
                    .short_blocks
                    .get(),
            },
            Kind::Error => {
                let (code, text) = body.split_first_chunk::<2>().ok_or_else(wrong)?;
                Message::Error { code: u16::from_le_bytes(*code).into(), text: printable(text) }
            }
            Kind::Write => Message::Write { addr, len },
            Kind::Read => Message::Read { addr, len },
            Kind::ReadReply => Message::ReadReply { addr, len },
            Kind::Free => Message::Free { addr, len },
            Kind::Fork => Message::Fork,
            Kind::Ack => Message::Ack,
            Kind::Usage => Message::Usage,
            Kind::Ping => Message::Ping,
            Kind::AskRings => Message::AskRings,
            Kind::OfferRings => {
                let body = RingsBody::ref_from_bytes(body).map_err(|_| wrong())?;
                Message::OfferRings { name: body.name, secret: body.secret }
            }
            Kind::TakeRings => Message::TakeRings,
            Kind::Bye => Message::Bye,
            Kind::Query => Message::Query { len },
            Kind::QueryReply => Message::QueryReply { len },
        };
        Ok(Frame { id: header.id, message })
    }
}

/// The text of a peer, safe to print on a terminal.
fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
