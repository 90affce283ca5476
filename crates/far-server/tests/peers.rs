//! How a server handles misbehaving peers, over real sockets.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hiroma_far_server::{Quotas, Refused, ServeOptions, ServerHandle, serve};
use hiroma_far_wire::{
    CHUNK, ClientSession, ErrorCode, HEADER_BYTES, Header, Introduction, Key, Kind, Message,
    Purpose, SPACE_SHIFT, SessionToken, WireError,
};

mod support;

use support::{Peer, dial, eventually};

fn server(memory_bytes: u64) -> ServerHandle {
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes,
        lease: Duration::ZERO,
        ..ServeOptions::default()
    };
    serve(options).unwrap()
}

fn still_serves(server: &ServerHandle) {
    let (mut peer, _) = Peer::new_session(server);
    peer.write(8192, &[7; 4096]).unwrap();
    assert_eq!(peer.read(8192, 4096).unwrap(), [7; 4096]);
}

#[test]
fn malformed_input_gets_reason_and_disconnect() {
    let server = server(8 << 20);
    let hello = |version: u16| {
        Header { version, kind: Kind::Hello, id: 0, addr: 0, len: 36 }.encode().to_vec()
    };
    let mut damaged = hello(1);
    damaged[20] ^= 1;
    let cases = [
        (b"GET / HTTP/1.1\r\nHost: hiroma\r\n\r\n".to_vec(), "does not speak"),
        (vec![0xff; 5000], "does not speak"),
        (hello(7), "version 7"),
        (damaged, "damaged"),
        (
            Header { version: 1, kind: Kind::Hello, id: 0, addr: 0, len: u32::MAX }
                .encode()
                .to_vec(),
            "that cannot be",
        ),
        (
            Header { version: 1, kind: Kind::Read, id: 0, addr: 0, len: 4096 }.encode().to_vec(),
            "when a hello was due",
        ),
    ];
    for (bytes, expected) in cases {
        let mut stream = dial(&server);
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains(expected), "{text:?} should say {expected:?}");
    }
    assert!(server.stats().sessions.is_empty());
    still_serves(&server);
}

#[test]
fn truncated_frames_leave_nothing_behind() {
    let server = server(8 << 20);
    for cut in [0, 1, 31, HEADER_BYTES, HEADER_BYTES + 1000] {
        let (mut peer, _) = Peer::new_session(&server);
        let mut bytes = Vec::new();
        Message::Write { addr: 0, len: 4096 }.encode(1, 1, &mut bytes);
        bytes.resize(HEADER_BYTES + 4096, 7);
        peer.stream.write_all(&bytes[..cut]).unwrap();
        drop(peer);
    }
    let is_empty = |stats: hiroma_far_server::ServerStats| {
        stats.sessions.is_empty() && stats.used_bytes + stats.reserved_bytes == 0
    };
    eventually("the end of all sessions", || is_empty(server.stats()));
    still_serves(&server);
}

#[test]
fn invalid_addresses_keep_the_connection_open() {
    let server = server(8 << 20);
    let (mut peer, _) = Peer::new_session(&server);
    assert_eq!(peer.read(0, 4096), Err(ErrorCode::BadAddress));
    assert_eq!(peer.write(CHUNK as u64 - 1, &[1; 2]), Err(ErrorCode::BadAddress));
    for addr in [u64::MAX, u64::MAX - 4095, 1 << SPACE_SHIFT, 77 << SPACE_SHIFT] {
        assert_eq!(peer.read(addr, 4096), Err(ErrorCode::BadAddress), "{addr:#x}");
        assert_eq!(peer.write(addr, &[1; 4096]), Err(ErrorCode::BadAddress), "{addr:#x}");
        let answer = peer.ask(&Message::Free { addr, len: CHUNK as u32 }, &[]);
        assert!(matches!(answer, Message::Error { code: ErrorCode::BadAddress, .. }), "{answer:?}");
    }
    let last = (1 << SPACE_SHIFT) - 4096;
    peer.write(last, &[3; 4096]).unwrap();
    assert_eq!(peer.read(last, 4096).unwrap(), [3; 4096]);
    let nobody = peer.ask(&Message::Attach { token: SessionToken([1; 16]), space: 1 }, &[]);
    assert!(matches!(nobody, Message::Error { code: ErrorCode::NoSession, .. }), "{nobody:?}");
    let (mut own, token) = Peer::new_session(&server);
    for space in [0, 256, u16::MAX] {
        let answer = own.ask(&Message::Attach { token, space }, &[]);
        assert!(matches!(answer, Message::Error { code: ErrorCode::TooMany, .. }), "{answer:?}");
    }
}

