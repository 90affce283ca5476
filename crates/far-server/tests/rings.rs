//! How a server handles peers that misbehave on the way to shared memory, and in it.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use hiroma_far_server::{ServeOptions, ServerHandle, serve};
use hiroma_far_wire::{ErrorCode, Kind, Message, WireError};
use hiroma_sys::transport::offer::{self, Invitation};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};

mod support;

use support::{Peer, eventually};

fn server() -> ServerHandle {
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 8 << 20,
        lease: Duration::ZERO,
        ..ServeOptions::default()
    };
    serve(options).unwrap()
}

fn invited(server: &ServerHandle) -> (Peer, Invitation) {
    let (mut peer, _) = Peer::new_session(server);
    match peer.ask(&Message::AskRings, &[]) {
        Message::OfferRings { name, secret } => (peer, Invitation { name, secret }),
        other => panic!("{other:?}"),
    }
}

fn shared(server: &ServerHandle) -> usize {
    server.stats().sessions.iter().map(|session| session.shared_connections).sum()
}

/// The file that the server hands over.
fn file(bell: &OwnedFd) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 8];
    recvmsg(bell, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .unwrap();
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.expect("a file")
}

#[test]
fn damaged_rings_end_their_connection_and_nothing_else() {
    let server = server();
    let (mut other, _) = Peer::new_session(&server);
    other.write(0, &[7; 4096]).unwrap();
    // The writer's position in the ring to the server comes first in the file.
    for value in [u64::MAX, 1 << 40] {
        let (mut peer, invitation) = invited(&server);
        let bell = offer::come(&invitation).unwrap();
        assert_eq!(peer.ask(&Message::TakeRings, &[]), Message::Ack);
        let file = file(&bell);
        assert_eq!(shared(&server), 1);
        rustix::io::pwrite(&file, &u64::to_ne_bytes(value), 0).unwrap();
        send(&bell, b"!", SendFlags::NOSIGNAL).unwrap();
        assert_eq!(peer.stream.read(&mut [0; 64]).unwrap(), 0, "it is not ended");
        eventually("the end of the connection", || shared(&server) == 0);
    }
    assert_eq!(other.read(0, 4096).unwrap(), [7; 4096]);
}

#[test]
fn client_that_does_not_come_stays_with_tcp() {
    let server = server();
    let (mut peer, _) = invited(&server);
    let answer = peer.ask(&Message::TakeRings, &[]);
    assert!(matches!(answer, Message::Error { code: ErrorCode::Other(0), .. }), "{answer:?}");
    peer.write(0, &[7; 4096]).unwrap();
    assert_eq!((peer.read(0, 4096).unwrap(), shared(&server)), (vec![7; 4096], 0));
    // One that never says anything about them again does so too.
    let (mut peer, _) = invited(&server);
    peer.write(0, &[8; 4096]).unwrap();
    assert_eq!(peer.read(0, 4096).unwrap(), [8; 4096]);
}

#[test]
fn rings_that_were_not_offered_are_refused() {
    let server = server();
    let (mut peer, _) = Peer::new_session(&server);
    let answer = peer.ask(&Message::TakeRings, &[]);
    let expected = WireError::Unexpected { kind: Kind::TakeRings, expected: "a request" };
    assert!(
        matches!(&answer, Message::Error { text, .. } if *text == expected.to_string()),
        "{answer:?}"
    );
    assert!(peer.try_hear().is_none());
}

#[test]
fn what_is_sent_on_tcp_beside_rings_ends_the_connection() {
    let server = server();
    let (mut peer, invitation) = invited(&server);
    let _bell = offer::come(&invitation).unwrap();
    assert_eq!(peer.ask(&Message::TakeRings, &[]), Message::Ack);
    peer.stream.write_all(b"more").unwrap();
    // Closed with unread bytes: a reset.
    assert!(matches!(peer.stream.read(&mut [0; 64]), Ok(0) | Err(_)));
    eventually("the end of the connection", || shared(&server) == 0);
}
