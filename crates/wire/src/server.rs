//! The server's end of one connection.

use crate::auth::Side;
use crate::{Frame, Inbound, Key, KeyError, Kind, Message, Nonce, VERSIONS, WireError};

/// What a server is to do about what has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// Send these bytes.
    Send(Vec<u8>),
    /// The connection is to be bound to a session: the frame is an `Open`.
    Open(Frame),
    /// A request. If it is a `Write`, its payload follows.
    Request(Frame),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    AwaitHello,
    AwaitProof,
    AwaitOpen,
    Open,
}

/// The server's end of one connection: bytes in, events out.
pub struct ServerSession {
    inbound: Inbound,
    key: Option<Key>,
    nonce: Nonce,
    client_nonce: Nonce,
    version: u16,
    state: State,
}

impl ServerSession {
    /// A connection that has just been accepted. `nonce` is fresh and random.
    pub fn new(key: Option<Key>, nonce: Nonce) -> ServerSession {
        ServerSession { inbound: Inbound::new(), key, nonce, client_nonce: [0; 32], version: *VERSIONS.start(), state: State::AwaitHello }
    }

    /// The protocol version agreed on.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Whether the client has proved itself.
    pub fn is_authenticated(&self) -> bool {
        matches!(self.state, State::AwaitOpen | State::Open)
    }

    /// The frame that is arriving, for a transport that receives payloads itself.
    pub fn inbound(&mut self) -> &mut Inbound {
        &mut self.inbound
    }

    /// Bytes until the current header or control body is complete.
    pub fn missing(&self) -> usize {
        self.inbound.missing()
    }

    /// What to tell the client before the connection is ended for `error`.
    pub fn farewell(&self, error: &WireError) -> Vec<u8> {
        let mut bytes = Vec::new();
        Message::Error { code: error.code(), text: error.to_string() }.encode(self.version, 0, &mut bytes);
        bytes
    }

    /// Takes bytes in; returns how many were used and what to do. Call again with the rest; a payload is not taken.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<ServerEvent>), WireError> {
        let state = self.state;
        let (used, frame) = self.inbound.feed(bytes, |kind| allowed(state, kind))?;
        let Some(frame) = frame else { return Ok((used, None)) };
        let event = match (state, &frame.message) {
            (State::AwaitHello, &Message::Hello { min, max, nonce }) => self.challenge(min, max, nonce)?,
            (State::AwaitProof, Message::Proof { proof }) => {
                let mut answer = [0; 32];
                if let Some(key) = &self.key {
                    if !key.verify(Side::Client, self.version, &self.client_nonce, &self.nonce, proof) {
                        return Err(KeyError::ClientWrong.into());
                    }
                    answer = key.prove(Side::Server, self.version, &self.client_nonce, &self.nonce);
                }
                self.state = State::AwaitOpen;
                self.say(Message::Welcome { proof: answer })
            }
            (State::AwaitOpen, _) => {
                self.state = State::Open;
                ServerEvent::Open(frame)
            }
            _ => ServerEvent::Request(frame),
        };
        Ok((used, Some(event)))
    }

    fn say(&self, message: Message) -> ServerEvent {
        let mut bytes = Vec::new();
        message.encode(self.version, 0, &mut bytes);
        ServerEvent::Send(bytes)
    }

    fn challenge(&mut self, min: u16, max: u16, nonce: Nonce) -> Result<ServerEvent, WireError> {
        let version = max.min(*VERSIONS.end());
        if version < min || !VERSIONS.contains(&version) {
            let (server_min, server_max) = VERSIONS.into_inner();
            return Err(WireError::NoCommonVersion { client_min: min, client_max: max, server_min, server_max });
        }
        (self.version, self.client_nonce, self.state) = (version, nonce, State::AwaitProof);
        Ok(self.say(Message::Challenge { version, key_needed: self.key.is_some(), nonce: self.nonce }))
    }
}

fn allowed(state: State, kind: Kind) -> Result<(), WireError> {
    let (fits, expected) = match state {
        State::AwaitHello => (kind == Kind::Hello, "a hello"),
        State::AwaitProof => (kind == Kind::Proof, "a proof"),
        State::AwaitOpen => (kind == Kind::Open, "an open"),
        State::Open => (
            matches!(
                kind,
                Kind::Attach | Kind::Fork | Kind::Reserve | Kind::Write | Kind::Read | Kind::Free | Kind::Usage | Kind::Ping | Kind::Bye
            ),
            "a request",
        ),
    };
    if fits { Ok(()) } else { Err(WireError::Unexpected { kind, expected }) }
}