#[test]
fn memory_bound_is_strict_and_reservations_hold() {
    let server = server(4 * CHUNK as u64);
    let (mut first, _) = Peer::new_session(&server);
    let granted = first.ask(&Message::Reserve { chunks: u32::MAX }, &[]);
    assert!(matches!(granted, Message::Granted { chunks: 2, .. }), "{granted:?}");
    let (mut second, _) = Peer::new_session(&server);
    second.write(0, &[2; 100]).unwrap();
    second.write(CHUNK as u64, &[2; 100]).unwrap();
    assert_eq!(second.write(2 * CHUNK as u64, &[2; 100]), Err(ErrorCode::Full));
    assert_eq!(server.activity().refusals(Refused::Full), 1);
    assert_eq!(server.activity().received_bytes(), 200);
    first.write(0, &[1; 100]).unwrap();
    first.write(9 * CHUNK as u64, &[1; 100]).unwrap();
    assert_eq!(first.write(CHUNK as u64, &vec![1; CHUNK]), Err(ErrorCode::Full));
    assert_eq!(server.stats().used_bytes, 4 * CHUNK as u64);
    assert_eq!(first.ask(&Message::Free { addr: 0, len: CHUNK as u32 }, &[]), Message::Ack);
    second.write(2 * CHUNK as u64, &[2; 100]).unwrap();
    assert_eq!(
        second.read(2 * CHUNK as u64 + 100, 4096).unwrap(),
        [0; 4096],
        "nothing of the first client's"
    );
    assert_eq!(second.read(0, 100).unwrap(), [2; 100]);
}

#[test]
fn client_usage_is_counted_and_freed_on_disconnect() {
    let server = server(64 << 20);
    let (mut first, _) = Peer::new_session(&server);
    let (mut second, _) = Peer::new_session(&server);
    first.write(0, &[1; 4096]).unwrap();
    first.write(4096, &[1; 4096]).unwrap();
    first.read(0, 8192).unwrap();
    second.write(0, &[2; 100]).unwrap();
    let stats = server.stats();
    let usage = stats.sessions[0].usage;
    assert_eq!(
        (usage.used_chunks, usage.writes, usage.written_bytes, usage.reads, usage.read_bytes),
        (1, 2, 8192, 1, 8192)
    );
    assert_eq!((stats.sessions[1].usage.written_bytes, stats.used_bytes), (100, 2 * CHUNK as u64));
    let asked = second.ask(&Message::Usage, &[]);
    assert!(
        matches!(asked, Message::UsageReply { usage } if usage == stats.sessions[1].usage),
        "{asked:?}"
    );
    first.send(&Message::Bye, &[]);
    eventually("the end of the first session", || server.stats().used_bytes == CHUNK as u64);
    assert_eq!(server.stats().sessions.len(), 1);
    drop(second);
    eventually("the end of the second session", || server.stats().used_bytes == 0);
}

#[test]
fn read_connection_cannot_write() {
    let server = server(8 << 20);
    let (mut peer, _) = Peer::open(&server, SessionToken::NEW, 1, Purpose::Read);
    let answer = peer.ask(&Message::Write { addr: 0, len: 4096 }, &[]);
    assert!(matches!(answer, Message::Error { code: ErrorCode::Malformed, .. }), "{answer:?}");
    assert!(peer.try_hear().is_none());
}

