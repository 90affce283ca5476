use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::*;
use crate::transport::offer::{self, Offer};
use crate::transport::ring::Sizes;
use crate::wait;
use std::os::fd::AsRawFd;

const SIZES: Sizes = Sizes { to_server: 4096, to_client: 8192 };

struct Pair {
    server: SharedMemory,
    client: SharedMemory,
    tcp: Arc<TcpStream>,
}

fn pair() -> Pair {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, far) = (Arc::new(near), Arc::new(listener.accept().unwrap().0));
    assert!(offer::is_worth_trying(&near) && offer::is_worth_trying(&far));
    let offer = Offer::open().unwrap();
    let client_bell = offer::come(&offer.invitation()).unwrap();
    let (ends, bell) = offer.hand_over(SIZES).unwrap();
    let server = SharedMemory::new(End::Server, ends, bell, Arc::clone(&far));
    let ends = offer::take(&client_bell).unwrap();
    let client = SharedMemory::new(End::Client, ends, client_bell, near);
    Pair { server, client, tcp: far }
}

fn receive(end: &mut SharedMemory, wait: bool) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64];
    let received = end.receive(&mut [IoSliceMut::new(&mut bytes)], wait)?;
    bytes.truncate(received);
    Ok(bytes)
}

fn kind(result: io::Result<Vec<u8>>) -> io::ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn who_sleeps_is_woken() {
    let Pair { mut server, mut client, tcp: _tcp } = pair();
    let echo = std::thread::spawn(move || {
        loop {
            let bytes = receive(&mut server, true).unwrap();
            if bytes.is_empty() {
                return;
            }
            assert_eq!(server.send(&[IoSlice::new(&bytes)], true).unwrap(), bytes.len());
        }
    });
    for round in 0..2000u32 {
        if round % 100 == 0 {
            // Long enough for the other end to fall asleep.
            std::thread::sleep(Duration::from_millis(2));
        }
        let question = round.to_le_bytes();
        assert_eq!(client.send(&[IoSlice::new(&question)], false).unwrap(), 4);
        let since = Instant::now();
        let answer = loop {
            match receive(&mut client, false) {
                Ok(answer) => break answer,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            if client.may_sleep(false) {
                wait::readable(&[client.socket().as_raw_fd()], 10_000);
            }
            assert!(since.elapsed() < Duration::from_secs(5), "nobody woke us");
        };
        assert_eq!(answer, question);
    }
    drop(client);
    echo.join().unwrap();
}

#[test]
fn large_transfers_pass_through_small_rings() {
    let Pair { mut server, mut client, tcp: _tcp } = pair();
    let content: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
    let sent = content.clone();
    let sender = std::thread::spawn(move || {
        let mut done = 0;
        while done < sent.len() {
            done += server.send(&[IoSlice::new(&sent[done..])], true).unwrap();
        }
        server
    });
    let mut received = Vec::new();
    while received.len() < content.len() {
        match receive(&mut client, true).unwrap() {
            bytes if bytes.is_empty() => panic!("it has ended"),
            bytes => received.extend(bytes),
        }
    }
    drop(sender.join().unwrap());
    assert!(received == content);
}

#[test]
fn end_of_the_other_side_is_noticed() {
    // The client has died while the server sleeps.
    let Pair { mut server, client, tcp: _tcp } = pair();
    let sleeper = std::thread::spawn(move || receive(&mut server, true).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    drop(client);
    assert!(sleeper.join().unwrap().is_empty());
    // The server has died: what it said last is still read.
    let Pair { mut server, mut client, tcp } = pair();
    server.send(&[IoSlice::new(b"farewell")], false).unwrap();
    drop((server, tcp));
    client.look();
    assert_eq!(receive(&mut client, false).unwrap(), b"farewell");
    assert!(receive(&mut client, false).unwrap().is_empty());
    assert_eq!(
        client.send(&[IoSlice::new(b"x")], false).unwrap_err().kind(),
        io::ErrorKind::BrokenPipe
    );
    // A client that polls without sleeping notices it too.
    let Pair { server, mut client, tcp } = pair();
    assert_eq!(kind(receive(&mut client, false)), io::ErrorKind::WouldBlock);
    drop((server, tcp));
    let ended = (0..100).any(|_| receive(&mut client, false).is_ok_and(|bytes| bytes.is_empty()));
    assert!(ended, "the end was not noticed");
}

#[test]
fn busy_client_does_not_keep_a_connection_that_was_shut() {
    let Pair { mut server, mut client, tcp } = pair();
    tcp.shutdown(std::net::Shutdown::Both).unwrap();
    let mut received = 0;
    loop {
        // The client does not care.
        client.gone.set(false);
        client.calls = 0;
        client.send(&[IoSlice::new(b"more")], false).unwrap();
        match receive(&mut server, true).unwrap() {
            bytes if bytes.is_empty() => break,
            _ => received += 1,
        }
        assert!(received < 1000, "it goes on");
    }
}

#[test]
fn strangers_get_nothing() {
    let offer = Offer::open().unwrap();
    let invitation = offer.invitation();
    let stranger = offer::Invitation { secret: [0; 16], ..invitation };
    let theirs = offer::come(&stranger).unwrap();
    let ours = offer::come(&invitation).unwrap();
    offer.hand_over(SIZES).unwrap();
    assert!(offer::take(&theirs).is_err() && offer::take(&ours).is_ok());
    let offer = Offer::open().unwrap();
    let _theirs = offer::come(&offer::Invitation { secret: [0; 16], ..offer.invitation() });
    assert_eq!(offer.hand_over(SIZES).err().unwrap().kind(), io::ErrorKind::WouldBlock);
    assert!(offer::come(&invitation).is_err(), "nobody listens there any more");
}
