//! The server's end of one connection.

use crate::auth::Side;
use crate::identity::Handshake;
use crate::{
    Frame, Inbound, Introduction, Key, KeyError, Kind, Message, Nonce, VERSIONS, WireError,
};

/// What a server must do in response to received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// Send these bytes.
    Send(Vec<u8>),
    /// The connection is to be bound to a session: the frame is an `Open`.
    Open(Frame),
    /// A query: a connection may carry several, and is not bound to a session. Its payload follows.
    Query(Frame),
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
    /// Identities are shown, before anything else.
    handshake: Option<Result<Handshake, KeyError>>,
    /// Nothing was received.
    is_new: bool,
    key: Option<Key>,
    nonce: Nonce,
    client_nonce: Nonce,
    version: u16,
    state: State,
    introduction: Introduction,
}

impl ServerSession {
    /// A connection that was just accepted. `nonce` is fresh and random.
    pub fn new(key: Option<Key>, nonce: Nonce) -> ServerSession {
        ServerSession {
            inbound: Inbound::new(),
            handshake: key.as_ref().and_then(Key::identity).map(Handshake::server),
            is_new: true,
            key,
            nonce,
            client_nonce: [0; 32],
            version: *VERSIONS.start(),
            state: State::AwaitHello,
            introduction: Introduction::default(),
        }
    }

    /// The protocol version agreed on.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Whether the client has proved that it has the key.
    pub fn is_authenticated(&self) -> bool {
        matches!(self.state, State::AwaitOpen | State::Open)
    }

    /// Who the client says it is.
    pub fn introduction(&self) -> &Introduction {
        &self.introduction
    }

    /// The frame that is arriving, for a transport that receives payloads itself.
    pub fn inbound(&mut self) -> &mut Inbound {
        &mut self.inbound
    }

    /// Bytes until the current header or control body is complete.
    pub fn missing(&self) -> usize {
        match &self.handshake {
            Some(Ok(handshake)) => handshake.missing(),
            _ => self.inbound.missing(),
        }
    }

    /// The message to send to the client before the connection is ended because of `error`.
    pub fn farewell(&self, error: &WireError) -> Vec<u8> {
        let mut bytes = Vec::new();
        Message::Error { code: error.code(), text: error.to_string() }.encode(
            self.version,
            0,
            &mut bytes,
        );
        bytes
    }

    /// Consumes bytes; returns how many were used and what to do. Call again with the rest; payload
    /// bytes are not consumed.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<ServerEvent>), WireError> {
        let Some(&first) = bytes.first() else { return Ok((0, None)) };
        if std::mem::take(&mut self.is_new) {
            match (&self.handshake, Handshake::begins_with(first)) {
                (Some(_), false) => return Err(KeyError::IdentityNeeded.into()),
                (None, true) => return Err(KeyError::IdentityNotAskedFor.into()),
                _ => {}
            }
        }
        if let Some(handshake) = &mut self.handshake {
            let handshake = handshake.as_mut().map_err(|error| error.clone())?;
            let (used, to_send) = handshake.receive(bytes)?;
            if let Some(key) = handshake.key()? {
                (self.key, self.handshake) = (Some(key), None);
            }
            return Ok((used, (!to_send.is_empty()).then_some(ServerEvent::Send(to_send))));
        }
        let state = self.state;
        let (used, frame) = self.inbound.feed(bytes, |kind| allowed(state, kind))?;
        let Some(frame) = frame else { return Ok((used, None)) };
        let event = match (state, &frame.message) {
            (State::AwaitHello, &Message::Hello { min, max, nonce }) => {
                self.challenge(min, max, nonce)?
            }
            (State::AwaitProof, Message::Proof { proof }) => {
                let mut answer = [0; 32];
                if let Some(key) = &self.key {
                    if !key.verify(
                        Side::Client,
                        self.version,
                        &self.client_nonce,
                        &self.nonce,
                        proof,
                    ) {
                        return Err(KeyError::ClientWrong.into());
                    }
                    answer = key.prove(Side::Server, self.version, &self.client_nonce, &self.nonce);
                }
                self.state = State::AwaitOpen;
                self.say(Message::Welcome { proof: answer })
            }
            (State::AwaitOpen, Message::Query { .. }) => ServerEvent::Query(frame),
            (State::AwaitOpen, Message::Introduce(introduction)) => {
                self.introduction = introduction.clone();
                return Ok((used, None));
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
            return Err(WireError::NoCommonVersion {
                client_min: min,
                client_max: max,
                server_min,
                server_max,
            });
        }
        (self.version, self.client_nonce, self.state) = (version, nonce, State::AwaitProof);
        Ok(self.say(Message::Challenge {
            version,
            key_needed: self.key.is_some(),
            nonce: self.nonce,
        }))
    }
}

