//! A server that cannot see how much memory its machine has left.

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hiroma_far_server::{Elastic, Seen, ServeOptions, serve};
use hiroma_far_wire::CHUNK;
use support::{Peer, eventually};

const CHUNKS: u64 = 4;

#[test]
fn memory_is_given_back_while_the_gauge_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let is_blind = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_blind);
    let gauge = Arc::new(move || match seen.load(Ordering::SeqCst) {
        true => Err(io::Error::other("no descriptors")),
        false => Ok(Seen { available_bytes: 900 << 20, stalled_us: 0 }),
    });
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 1 << 30,
        elastic: Some(Elastic {
            gauge,
            whole_bytes: 1 << 30,
            spill: Some((dir.path().to_owned(), None)),
        }),
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let (mut peer, _) = Peer::new_session(&server);
    let content: Vec<u8> = (0..CHUNK).map(|at| (at % 251) as u8).collect();
    for chunk in 0..CHUNKS {
        peer.write(chunk * CHUNK as u64, &content).unwrap();
    }
    assert!(!server.stats().is_short);
    is_blind.store(true, Ordering::SeqCst);
    let spilled = || server.stats().spilled_bytes;
    eventually("all goes to the disk", || spilled() == CHUNKS * CHUNK as u64);
    assert!(server.stats().is_short);
    // Another chunk may just have been made ready, which counts against what is given back.
    let least = (CHUNKS - 1) * CHUNK as u64;
    eventually("that is counted", || server.given_back_bytes() >= least);
    for chunk in 0..CHUNKS {
        assert!(peer.read(chunk * CHUNK as u64, CHUNK as u32).unwrap() == content);
    }
}