#[test]
fn reopened_lane_closes_the_older_connection() {
    let server = server(8 << 20);
    let (mut old, token) = Peer::new_session(&server);
    old.write(0, &[1; 4096]).unwrap();
    // Half a write is pending in the older connection when the newer one is opened.
    let mut bytes = Vec::new();
    Message::Write { addr: 0, len: 4096 }.encode(1, 1, &mut bytes);
    bytes.extend_from_slice(&[9; 1000]);
    old.stream.write_all(&bytes).unwrap();
    let (mut new, opened) = Peer::open(&server, token, 1, Purpose::Write);
    assert!(matches!(opened, Message::Opened { .. }), "{opened:?}");
    new.write(0, &[2; 4096]).unwrap();
    let _ = old.stream.write_all(&[9; 3096]);
    assert!(old.try_hear().is_none());
    assert_eq!(new.read(0, 4096).unwrap(), [2; 4096]);
    assert_eq!(server.stats().sessions[0].connections, 1);
}

#[test]
fn ended_or_guessed_session_cannot_be_joined() {
    let server = server(8 << 20);
    let (mut peer, token) = Peer::new_session(&server);
    let (_, guessed) = Peer::open(&server, SessionToken([7; 16]), 2, Purpose::Read);
    assert!(matches!(guessed, Message::Error { code: ErrorCode::NoSession, .. }), "{guessed:?}");
    peer.send(&Message::Bye, &[]);
    assert!(peer.try_hear().is_none());
    let (_, late) = Peer::open(&server, token, 2, Purpose::Read);
    assert!(matches!(late, Message::Error { code: ErrorCode::NoSession, .. }), "{late:?}");
}

#[test]
fn client_that_comes_back_after_its_lease_is_told_so() {
    let server = server(8 << 20);
    let (mut peer, token) = Peer::new_session(&server);
    peer.write(0, &[1; 4096]).unwrap();
    drop(peer);
    eventually("the end of the lease", || server.stats().sessions.is_empty());
    eventually("its memory", || server.stats().used_bytes == 0);
    let (_, late) = Peer::open(&server, token, 1, Purpose::Write);
    let Message::Error { code: ErrorCode::NoSession, text } = late else { panic!("{late:?}") };
    assert!(text.contains("lease") && text.contains("its content is gone"), "{text}");
}

#[test]
fn tenants_are_counted_by_name_and_kept_to_their_quota() {
    let quotas = Quotas {
        default_bytes: Some(8 << 20),
        bytes: [("small".to_owned(), 4 << 20)].into(),
        ..Quotas::default()
    };
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 64 << 20,
        quotas,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let named = |name: &str| {
        let mut peer = Peer::greet(&server, None).unwrap();
        let who = Introduction { name: name.to_owned(), moves: false };
        peer.send(&Message::Introduce(who), &[]);
        let open = Message::Open { token: SessionToken::NEW, lane: 1, purpose: Purpose::Write };
        let opened = peer.ask(&open, &[]);
        assert!(matches!(opened, Message::Opened { lease_ms: 2000, .. }), "{opened:?}");
        peer
    };
    let granted = |peer: &mut Peer| match peer.ask(&Message::Reserve { chunks: 64 }, &[]) {
        Message::Granted { chunks, usage } => (chunks, usage.free_chunks, usage.is_at_quota),
        other => panic!("{other:?}"),
    };
    // Two programs of one tenant share its quota.
    let (mut first, mut second) = (named("small"), named("small"));
    assert_eq!(granted(&mut first), (2, 0, true));
    assert_eq!(granted(&mut second), (0, 0, true));
    assert_eq!(second.write(0, &[1; 4096]), Err(ErrorCode::Full));
    first.write(0, &[1; 4096]).unwrap();
    first.write(CHUNK as u64, &[1; 4096]).unwrap();
    assert_eq!(first.write(2 * CHUNK as u64, &[1; 4096]), Err(ErrorCode::Full));
    let (mut other, mut unnamed) = (named("other"), named(""));
    assert_eq!(granted(&mut other), (4, 0, true));
    assert_eq!(granted(&mut unnamed), (4, 0, true));
    let stats = server.stats();
    let held = |name: &str| {
        let found = stats.tenants.iter().find(|tenant| tenant.name == name).unwrap();
        (found.sessions, found.used_bytes >> 20, found.quota_bytes.unwrap() >> 20)
    };
    assert_eq!(
        (held("small"), held("other"), held("127.0.0.1")),
        ((2, 4, 4), (1, 0, 8), (1, 0, 8))
    );
    assert!(server.activity().refusals(Refused::Quota) > 0);
    // What one frees, the other one may have.
    let free = Message::Free { addr: 0, len: CHUNK as u32 };
    assert_eq!(first.ask(&free, &[]), Message::Ack);
    assert_eq!(granted(&mut second).0, 1);
}

