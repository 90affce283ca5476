//! Bytes of a peer, as client and as server see them. Nothing may panic, run away or take in more
//! than it is given.
#![no_main]

use hiroma_far_wire::{
    ClientEvent, ClientSession, HEADER_BYTES, Header, Key, Kind, Message, Purpose, ServerEvent, ServerSession, SessionToken,
};
use libfuzzer_sys::fuzz_target;

/// Headers made of the input, with the right checksum: a fuzzer does not find checksums by itself.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in data.chunks(48) {
        let number = |at: usize| piece.get(at).copied().unwrap_or(0);
        let word = |at: usize| u32::from_le_bytes([number(at), number(at + 1), number(at + 2), number(at + 3)]);
        let kind = Kind::ALL[usize::from(number(0)) % Kind::ALL.len()];
        let addr = u64::from(word(1)) << (number(5) % 33);
        let header = Header { version: u16::from(number(6) % 4), kind, id: u64::from(number(7)), addr, len: word(8) % 300 };
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(piece.get(12..).unwrap_or(&[]));
    }
    bytes
}

fn run_server(mut server: ServerSession, bytes: &[u8], mut opened: bool) {
    let mut used = 0;
    while used < bytes.len() {
        let payload = server.inbound().payload_left().min(bytes.len() - used);
        server.inbound().payload_received(payload);
        used += payload;
        match server.receive(&bytes[used..]) {
            Ok((0, None)) => assert_eq!(used, bytes.len(), "stuck"),
            Ok((taken, event)) => {
                used += taken;
                match event {
                    Some(ServerEvent::Open(_)) => opened = true,
                    Some(ServerEvent::Request(_)) => assert!(opened, "a request before the session was open"),
                    _ => {}
                }
            }
            Err(error) => {
                let farewell = server.farewell(&error);
                Header::decode(farewell[..HEADER_BYTES].try_into().unwrap()).expect("the farewell is a frame");
                return;
            }
        }
    }
}

fn run_client(mut client: ClientSession, bytes: &[u8]) {
    let mut used = 0;
    while used < bytes.len() {
        let payload = client.inbound().payload_left().min(bytes.len() - used);
        client.inbound().payload_received(payload);
        used += payload;
        match client.receive(&bytes[used..]) {
            Ok((0, None)) => assert_eq!(used, bytes.len(), "stuck"),
            Ok((taken, _)) => used += taken,
            Err(error) => return drop(error.to_string()),
        }
    }
}

/// Both ends after a greeting under `key`.
fn greet(key: Option<Key>) -> (ClientSession, ServerSession) {
    let (mut client, hello) = ClientSession::start(key.clone(), [1; 32]);
    let mut server = ServerSession::new(key, [2; 32]);
    let mut to_server = hello;
    while !client.is_ready() {
        let Ok((_, Some(ServerEvent::Send(answer)))) = server.receive(&to_server) else { panic!("the greeting works") };
        match client.receive(&answer) {
            Ok((_, Some(ClientEvent::Send(bytes)))) => to_server = bytes,
            Ok((_, Some(ClientEvent::Ready))) => {}
            other => panic!("the greeting works: {other:?}"),
        }
    }
    (client, server)
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let key = (how & 1 == 1).then(|| Key::from_file_content(b"0123456789abcdef").unwrap());
    let bytes = if how & 2 == 2 { sealed(data) } else { data.to_vec() };
    if how & 4 == 4 {
        let (client, mut server) = greet(key);
        let mut open = Vec::new();
        Message::Open { token: SessionToken::NEW, lane: 1, purpose: Purpose::Write }.encode(1, 0, &mut open);
        assert!(matches!(server.receive(&open), Ok((_, Some(ServerEvent::Open(_))))));
        run_server(server, &bytes, true);
        run_client(client, &bytes);
    } else {
        run_server(ServerSession::new(key.clone(), [2; 32]), &bytes, false);
        run_client(ClientSession::start(key, [1; 32]).0, &bytes);
    }
});
