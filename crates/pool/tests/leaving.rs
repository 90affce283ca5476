//! The end of a live member.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hiroma_pool::{Condition, Discovery, Membership, Options};

#[test]
fn member_leaves_soon_although_others_are_silent() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("members");
    fs::write(&list, "").unwrap();
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = Options {
        address,
        bind: address,
        name: None,
        labels: Vec::new(),
        join: Vec::new(),
        discovery: Some(Discovery::Static(list.clone())),
        key: None,
        condition: Condition::default(),
        log: Arc::new(|_: &str| {}),
    };
    let mut member = Membership::start(options).unwrap();
    // They accept connections and say nothing, so each is waited for.
    let silent: Vec<TcpListener> =
        (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let lines: String = silent.iter().map(|at| format!("{}\n", at.local_addr().unwrap())).collect();
    fs::write(&list, lines).unwrap();
    sleep(Duration::from_millis(1500));
    let start = Instant::now();
    member.leave();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