#[test]
fn key_is_requested_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, "0123456789abcdef0123\n").unwrap();
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 8 << 20,
        key_file: Some(path),
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let wrong = Key::from_file_content(b"0123456789abcdef0124").unwrap();
    let refused = Peer::greet(&server, Some(wrong)).err().unwrap();
    assert!(matches!(&refused, WireError::Told { code: ErrorCode::Key, .. }), "{refused}");
    assert!(refused.to_string().contains("not the server's"));
    let none = Peer::greet(&server, None).err().unwrap();
    assert!(none.to_string().contains("--key-file"), "{none}");
    // A client that skips the proof is not served either.
    let mut stream = dial(&server);
    let (_, hello) = ClientSession::start(None, [1; 32]);
    stream.write_all(&hello).unwrap();
    let mut open = Vec::new();
    Message::Open { token: SessionToken::NEW, lane: 1, purpose: Purpose::Read }
        .encode(1, 1, &mut open);
    stream.write_all(&open).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(String::from_utf8_lossy(&answer).contains("when a proof was due"));
    assert!(server.stats().sessions.is_empty());
    let right = Key::from_file_content(b"0123456789abcdef0123").unwrap();
    Peer::greet(&server, Some(right)).ok().unwrap();
}

#[test]
fn memory_attached_by_child_outlives_its_owner() {
    let server = server(8 << 20);
    let (mut parent, token) = Peer::new_session(&server);
    parent.write(4096, &[5; 4096]).unwrap();
    assert_eq!(parent.ask(&Message::Fork, &[]), Message::Ack);
    parent.send(&Message::Bye, &[]);
    assert!(parent.try_hear().is_none());
    let (mut child, _) = Peer::new_session(&server);
    // The lease is zero here, so the parent's session may have ended; then the child is too
    // late and gets an error.
    match child.ask(&Message::Attach { token, space: 3 }, &[]) {
        Message::Ack => assert_eq!(child.read((3 << SPACE_SHIFT) + 4096, 4096).unwrap(), [5; 4096]),
        Message::Error { code, .. } => assert_eq!(code, ErrorCode::NoSession),
        other => panic!("{other:?}"),
    }
}

#[test]
fn child_reads_but_cannot_write_after_parent_exits() {
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 8 << 20,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let (mut parent, token) = Peer::new_session(&server);
    parent.write(4096, &[5; 4096]).unwrap();
    assert_eq!(parent.ask(&Message::Fork, &[]), Message::Ack);
    parent.send(&Message::Bye, &[]);
    assert!(parent.try_hear().is_none());
    let (mut child, _) = Peer::new_session(&server);
    assert_eq!(child.ask(&Message::Attach { token, space: 3 }, &[]), Message::Ack);
    eventually("the end of the parent's session", || server.stats().sessions.len() == 1);
    assert_eq!(child.read((3 << SPACE_SHIFT) + 4096, 4096).unwrap(), [5; 4096]);
    assert_eq!(child.write((3 << SPACE_SHIFT) + 4096, &[6; 4096]), Err(ErrorCode::BadAddress));
    assert_eq!(server.stats().used_bytes, CHUNK as u64);
    drop(child);
    drop(server);
}