fn allowed(state: State, kind: Kind) -> Result<(), WireError> {
    let (fits, expected) = match state {
        State::AwaitHello => (kind == Kind::Hello, "a hello"),
        State::AwaitProof => (kind == Kind::Proof, "a proof"),
        State::AwaitOpen => (matches!(kind, Kind::Introduce | Kind::Open | Kind::Query), "an open"),
        State::Open => (
            matches!(
                kind,
                Kind::Attach
                    | Kind::Fork
                    | Kind::Reserve
                    | Kind::Write
                    | Kind::Read
                    | Kind::Free
                    | Kind::Usage
                    | Kind::Ping
                    | Kind::Tell
                    | Kind::AskRings
                    | Kind::TakeRings
                    | Kind::Bye
            ),
            "a request",
        ),
    };
    if fits { Ok(()) } else { Err(WireError::Unexpected { kind, expected }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        CHUNK, ClientEvent, ClientSession, ErrorCode, HEADER_BYTES, MAX_BODY, Purpose,
        SessionToken, SessionUsage,
    };

    fn key(text: &str) -> Option<Key> {
        Some(Key::from_file_content(text.as_bytes()).unwrap())
    }

    /// Connects two ends, in pieces of `piece` bytes, until both are quiet. Returns the error of
    /// the side that fails first.
    fn greet(
        client_key: Option<Key>,
        server_key: Option<Key>,
        piece: usize,
    ) -> Result<(ClientSession, ServerSession), WireError> {
        let (mut client, hello) = ClientSession::start(client_key, [1; 32]);
        let mut server = ServerSession::new(server_key, [2; 32]);
        let (mut to_server, mut to_client) = (hello, Vec::new());
        while !to_server.is_empty() || !to_client.is_empty() {
            for bytes in std::mem::take(&mut to_server).chunks(piece) {
                let mut used = 0;
                while used < bytes.len() {
                    let (taken, event) = server.receive(&bytes[used..])?;
                    used += taken;
                    if let Some(ServerEvent::Send(bytes)) = event {
                        to_client.extend(bytes);
                    }
                }
            }
            for bytes in std::mem::take(&mut to_client).chunks(piece) {
                let mut used = 0;
                while used < bytes.len() {
                    let (taken, event) = client.receive(&bytes[used..])?;
                    used += taken;
                    if let Some(ClientEvent::Send(bytes)) = event {
                        to_server.extend(bytes);
                    }
                }
            }
        }
        Ok((client, server))
    }

    #[test]
    fn greeting_completes_in_pieces_of_any_size() {
        for piece in [1, 7, 32, 33, 1000] {
            for keys in [None, key("0123456789abcdef")] {
                let (client, server) = greet(keys.clone(), keys, piece).unwrap();
                assert!(client.is_ready() && server.is_authenticated());
            }
        }
    }

    #[test]
    fn missing_or_wrong_key_ends_the_greeting() {
        let (right, wrong) = (key("0123456789abcdef"), key("0123456789abcdeX"));
        let fails = |client: &Option<Key>, server: &Option<Key>| {
            greet(client.clone(), server.clone(), 64).err()
        };
        assert_eq!(fails(&wrong, &right), Some(KeyError::ClientWrong.into()));
        assert_eq!(fails(&None, &right), Some(KeyError::Needed.into()));
        assert_eq!(fails(&right, &None), Some(KeyError::NotAskedFor.into()));
    }

    #[test]
    fn identities_of_one_pool_know_each_other() {
        let authority = Authority::new();
        for piece in [1, 7, 300, 100_000] {
            let (client, server) =
                greet(authority.key(-1, 1), authority.key(-1, 1), piece).unwrap();
            assert!(client.is_ready() && server.is_authenticated());
        }
    }

    #[test]
    fn identities_that_are_not_of_the_pool_are_refused() {
        let (ours, other) = (Authority::new(), Authority::new());
        let told = |client, server| greet(client, server, 64).err().unwrap().to_string();
        let right = || ours.key(-1, 1);
        assert!(told(other.key(-1, 1), right()).contains("another pool's authority"));
        assert!(told(right(), other.key(-1, 1)).contains("another pool's authority"));
        assert!(told(ours.key(-2, -1), right()).contains("expired"));
        assert!(told(right(), ours.key(-2, -1)).contains("expired"));
        assert!(told(ours.key(1, 2), right()).contains("not valid yet"));
        let secret = || key("0123456789abcdef");
        assert_eq!(greet(secret(), right(), 64).err(), Some(KeyError::IdentityNeeded.into()));
        assert_eq!(greet(None, right(), 64).err(), Some(KeyError::IdentityNeeded.into()));
        assert_eq!(greet(right(), secret(), 64).err(), Some(KeyError::IdentityNotAskedFor.into()));
        assert_eq!(greet(right(), None, 64).err(), Some(KeyError::IdentityNotAskedFor.into()));
    }

    #[test]
    fn pools_key_alone_is_no_identity() {
        let authority = Authority::new();
        let outsider = key(POOL_KEY);
        assert_eq!(
            greet(outsider, authority.key(-1, 1), 64).err(),
            Some(KeyError::IdentityNeeded.into())
        );
    }

    #[test]
    fn who_repeats_the_frames_of_another_connection_is_refused() {
        // Everything that a client sent once, sent again.
        let authority = Authority::new();
        let (mut client, first) = ClientSession::start(authority.key(-1, 1), [1; 32]);
        let mut server = ServerSession::new(authority.key(-1, 1), [2; 32]);
        let mut recorded = first.clone();
        let mut to_server = first;
        while !to_server.is_empty() {
            let answer = feed(&mut server, &std::mem::take(&mut to_server)).unwrap();
            let mut used = 0;
            while used < answer.len() {
                let (taken, event) = client.receive(&answer[used..]).unwrap();
                used += taken;
                if let Some(ClientEvent::Send(bytes)) = event {
                    to_server.extend(bytes);
                }
            }
            recorded.extend(&to_server);
        }
        assert!(server.is_authenticated());
        let mut server = ServerSession::new(authority.key(-1, 1), [2; 32]);
        assert!(feed(&mut server, &recorded).is_err() && !server.is_authenticated());
    }

    /// Gives a server all of these bytes; returns what it sends.
    fn feed(server: &mut ServerSession, bytes: &[u8]) -> Result<Vec<u8>, WireError> {
        let (mut used, mut to_send) = (0, Vec::new());
        while used < bytes.len() {
            let (taken, event) = server.receive(&bytes[used..])?;
            used += taken;
            if let Some(ServerEvent::Send(bytes)) = event {
                to_send.extend(bytes);
            }
        }
        Ok(to_send)
    }

    const POOL_KEY: &str = "0123456789abcdef0123456789abcdef";

    struct Authority {
        params: rcgen::CertificateParams,
        key: rcgen::KeyPair,
    }

    impl Authority {
        fn new() -> Authority {
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
            Authority { params, key: rcgen::KeyPair::generate().unwrap() }
        }

        /// An identity that is valid from so many days after today to so many.
        fn key(&self, from: i64, to: i64) -> Option<Key> {
            let mut params =
                rcgen::CertificateParams::new([crate::MEMBER_NAME.to_owned()]).unwrap();
            let now = time::OffsetDateTime::now_utc();
            params.not_before = now + time::Duration::days(from);
            params.not_after = now + time::Duration::days(to);
            let key = rcgen::KeyPair::generate().unwrap();
            let issuer = rcgen::Issuer::from_params(&self.params, &self.key);
            let certificate = params.signed_by(&key, &issuer).unwrap();
            let authority = self.params.self_signed(&self.key).unwrap();
            let text = format!(
                "{}{POOL_KEY}\n{}{}{}",
                crate::POOL_KEY_LINE,
                certificate.pem(),
                authority.pem(),
                key.serialize_pem()
            );
            Some(Key::from_file_content(text.as_bytes()).unwrap())
        }
    }

    #[test]
    fn server_without_valid_proof_is_not_trusted() {
        let (mut client, _) = ClientSession::start(key("0123456789abcdef"), [1; 32]);
        let mut bytes = Vec::new();
        Message::Challenge { version: 1, key_needed: true, nonce: [2; 32] }
            .encode(1, 0, &mut bytes);
        assert!(matches!(client.receive(&bytes), Ok((_, Some(ClientEvent::Send(_))))));
        bytes.clear();
        Message::Welcome { proof: [0; 32] }.encode(1, 0, &mut bytes);
        assert_eq!(client.receive(&bytes), Err(KeyError::ServerWrong.into()));
        assert!(!client.is_ready());
    }

    #[test]
    fn client_introduces_itself_before_its_session() {
        let (client, mut server) = greet(None, None, 64).unwrap();
        assert_eq!(client.version(), *VERSIONS.end());
        let who = Introduction { name: "alice".to_owned(), moves: true };
        let mut bytes = Vec::new();
        Message::Introduce(who.clone()).encode(client.version(), 0, &mut bytes);
        assert_eq!(server.receive(&bytes), Ok((bytes.len(), None)));
        assert_eq!(server.introduction(), &who);
        let mut open = Vec::new();
        Message::Open { token: SessionToken::NEW, lane: 1, purpose: Purpose::Read }
            .encode(2, 0, &mut open);
        assert!(matches!(server.receive(&open), Ok((_, Some(ServerEvent::Open(_))))));
        assert!(matches!(server.receive(&bytes), Err(WireError::Unexpected { .. })));
    }

    #[test]
    fn version_mismatch_reports_both_ranges() {
        let mut server = ServerSession::new(None, [2; 32]);
        let mut hello = Vec::new();
        Message::Hello { min: 7, max: 9, nonce: [1; 32] }.encode(1, 0, &mut hello);
        let error = server.receive(&hello).unwrap_err();
        assert_eq!(
            error,
            WireError::NoCommonVersion {
                client_min: 7,
                client_max: 9,
                server_min: *VERSIONS.start(),
                server_max: *VERSIONS.end()
            }
        );
        let farewell = server.farewell(&error);
        let (mut client, _) = ClientSession::start(None, [1; 32]);
        let told = client.receive(&farewell).unwrap_err();
        assert!(
            matches!(&told, WireError::Told { code: ErrorCode::Version, text } if text.contains("7 to 9")),
            "{told}"
        );
    }

    #[test]
    fn unauthenticated_peer_is_cut_off_after_first_header() {
        for message in [
            Message::Read { addr: 0, len: 4096 },
            Message::Write { addr: 0, len: CHUNK as u32 },
            Message::Bye,
            Message::Proof { proof: [0; 32] },
        ] {
            let mut server = ServerSession::new(key("0123456789abcdef"), [2; 32]);
            let mut bytes = Vec::new();
            message.encode(1, 0, &mut bytes);
            let error = server.receive(&bytes[..HEADER_BYTES]).unwrap_err();
            assert_eq!(error, WireError::Unexpected { kind: message.kind(), expected: "a hello" });
        }
    }

    fn messages() -> impl Strategy<Value = Message> {
        let usage = (any::<[u64; 8]>(), any::<[bool; 2]>()).prop_map(|(n, flags)| SessionUsage {
            used_chunks: n[0],
            reserved_chunks: n[1],
            free_chunks: n[2],
            total_chunks: n[3],
            reads: n[4],
            writes: n[5],
            read_bytes: n[6],
            written_bytes: n[7],
            is_draining: flags[0],
            is_at_quota: flags[1],
        });
        let len = 1..=CHUNK as u32;
        prop_oneof![
            (any::<[u8; 16]>(), any::<u32>()).prop_map(|(token, lane)| Message::Open {
                token: SessionToken(token),
                lane,
                purpose: Purpose::Write
            }),
            (any::<[u8; 16]>(), any::<u16>())
                .prop_map(|(token, space)| Message::Attach { token: SessionToken(token), space }),
            (any::<[u8; 16]>(), usage.clone()).prop_map(|(token, usage)| Message::Opened {
                token: SessionToken(token),
                usage,
                lease_ms: 7
            }),
            ("[a-zA-Z0-9]{0,63}", any::<bool>())
                .prop_map(|(name, moves)| Message::Introduce(Introduction { name, moves })),
            (any::<u32>(), usage.clone())
                .prop_map(|(chunks, usage)| Message::Granted { chunks, usage }),
            usage.prop_map(|usage| Message::UsageReply { usage }),
            any::<u32>().prop_map(|chunks| Message::Reserve { chunks }),
            (any::<u64>(), len.clone()).prop_map(|(addr, len)| Message::Read { addr, len }),
            (any::<u64>(), len.clone()).prop_map(|(addr, len)| Message::Write { addr, len }),
            (any::<u64>(), len).prop_map(|(addr, len)| Message::ReadReply { addr, len }),
            (any::<u64>(), 1u32..2000)
                .prop_map(|(addr, chunks)| Message::Free { addr, len: chunks * CHUNK as u32 }),
            ("[a-z ]{0,300}", any::<u16>())
                .prop_map(|(text, code)| Message::Error { code: code.into(), text }),
            Just(Message::Ack),
            Just(Message::Ping),
            Just(Message::Usage),
            Just(Message::Fork),
            Just(Message::Bye),
            (1u32..4096).prop_map(|len| Message::Query { len }),
            (1u32..CHUNK as u32).prop_map(|len| Message::QueryReply { len }),
        ]
    }

    proptest! {
        #[test]
        fn frame_round_trips(message in messages(), id: u64, piece in 1usize..100) {
            let mut bytes = Vec::new();
            message.encode(1, id, &mut bytes);
            let mut inbound = Inbound::new();
            let mut frames = Vec::new();
            for bytes in bytes.chunks(piece) {
                let (used, frame) = inbound.feed(bytes, |_| Ok(())).unwrap();
                prop_assert_eq!(used, bytes.len());
                frames.extend(frame);
            }
            let mut expected = message;
            if let Message::Error { text, .. } = &mut expected {
                text.truncate(MAX_BODY - 2);
            }
            prop_assert_eq!(frames, vec![Frame { id, message: expected }]);
            prop_assert_eq!(inbound.missing(), if inbound.payload_left() > 0 { 0 } else { HEADER_BYTES });
        }

        #[test]
        fn arbitrary_bytes_never_crash_either_end(soup in proptest::collection::vec(any::<u8>(), 0..600), known: bool) {
            for keys in [None, key("0123456789abcdef")] {
                let (mut client, mut server) = if known {
                    greet(keys.clone(), keys, 64).unwrap()
                } else {
                    (ClientSession::start(keys.clone(), [1; 32]).0, ServerSession::new(keys, [2; 32]))
                };
                let authenticated = server.is_authenticated();
                let error = server.receive(&soup);
                prop_assert!(error.is_err() || soup.len() < HEADER_BYTES);
                prop_assert!(client.receive(&soup).is_err() || soup.len() < HEADER_BYTES);
                prop_assert_eq!(server.is_authenticated(), authenticated);
            }
        }

        #[test]
        fn damaged_conversation_never_crashes_either_end(
            messages in proptest::collection::vec(messages(), 1..8),
            flip in any::<(u16, u8)>(),
            cut: u16,
        ) {
            let (mut client, mut server) = greet(None, None, 64).unwrap();
            let mut bytes = Vec::new();
            Message::Open { token: SessionToken::NEW, lane: 1, purpose: Purpose::Read }.encode(1, 0, &mut bytes);
            messages.iter().for_each(|message| message.encode(1, 1, &mut bytes));
            let at = usize::from(flip.0) % bytes.len();
            bytes[at] ^= flip.1;
            bytes.truncate(bytes.len() - usize::from(cut) % bytes.len());
            let mut used = 0;
            while used < bytes.len() && server.inbound().payload_left() == 0 {
                match server.receive(&bytes[used..]) {
                    Ok((taken, _)) => used += taken,
                    Err(error) => { prop_assert!(!server.farewell(&error).is_empty()); break; }
                }
            }
            used = 0;
            while used < bytes.len() && client.inbound().payload_left() == 0 {
                match client.receive(&bytes[used..]) {
                    Ok((taken, _)) => used += taken,
                    Err(_) => break,
                }
            }
        }
    }
}
