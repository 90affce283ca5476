//! Asks a member over a connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hiroma_far_wire::{
    ClientEvent, ClientSession, HEADER_BYTES, Key, MAX_BODY, Message, WireError,
};
use hiroma_sys::sockets;

use crate::view::{Answer, Request};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody there, or not in time.
    #[error("cannot reach {addr}: {source}; is `hiroma serve` running there?")]
    Unreachable { addr: SocketAddr, source: io::Error },
    /// Another protocol, version or key.
    #[error("{addr}: {source}")]
    Wire { addr: SocketAddr, source: WireError },
    /// An answer that makes no sense.
    #[error("{addr}: its answer makes no sense ({reason}): use the same release of hiroma there")]
    Answer { addr: SocketAddr, reason: String },
    /// The member says why not.
    #[error("{addr}: {reason}")]
    Refused { addr: SocketAddr, reason: String },
}

impl AskError {
    /// Whether asking again can help.
    pub fn is_passing(&self) -> bool {
        matches!(self, AskError::Unreachable { .. } | AskError::Refused { .. })
    }
}

/// Asks the member at `addr`.
pub fn ask(
    addr: SocketAddr,
    key: Option<&Key>,
    request: &Request,
    limit: Duration,
) -> Result<Answer, AskError> {
    let until = Instant::now() + limit;
    let io = |source| AskError::Unreachable { addr, source };
    let mut stream = TcpStream::connect_timeout(&addr, limit).map_err(io)?;
    stream.set_nodelay(true).map_err(io)?;
    let (mut wire, hello) = ClientSession::start(key.cloned(), sockets::random());
    stream.write_all(&hello).map_err(io)?;
    loop {
        match next(&mut stream, &mut wire, addr, until)? {
            ClientEvent::Send(bytes) => stream.write_all(&bytes).map_err(io)?,
            ClientEvent::Ready => {
                let json = serde_json::to_vec(request).expect("requests are plain data");
                let mut bytes = Vec::new();
                Message::Query { len: json.len() as u32 }.encode(wire.version(), 1, &mut bytes);
                bytes.extend_from_slice(&json);
                stream.write_all(&bytes).map_err(io)?;
            }
            ClientEvent::Frame(frame) => {
                return match frame.message {
                    Message::QueryReply { len } => {
                        let mut json = vec![0; len as usize];
                        read_all(&mut stream, &mut json, until).map_err(io)?;
                        answer(addr, &json)
                    }
                    Message::Error { text, .. } => Err(AskError::Refused { addr, reason: text }),
                    other => {
                        let reason = format!("a frame of kind {:?}", other.kind());
                        Err(AskError::Answer { addr, reason })
                    }
                };
            }
        }
    }
}

fn answer(addr: SocketAddr, json: &[u8]) -> Result<Answer, AskError> {
    match serde_json::from_slice(json) {
        Ok(Answer::Error(reason)) => Err(AskError::Refused { addr, reason }),
        Ok(answer) => Ok(answer),
        Err(error) => Err(AskError::Answer { addr, reason: error.to_string() }),
    }
}

fn next(
    stream: &mut TcpStream,
    wire: &mut ClientSession,
    addr: SocketAddr,
    until: Instant,
) -> Result<ClientEvent, AskError> {
    let mut bytes = [0; HEADER_BYTES + MAX_BODY];
    loop {
        let missing = wire.missing();
        read_all(stream, &mut bytes[..missing], until)
            .map_err(|source| AskError::Unreachable { addr, source })?;
        let (_, event) =
            wire.receive(&bytes[..missing]).map_err(|source| AskError::Wire { addr, source })?;
        if let Some(event) = event {
            return Ok(event);
        }
    }
}

/// Fills `bytes`; a peer that sends slowly gets no more time than one that is silent.
fn read_all(stream: &mut TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[done..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Asks the first of these that answers. The error is that of the last one, or of the first that
/// refuses.
pub fn ask_any(
    addrs: &[SocketAddr],
    key: Option<&Key>,
    request: &Request,
    limit: Duration,
) -> Option<Result<Answer, AskError>> {
    let mut last = None;
    for addr in addrs {
        let asked = ask(*addr, key, request, limit);
        let passing = matches!(&asked, Err(error) if error.is_passing());
        last = Some(asked);
        if !passing {
            break;
        }
    }
    last
}