#[test]
fn unauthenticated_connections_cannot_exhaust_the_server() {
    let server = server(8 << 20);
    let silent: Vec<_> = (0..80).map(|_| dial(&server)).collect();
    drop(silent);
    eventually("a place for somebody who behaves", || Peer::greet_if_admitted(&server));
    still_serves(&server);
}

#[test]
fn oldest_stranger_gives_its_place_to_a_newcomer() {
    let server = server(8 << 20);
    let trickle = |_| {
        let mut stream = dial(&server);
        stream.write_all(&hello()[..1]).unwrap();
        stream
    };
    let mut strangers: Vec<_> = (0..64).map(trickle).collect();
    let start = Instant::now();
    still_serves(&server);
    assert!(start.elapsed() < Duration::from_secs(5), "strangers have ten seconds");
    let mut told = Vec::new();
    strangers[0].read_to_end(&mut told).unwrap();
    let (mut wire, _) = ClientSession::start(None, [9; 32]);
    let told = wire.receive(&told).unwrap_err();
    assert!(matches!(&told, WireError::Told { code: ErrorCode::TooMany, .. }), "{told}");
    strangers[63].write_all(&hello()[1..]).unwrap();
    assert!(strangers[63].read(&mut [0; 8]).unwrap() > 0, "a younger one is still served");
    assert_eq!(server.activity().refusals(Refused::Connections), 1);
}

fn hello() -> Vec<u8> {
    ClientSession::start(None, [9; 32]).1
}

#[test]
fn clients_beyond_the_limit_are_told_to_try_again() {
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 8 << 20,
        connections_max: 1,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let (peer, _) = Peer::new_session(&server);
    for _ in 0..40 {
        let told = Peer::greet(&server, None).err().unwrap();
        assert!(matches!(&told, WireError::Told { code: ErrorCode::TooMany, .. }), "{told}");
    }
    drop(peer);
    eventually("a place that is free again", || Peer::greet_if_admitted(&server));
}

#[test]
fn whoever_logs_may_ask_the_server() {
    let server: Arc<OnceLock<ServerHandle>> = Arc::default();
    let asked = Arc::clone(&server);
    let lines = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lines);
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 2 << 20,
        lease: Duration::ZERO,
        log: Arc::new(move |_| {
            if let Some(server) = asked.get() {
                server.stats();
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }),
        ..ServeOptions::default()
    };
    let Ok(()) = server.set(serve(options).unwrap()) else { panic!("set twice") };
    let server = server.get().unwrap();
    let (mut peer, _) = Peer::new_session(server);
    peer.write(0, &[1; 4096]).unwrap();
    drop(peer);
    still_serves_after_the_other(server);
    assert!(lines.load(Ordering::SeqCst) >= 3, "came, went, came");
    server.stop();
}

fn still_serves_after_the_other(server: &ServerHandle) {
    let (mut peer, _) = Peer::new_session(server);
    eventually("the only chunk is free", || peer.write(0, &[7; 4096]).is_ok());
}

impl Peer {
    fn greet_if_admitted(server: &ServerHandle) -> bool {
        let mut stream = dial(server);
        let (mut wire, hello) = ClientSession::start(None, [9; 32]);
        let mut bytes = vec![0; wire.missing()];
        if stream.write_all(&hello).is_err() {
            return false;
        }
        match stream.read(&mut bytes) {
            Ok(count) if count > 0 => wire.receive(&bytes[..count]).is_ok(),
            _ => false,
        }
    }
}
