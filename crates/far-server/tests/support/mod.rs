//! A client that sends whatever a test requires.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hiroma_far_server::ServerHandle;
use hiroma_far_wire::{
    ClientEvent, ClientSession, ErrorCode, Frame, Key, Message, Purpose, SessionToken, WireError,
};

pub fn dial(server: &ServerHandle) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

pub fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < deadline, "{what} never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that sends whatever the test requires.
pub struct Peer {
    pub stream: TcpStream,
    pub wire: ClientSession,
}

impl Peer {
    pub fn greet(server: &ServerHandle, key: Option<Key>) -> Result<Peer, WireError> {
        let mut stream = dial(server);
        let (mut wire, hello) = ClientSession::start(key, [9; 32]);
        stream.write_all(&hello).unwrap();
        loop {
            let mut bytes = vec![0; wire.missing()];
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "closed without a word");
            match wire.receive(&bytes[..count])?.1 {
                Some(ClientEvent::Send(bytes)) => stream.write_all(&bytes).unwrap(),
                Some(ClientEvent::Ready) => return Ok(Peer { stream, wire }),
                _ => {}
            }
        }
    }

    pub fn open(
        server: &ServerHandle,
        token: SessionToken,
        lane: u32,
        purpose: Purpose,
    ) -> (Peer, Message) {
        let mut peer = Peer::greet(server, None).unwrap();
        peer.send(&Message::Open { token, lane, purpose }, &[]);
        let answer = peer.hear();
        (peer, answer)
    }

    pub fn new_session(server: &ServerHandle) -> (Peer, SessionToken) {
        match Peer::open(server, SessionToken::NEW, 1, Purpose::Write) {
            (peer, Message::Opened { token, .. }) => (peer, token),
            (_, other) => panic!("{other:?}"),
        }
    }

    pub fn send(&mut self, message: &Message, payload: &[u8]) {
        let mut bytes = Vec::new();
        message.encode(1, 5, &mut bytes);
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn hear(&mut self) -> Message {
        self.try_hear().expect("the connection ended")
    }

    pub fn try_hear(&mut self) -> Option<Message> {
        loop {
            let mut bytes = vec![0; self.wire.missing()];
            let count = self.stream.read(&mut bytes).unwrap_or(0);
            if count == 0 {
                return None;
            }
            if let Some(ClientEvent::Frame(Frame { message, .. })) =
                self.wire.receive(&bytes[..count]).unwrap().1
            {
                return Some(message);
            }
        }
    }

    pub fn ask(&mut self, message: &Message, payload: &[u8]) -> Message {
        self.send(message, payload);
        self.hear()
    }

    pub fn read(&mut self, addr: u64, len: u32) -> Result<Vec<u8>, ErrorCode> {
        match self.ask(&Message::Read { addr, len }, &[]) {
            Message::ReadReply { .. } => {
                let mut bytes = vec![0; len as usize];
                self.stream.read_exact(&mut bytes).unwrap();
                self.wire.inbound().payload_received(bytes.len());
                Ok(bytes)
            }
            Message::Error { code, .. } => Err(code),
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), ErrorCode> {
        match self.ask(&Message::Write { addr, len: bytes.len() as u32 }, bytes) {
            Message::Ack => Ok(()),
            Message::Error { code, .. } => Err(code),
            other => panic!("{other:?}"),
        }
    }
}
