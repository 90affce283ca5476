//! Two clients, one of them greedy: how long the other one waits.

mod support;

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hiroma_far_server::{ServeOptions, ServerHandle, serve};
use hiroma_far_wire::{CHUNK, Introduction, Message, Purpose, SessionToken};
use support::Peer;

const CHUNKS: u64 = 16;

fn named(server: &ServerHandle, name: &str, chunks: u64) -> Peer {
    let mut peer = Peer::greet(server, None).unwrap();
    peer.send(&Message::Introduce(Introduction { name: name.to_owned(), moves: false }), &[]);
    let open = Message::Open { token: SessionToken::NEW, lane: 1, purpose: Purpose::Write };
    assert!(matches!(peer.ask(&open, &[]), Message::Opened { .. }));
    for chunk in 0..chunks {
        peer.write(chunk * CHUNK as u64, &vec![chunk as u8; CHUNK]).unwrap();
    }
    peer
}

/// Reads `len` bytes in small pieces: the kernel does not interrupt one large copy for another
/// thread, which would be felt here although it is another machine's.
fn take(peer: &mut Peer, len: usize) {
    let reply = peer.ask(&Message::Read { addr: 0, len: len as u32 }, &[]);
    assert!(matches!(reply, Message::ReadReply { .. }));
    let mut piece = [0; 16 << 10];
    let mut left = len;
    while left > 0 {
        let count = peer.stream.read(&mut piece[..left.min(16 << 10)]).unwrap();
        assert!(count > 0);
        left -= count;
    }
    peer.wire.inbound().payload_received(len);
}

/// The median and the 99th percentile of the time for 4 KiB, one request after the other.
fn quantiles(peer: &mut Peer, time: Duration) -> (Duration, Duration) {
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let at = times.len() as u64 * 7919 % (CHUNKS * CHUNK as u64 / 4096) * 4096;
        let began = Instant::now();
        peer.read(at, 4096).unwrap();
        times.push(began.elapsed());
        std::thread::sleep(Duration::from_micros(200));
    }
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

#[test]
fn greedy_client_does_not_hold_up_another() {
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 512 << 20,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let mut modest = named(&server, "modest", CHUNKS);
    let time = Duration::from_secs(3);
    let alone = quantiles(&mut modest, time);
    println!("alone: {alone:?}");
    for (connections, len) in [(1, CHUNK), (8, CHUNK), (8, 4096)] {
        let mut greedy: Vec<Peer> = (0..connections).map(|_| named(&server, "greedy", 1)).collect();
        let stopping = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            for peer in &mut greedy {
                scope.spawn(|| {
                    while !stopping.load(Ordering::SeqCst) {
                        take(peer, len);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(200));
            let beside = quantiles(&mut modest, time);
            stopping.store(true, Ordering::SeqCst);
            beside
        });
        println!("{connections} connections of {len}: {beside:?}");
        // Its own threads are on the same processors: these are no figures of the server alone.
        assert!(beside.0 < 10 * alone.0, "{beside:?}, alone {alone:?}");
        assert!(beside.1 < Duration::from_millis(20), "{beside:?}, alone {alone:?}");
    }
}

#[test]
fn client_that_takes_nothing_holds_up_nobody() {
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 512 << 20,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let (mut modest, mut same) = (named(&server, "modest", 1), named(&server, "greedy", 1));
    // More than the sockets hold is under way to each of these, and half a write from them.
    let mut stuck: Vec<Peer> = (0..8).map(|_| named(&server, "greedy", 1)).collect();
    for (index, peer) in stuck.iter_mut().enumerate() {
        if index % 2 == 0 {
            (0..16).for_each(|_| peer.send(&Message::Read { addr: 0, len: CHUNK as u32 }, &[]));
        } else {
            peer.send(&Message::Write { addr: 0, len: CHUNK as u32 }, &[1; 4096]);
        }
    }
    let start = Instant::now();
    for _ in 0..500 {
        assert!(modest.read(0, 4096).unwrap() == [0; 4096]);
        assert!(same.read(0, 4096).unwrap() == [0; 4096]);
    }
    modest.write(0, &vec![7; CHUNK]).unwrap();
    same.write(0, &vec![8; CHUNK]).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
