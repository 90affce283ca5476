//! A server that lends what its machine can spare, with a machine whose memory the test sets.

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hiroma_far_server::{Elastic, Seen, ServeOptions, ServerHandle, serve};
use hiroma_far_wire::{CHUNK, ErrorCode, Introduction, Message, Purpose, SessionToken};
use support::{Peer, eventually};

const MIB: u64 = 1 << 20;
/// Memory of the machine. 128 MiB of it are kept for its own programs.
const WHOLE: u64 = 1024 * MIB;

/// What the machine's own programs use.
#[derive(Clone, Default)]
struct Own(Arc<AtomicU64>);

impl Own {
    fn use_mib(&self, mib: u64) {
        self.0.store(mib * MIB, Ordering::SeqCst);
    }
}

/// A server on a machine of 1 GiB, of which own programs use some.
fn server(own: &Own, spill: Option<(PathBuf, Option<u64>)>) -> ServerHandle {
    // What the server itself holds is what this process has beyond its start.
    let base = resident();
    let own = own.clone();
    let gauge = Arc::new(move || {
        let guests = resident().saturating_sub(base);
        let used = own.0.load(Ordering::SeqCst) + guests;
        Ok(Seen { available_bytes: WHOLE.saturating_sub(used), stalled_us: 0 })
    });
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: WHOLE,
        elastic: Some(Elastic { gauge, whole_bytes: WHOLE, spill }),
        ..ServeOptions::default()
    };
    serve(options).unwrap()
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn content(chunk: u64) -> Vec<u8> {
    (0..CHUNK as u64).map(|at| ((at >> 3) ^ chunk ^ (at >> 13)) as u8).collect()
}

fn fill(peer: &mut Peer, chunks: std::ops::Range<u64>) {
    for chunk in chunks {
        peer.write(chunk * CHUNK as u64, &content(chunk)).unwrap();
    }
}

fn check(peer: &mut Peer, chunks: std::ops::Range<u64>) {
    for chunk in chunks {
        let bytes = peer.read(chunk * CHUNK as u64, CHUNK as u32).unwrap();
        assert!(bytes == content(chunk), "chunk {chunk}");
    }
}

/// A client that introduces itself.
fn named(server: &ServerHandle, name: &str, moves: bool) -> (Peer, SessionToken) {
    let mut peer = Peer::greet(server, None).unwrap();
    peer.send(&Message::Introduce(Introduction { name: name.to_owned(), moves }), &[]);
    let open = Message::Open { token: SessionToken::NEW, lane: 1, purpose: Purpose::Write };
    match peer.ask(&open, &[]) {
        Message::Opened { token, .. } => (peer, token),
        other => panic!("{other:?}"),
    }
}

// One test, because the memory of the process is the machine's.
#[test]
fn memory_is_lent_taken_back_and_lent_again() {
    let own = Own::default();
    own.use_mib(96);
    let server = server(&own, Some((PathBuf::from("/var/tmp"), None)));
    let lent = server.stats().capacity_bytes;
    assert!((768 * MIB..=800 * MIB).contains(&lent), "what is free, less what is kept: {lent}");
    let (mut peer, _) = Peer::new_session(&server);
    fill(&mut peer, 0..200);
    let stats = server.stats();
    assert_eq!((stats.used_bytes, stats.spilled_bytes), (400 * MIB, 0));

    // An own program takes most of the machine.
    own.use_mib(800);
    let start = Instant::now();
    eventually("the return of memory", || server.stats().spilled_bytes >= 288 * MIB);
    let took = start.elapsed();
    println!("{} of memory given back in {took:?}", server.stats().spilled_bytes / MIB);
    assert!(took < Duration::from_secs(5), "{took:?}");
    let stats = server.stats();
    assert!(stats.is_short && stats.used_bytes == 400 * MIB, "{stats:?}");
    eventually("the count", || server.given_back_bytes() >= stats.spilled_bytes);
    assert!(resident() < 400 * MIB, "{} MiB are in memory", resident() / MIB);
    // What was used last is in memory, what was used first is on the disk: all of it is right.
    check(&mut peer, 0..200);
    let (mut newcomer, _) = named(&server, "newcomer", false);
    assert_eq!(newcomer.write(0, &[1; 4096]), Err(ErrorCode::Full));
    drop(newcomer);
    // Blocks on the disk can be replaced in part, and freed.
    peer.write(4096, &[0xee; 8192]).unwrap();
    assert_eq!(peer.read(4095, 2).unwrap(), [content(0)[4095], 0xee]);
    let free = Message::Free { addr: CHUNK as u64, len: CHUNK as u32 };
    assert_eq!(peer.ask(&free, &[]), Message::Ack);
    assert_eq!(peer.read(CHUNK as u64, 4096), Err(ErrorCode::BadAddress), "never zeros");
    let after = server.stats();
    assert_eq!(after.used_bytes, 398 * MIB);

    // The program ends: after a while, memory is lent again, and what was moved comes back.
    own.use_mib(96);
    eventually("the end of the shortage", || !server.stats().is_short);
    eventually("the return of blocks to memory", || server.stats().spilled_bytes == 0);
    check(&mut peer, 2..200);
    assert_eq!(peer.read(4096, 8192).unwrap(), [0xee; 8192]);
    fill(&mut peer, 200..210);
    check(&mut peer, 200..210);

    // It needs memory while blocks are read and written all the time.
    let mut others: Vec<Peer> = (0..2).map(|_| Peer::new_session(&server).0).collect();
    others.iter_mut().for_each(|peer| fill(peer, 0..20));
    std::thread::scope(|scope| {
        for peer in &mut others {
            scope.spawn(|| {
                for _ in 0..20 {
                    check(peer, 0..20);
                    fill(peer, 5..10);
                }
            });
        }
        for mib in [700, 96, 850, 500, 900, 96] {
            own.use_mib(mib);
            std::thread::sleep(Duration::from_millis(150));
        }
    });
    check(&mut peer, 2..210);
    drop((peer, others));
    eventually("an empty server", || server.stats().used_bytes == 0);
    drop(server);
    full_disk_and_clients_that_can_move();
}

/// What cannot be written stays where it is, and clients with copies are asked to move.
fn full_disk_and_clients_that_can_move() {
    let own = Own::default();
    let server = server(&own, Some((PathBuf::from("/var/tmp"), Some(20 * MIB))));
    let (mut peer, _) = named(&server, "", true);
    let (mut fixed, _) = Peer::new_session(&server);
    fill(&mut peer, 0..40);
    fill(&mut fixed, 0..40);
    let asked = |peer: &mut Peer| match peer.ask(&Message::Usage, &[]) {
        Message::UsageReply { usage } => usage.is_draining,
        other => panic!("{other:?}"),
    };
    assert!(!asked(&mut peer) && !asked(&mut fixed));
    own.use_mib(1000);
    eventually("the client's move", || asked(&mut peer));
    assert!(!asked(&mut fixed), "it has nothing elsewhere");
    eventually("a full disk", || server.stats().spilled_bytes == 20 * MIB);
    check(&mut peer, 0..40);
    check(&mut fixed, 0..40);
    own.use_mib(0);
    eventually("the end of the shortage", || !asked(&mut peer));
    check(&mut peer, 0..40);
}
