//! Real servers on loopback.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hiroma_kernel::frame::FrameBuf;
use hiroma_server::{ServeOptions, ServerHandle, serve};
use hiroma_units::{EXTENT, Loc};
use proptest::prelude::*;

use super::*;
use crate::store::model::{self, buf_with, content, read_now, wait, write_now};
use crate::store::{Completion, Token};

const SECTOR: usize = 8192;
const CHUNK_SECTORS: usize = EXTENT / SECTOR;

fn options(memory_bytes: u64) -> ServeOptions {
    ServeOptions { listen: "127.0.0.1:0".into(), memory_bytes, ..ServeOptions::default() }
}

fn server(memory_bytes: u64) -> ServerHandle {
    serve(options(memory_bytes)).unwrap()
}

fn store_options(servers: &[&ServerHandle]) -> TcpOptions {
    TcpOptions {
        servers: servers.iter().map(|server| server.local_addr().to_string()).collect(),
        sector_bytes: SECTOR,
        allocation: Allocation::Simple,
        timeout: Duration::from_secs(30),
        key_file: None,
        log: Arc::new(|_| {}),
    }
}

fn store(servers: &[&ServerHandle]) -> TcpStore {
    TcpStore::connect_with(store_options(servers)).unwrap()
}

fn channels(store: &TcpStore) -> (Box<dyn Channel>, Box<dyn Channel>) {
    (store.open(Purpose::Read).unwrap(), store.open(Purpose::Write).unwrap())
}

/// Waits for something that happens in other threads.
fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < deadline, "{what} never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_written_comes_back() {
    let server = server(64 << 20);
    let store = store(&[&server]);
    let (mut reader, mut writer) = channels(&store);
    let huge = content(3, EXTENT);
    let small = content(7, 3 * SECTOR);
    let huge_locs = write_now(&mut *writer, &huge, CHUNK_SECTORS).unwrap();
    let small_locs = write_now(&mut *writer, &small, 3).unwrap();
    assert!(read_now(&mut *reader, &huge_locs, SECTOR).unwrap() == huge);
    assert!(read_now(&mut *reader, &small_locs, SECTOR).unwrap() == small);
    let mixed = [huge_locs[7], small_locs[2], huge_locs[8], huge_locs[9], small_locs[0]];
    let parts = [&huge[7 * SECTOR..8 * SECTOR], &small[2 * SECTOR..], &huge[8 * SECTOR..10 * SECTOR], &small[..SECTOR]];
    assert!(read_now(&mut *reader, &mixed, SECTOR).unwrap() == parts.concat());
    assert!(reader.in_flight() == 0 && writer.in_flight() == 0);
}

#[test]
fn several_threads_share_a_store() {
    let (first, second) = (server(64 << 20), server(64 << 20));
    let store = TcpStore::connect_with(TcpOptions { allocation: Allocation::RoundRobin, ..store_options(&[&first, &second]) }).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let mut driver = model::Driver::new(store, SECTOR);
                model::random_ops(seed + 1, 2 * CHUNK_SECTORS, 150).iter().for_each(|op| driver.step(op));
                driver.finish();
            });
        }
    });
    assert_eq!(store.usage().far_bytes, 0);
    assert!(first.stats().sessions[0].usage.writes > 0 && second.stats().sessions[0].usage.writes > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_store_on_servers_does_what_a_naive_map_does(
        ops in model::ops(CHUNK_SECTORS + 20, 60),
        servers in 1usize..4,
        turns: bool,
        chunks in 2u64..12,
    ) {
        let servers: Vec<_> = (0..servers).map(|_| server(chunks << 21)).collect();
        let allocation = if turns { Allocation::RoundRobin } else { Allocation::Simple };
        let options = TcpOptions { allocation, ..store_options(&servers.iter().collect::<Vec<_>>()) };
        let store = TcpStore::connect_with(options).unwrap();
        model::check(&store, SECTOR, &ops);
    }
}
