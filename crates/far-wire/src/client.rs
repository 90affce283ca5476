//! The client's end of one connection.

use crate::auth::Side;
use crate::identity::Handshake;
use crate::{Frame, Inbound, Key, KeyError, Kind, Message, Nonce, VERSIONS, WireError};

/// What a client must do in response to received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Both sides have proved that they have the key: requests may be sent.
    Ready,
    /// An answer.
    Frame(Frame),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Identities are shown.
    Handshake,
    AwaitChallenge,
    AwaitWelcome,
    Ready,
}

/// The client's end of one connection: bytes in, events out.
pub struct ClientSession {
    inbound: Inbound,
    handshake: Option<Handshake>,
    /// Why there can be no handshake.
    failed: Option<KeyError>,
    key: Option<Key>,
    nonce: Nonce,
    server_nonce: Nonce,
    version: u16,
    state: State,
}

impl ClientSession {
    /// A connection that was just made. `nonce` is fresh and random. Returns the bytes to send
    /// first.
    pub fn start(key: Option<Key>, nonce: Nonce) -> (ClientSession, Vec<u8>) {
        let mut session = ClientSession {
            inbound: Inbound::new(),
            handshake: None,
            failed: None,
            key,
            nonce,
            server_nonce: [0; 32],
            version: *VERSIONS.start(),
            state: State::AwaitChallenge,
        };
        match session.key.as_ref().and_then(Key::identity).map(Handshake::client) {
            None => {}
            Some(Ok((handshake, first))) => {
                (session.handshake, session.state) = (Some(handshake), State::Handshake);
                return (session, first);
            }
            Some(Err(error)) => session.failed = Some(error),
        }
        let hello = session.hello();
        (session, hello)
    }

    fn hello(&self) -> Vec<u8> {
        let mut hello = Vec::new();
        let (min, max) = VERSIONS.into_inner();
        Message::Hello { min, max, nonce: self.nonce }.encode(min, 0, &mut hello);
        hello
    }

    /// The protocol version agreed on.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Whether requests may be sent.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// The frame that is arriving, for a transport that receives payloads itself.
    pub fn inbound(&mut self) -> &mut Inbound {
        &mut self.inbound
    }

    /// Bytes until the current header or control body is complete.
    pub fn missing(&self) -> usize {
        self.handshake.as_ref().map_or_else(|| self.inbound.missing(), Handshake::missing)
    }

    /// Consumes bytes; returns how many were used and what to do. Call again with the rest; payload
    /// bytes are not consumed.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<ClientEvent>), WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone().into());
        }
        if let Some(handshake) = &mut self.handshake {
            if handshake.fits(bytes) {
                return self.shake_hands(bytes);
            }
            // The server ends the connection, and says why.
            self.handshake = None;
        }
        let state = self.state;
        let (used, frame) = self.inbound.feed(bytes, |kind| allowed(state, kind))?;
        let Some(frame) = frame else { return Ok((used, None)) };
        if state == State::Ready {
            return Ok((used, Some(ClientEvent::Frame(frame))));
        }
        let event = match frame.message {
            Message::Challenge { version, key_needed, nonce } => {
                self.answer(version, key_needed, nonce)?
            }
            Message::Welcome { proof } => {
                if let Some(key) = &self.key {
                    if !key.verify(
                        Side::Server,
                        self.version,
                        &self.nonce,
                        &self.server_nonce,
                        &proof,
                    ) {
                        return Err(KeyError::ServerWrong.into());
                    }
                }
                self.state = State::Ready;
                ClientEvent::Ready
            }
            Message::Error { code, text } => return Err(WireError::Told { code, text }),
            other => {
                return Err(WireError::Unexpected { kind: other.kind(), expected: "a handshake" });
            }
        };
        Ok((used, Some(event)))
    }

    fn shake_hands(&mut self, bytes: &[u8]) -> Result<(usize, Option<ClientEvent>), WireError> {
        let Some(handshake) = &mut self.handshake else { return Ok((0, None)) };
        let (used, mut to_send) = handshake.receive(bytes)?;
        if let Some(key) = handshake.key()? {
            (self.key, self.handshake, self.state) = (Some(key), None, State::AwaitChallenge);
            to_send.extend(self.hello());
        }
        Ok((used, (!to_send.is_empty()).then_some(ClientEvent::Send(to_send))))
    }

    fn answer(
        &mut self,
        version: u16,
        key_needed: bool,
        server_nonce: Nonce,
    ) -> Result<ClientEvent, WireError> {
        if !VERSIONS.contains(&version) {
            return Err(WireError::Version { found: version, expected: *VERSIONS.end() });
        }
        (self.version, self.server_nonce) = (version, server_nonce);
        let proof = match (&self.key, key_needed) {
            (Some(key), true) => key.prove(Side::Client, version, &self.nonce, &server_nonce),
            (None, false) => [0; 32],
            (None, true) => return Err(KeyError::Needed.into()),
            (Some(_), false) => return Err(KeyError::NotAskedFor.into()),
        };
        let mut bytes = Vec::new();
        Message::Proof { proof }.encode(version, 0, &mut bytes);
        self.state = State::AwaitWelcome;
        Ok(ClientEvent::Send(bytes))
    }
}

fn allowed(state: State, kind: Kind) -> Result<(), WireError> {
    let (fits, expected) = match state {
        State::Handshake => (kind == Kind::Error, "a handshake"),
        State::AwaitChallenge => (matches!(kind, Kind::Challenge | Kind::Error), "a challenge"),
        State::AwaitWelcome => (matches!(kind, Kind::Welcome | Kind::Error), "a welcome"),
        State::Ready => (
            matches!(
                kind,
                Kind::Opened
                    | Kind::Granted
                    | Kind::ReadReply
                    | Kind::Ack
                    | Kind::UsageReply
                    | Kind::QueryReply
                    | Kind::OfferRings
                    | Kind::Error
            ),
            "an answer to a request",
        ),
    };
    if fits { Ok(()) } else { Err(WireError::Unexpected { kind, expected }) }
}
