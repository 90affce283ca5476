//! Tests with real servers on loopback.

pub(crate) mod proxy;
mod shared;
mod trouble;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hiroma_far_server::{ServeOptions, ServerHandle, serve};
use hiroma_sys::frame::FrameBuf;
use hiroma_units::{EXTENT, Loc};
use proptest::prelude::*;

use self::proxy::Proxy;
use super::*;
use crate::store::Token;
use crate::store::model::{self, buf_with, content, read_now, wait, write_now};

const SECTOR: usize = 8192;
const CHUNK_SECTORS: usize = EXTENT / SECTOR;

fn options(memory_bytes: u64) -> ServeOptions {
    ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes,
        lease: Duration::from_secs(60),
        ..ServeOptions::default()
    }
}

fn server(memory_bytes: u64) -> ServerHandle {
    serve(options(memory_bytes)).unwrap()
}

pub(crate) fn store_options(servers: &[&ServerHandle]) -> TcpOptions {
    TcpOptions {
        servers: servers.iter().map(|server| server.local_addr().to_string()).collect(),
        sector_bytes: SECTOR,
        allocation: Allocation::Simple,
        timeout: Duration::from_secs(30),
        key_file: None,
        resolved: Vec::new(),
        log: Arc::new(|_| {}),
        lost: Arc::new(|_| {}),
        is_redundant: false,
        is_return: false,
        is_followed: false,
        transport: TransportChoice::Auto,
    }
}

fn store(servers: &[&ServerHandle]) -> TcpStore {
    TcpStore::connect_with(store_options(servers)).unwrap()
}

fn channels(store: &TcpStore) -> (Box<dyn Channel>, Box<dyn Channel>) {
    (store.open(Purpose::Read).unwrap(), store.open(Purpose::Write).unwrap())
}

fn through(proxy: &Proxy) -> TcpOptions {
    TcpOptions {
        servers: vec![proxy.addr.to_string()],
        sector_bytes: SECTOR,
        allocation: Allocation::Simple,
        timeout: Duration::from_secs(60),
        key_file: None,
        resolved: Vec::new(),
        log: Arc::new(|_| {}),
        lost: Arc::new(|_| {}),
        is_redundant: false,
        is_return: false,
        is_followed: false,
        // Shared memory would not pass through the proxy.
        transport: TransportChoice::Tcp,
    }
}

/// Waits for an event in another thread.
fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < deadline, "{what} never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn writes_round_trip() {
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
    let parts = [
        &huge[7 * SECTOR..8 * SECTOR],
        &small[2 * SECTOR..],
        &huge[8 * SECTOR..10 * SECTOR],
        &small[..SECTOR],
    ];
    assert!(read_now(&mut *reader, &mixed, SECTOR).unwrap() == parts.concat());
    assert!(reader.in_flight() == 0 && writer.in_flight() == 0);
}

/// Moves what is to leave its server, as the pager does.
fn move_all(store: &TcpStore, held: &mut [(u64, Loc)]) {
    let (mut reader, mut writer) = channels(store);
    for (seed, loc) in held.iter_mut().filter(|(_, loc)| store.is_to_leave(*loc)) {
        let bytes = read_now(&mut *reader, &[*loc], SECTOR).unwrap();
        assert!(bytes == content(*seed, SECTOR));
        let new = write_now(&mut *writer, &bytes, 1).unwrap()[0];
        store.free(&[std::mem::replace(loc, new)]);
    }
}

#[test]
fn blocks_leave_a_server_that_is_to_be_emptied_and_it_is_done_without() {
    let (first, second) = (server(64 << 20), server(64 << 20));
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let store = TcpStore::connect_with(TcpOptions {
        log: Arc::new(move |line| heard.lock().unwrap().push(line.to_owned())),
        timeout: Duration::from_secs(3),
        ..store_options(&[&first, &second])
    });
    let store = store.unwrap();
    let (mut reader, mut writer) = channels(&store);
    let write = |writer: &mut dyn Channel, seed| {
        (seed, write_now(writer, &content(seed, SECTOR), 1).unwrap()[0])
    };
    // The last chunk has gaps, which must not be filled.
    let mut held: Vec<_> = (0..1000).map(|seed| write(&mut *writer, seed)).collect();
    assert!(!store.begin_drain() && first.stats().used_bytes > 0);
    first.set_draining(true);
    eventually("its need to be emptied", || store.begin_drain());
    held.extend((1000..1200).map(|seed| write(&mut *writer, seed)));
    assert!(held[1000..].iter().all(|&(_, loc)| !store.is_to_leave(loc)));
    move_all(&store, &mut held);
    assert!(!store.begin_drain());
    eventually("its emptiness", || {
        writer.poll(&mut Vec::new());
        first.stats().used_bytes == 0
    });
    first.stop();
    eventually("its end", || {
        said.lock().unwrap().iter().any(|line| line.contains("done without from now on"))
    });
    held.extend((1200..1300).map(|seed| write(&mut *writer, seed)));
    assert!(store.prepare_fork().is_ok());
    for &(seed, loc) in &held {
        assert!(read_now(&mut *reader, &[loc], SECTOR).unwrap() == content(seed, SECTOR));
    }
}

#[test]
fn only_server_is_emptied_only_if_another_store_follows() {
    for is_followed in [false, true] {
        let server = server(64 << 20);
        let options = TcpOptions { is_followed, ..store_options(&[&server]) };
        let store = TcpStore::connect_with(options).unwrap();
        let (_, mut writer) = channels(&store);
        let loc = write_now(&mut *writer, &content(1, SECTOR), 1).unwrap()[0];
        server.set_draining(true);
        eventually("the news", || store.shared.books().servers[0].is_draining());
        assert_eq!((store.begin_drain(), store.is_to_leave(loc)), (is_followed, is_followed));
        let again = writer.write(Token(1), buf_with(&content(2, SECTOR)), &mut [Loc(0)]);
        assert_eq!(again.is_err(), is_followed, "what is reserved there can still be used");
        if again.is_ok() {
            wait(&mut *writer);
        }
        server.set_draining(false);
        eventually("the news", || !store.begin_drain());
    }
}

#[test]
fn goodbye_ends_quietly() {
    let server = server(64 << 20);
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let options = TcpOptions {
        log: Arc::new(move |line| heard.lock().unwrap().push(line.to_owned())),
        ..store_options(&[&server])
    };
    let store = TcpStore::connect_with(options).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(1, SECTOR), 1).unwrap();
    store.leave();
    eventually("the end of the session", || server.stats().sessions.is_empty());
    let mut done = Vec::new();
    reader.read(Token(1), &locs, buf_with(&content(2, SECTOR)));
    let _ = writer.write(Token(2), buf_with(&content(3, SECTOR)), &mut [Loc(0)]);
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        reader.poll(&mut done);
        writer.poll(&mut done);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(done.is_empty(), "{done:?}");
    assert!(said.lock().unwrap().is_empty(), "{:?}", said.lock().unwrap());
}

#[test]
fn several_threads_share_a_store() {
    let (first, second) = (server(64 << 20), server(64 << 20));
    let store = TcpStore::connect_with(TcpOptions {
        allocation: Allocation::RoundRobin,
        ..store_options(&[&first, &second])
    })
    .unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let mut driver = model::Driver::new(store, SECTOR);
                model::random_ops(seed + 1, CHUNK_SECTORS + 20, 60)
                    .iter()
                    .for_each(|op| driver.step(op));
                driver.finish();
            });
        }
    });
    assert_eq!(store.usage().far_bytes, 0);
    assert!(
        first.stats().sessions[0].usage.writes > 0 && second.stats().sessions[0].usage.writes > 0
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn store_on_servers_matches_a_naive_map(
        ops in model::ops(CHUNK_SECTORS + 20, 40),
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

#[test]
fn full_server_passes_writes_to_the_next() {
    for allocation in [Allocation::Simple, Allocation::RoundRobin] {
        let (small, large) = (server(8 << 20), server(12 << 20));
        let store =
            TcpStore::connect_with(TcpOptions { allocation, ..store_options(&[&small, &large]) })
                .unwrap();
        let (mut reader, mut writer) = channels(&store);
        let mut held = Vec::new();
        while let Some(locs) =
            write_now(&mut *writer, &content(held.len() as u64, EXTENT), CHUNK_SECTORS)
        {
            held.push(locs);
        }
        assert_eq!(held.len(), 10);
        assert_eq!((small.stats().used_bytes, large.stats().used_bytes), (8 << 20, 12 << 20));
        let mut locs = vec![Loc(0); 3];
        let (buf, error) =
            writer.write(Token(9), buf_with(&content(3, 3 * SECTOR)), &mut locs).unwrap_err();
        assert!(buf.bytes() == content(3, 3 * SECTOR));
        let text = error.to_string();
        assert!(
            matches!(error, StoreError::Full { .. }) && text.contains("20MiB of 20MiB"),
            "{text}"
        );
        store.free(&held.swap_remove(4));
        write_now(&mut *writer, &content(3, 3 * SECTOR), 3).unwrap();
        for (index, locs) in held.iter().enumerate() {
            let seed = if index == 4 { 9 } else { index as u64 };
            assert!(
                read_now(&mut *reader, locs, SECTOR).unwrap() == content(seed, EXTENT),
                "extent {index}"
            );
        }
    }
}

#[test]
fn freed_chunks_are_usable_by_another_program() {
    let server = server(40 << 20);
    let (first, second) = (store(&[&server]), store(&[&server]));
    let mut writer = first.open(Purpose::Write).unwrap();
    let mut held = Vec::new();
    while let Some(locs) =
        write_now(&mut *writer, &content(held.len() as u64, EXTENT), CHUNK_SECTORS)
    {
        held.push(locs);
    }
    held.drain(..).for_each(|locs| first.free(&locs));
    // The server receives the frees with the first program's next request.
    write_now(&mut *writer, &content(1, SECTOR), 1).unwrap();
    drop(writer);
    drop(first);
    eventually("the end of the first session", || server.stats().sessions.len() == 1);
    let mut writer = second.open(Purpose::Write).unwrap();
    let fits = (0..)
        .take_while(|&seed| {
            write_now(&mut *writer, &content(seed, EXTENT), CHUNK_SECTORS).is_some()
        })
        .count();
    assert_eq!(fits, 20);
}

#[test]
fn freed_chunks_are_returned_with_next_traffic() {
    let server = server(200 << 20);
    let store = store(&[&server]);
    let (mut reader, mut writer) = channels(&store);
    let held: Vec<_> = (0..60)
        .map(|seed| write_now(&mut *writer, &content(seed, EXTENT), CHUNK_SECTORS).unwrap())
        .collect();
    let used = server.stats().used_bytes;
    assert_eq!(used, 60 << 21);
    held[1..].iter().for_each(|locs| store.free(locs));
    let mut out = Vec::new();
    eventually("the return of chunks", || {
        reader.poll(&mut out);
        server.stats().used_bytes <= 17 << 21
    });
    assert!(read_now(&mut *reader, &held[0], SECTOR).unwrap() == content(0, EXTENT));
}

#[test]
fn exited_program_leaves_nothing_on_the_server() {
    let server = server(64 << 20);
    let store = store(&[&server]);
    let mut writer = store.open(Purpose::Write).unwrap();
    write_now(&mut *writer, &content(3, EXTENT), CHUNK_SECTORS).unwrap();
    let stats = server.stats();
    assert_eq!(
        (stats.sessions.len(), stats.used_bytes, stats.sessions[0].usage.written_bytes),
        (1, 2 << 20, 2 << 20)
    );
    drop(store);
    eventually("the end of the session", || {
        server.stats().used_bytes + server.stats().reserved_bytes == 0
    });
    assert!(server.stats().sessions.is_empty());
}

#[test]
fn killed_program_is_forgotten_when_its_lease_has_run_out() {
    let server =
        serve(ServeOptions { lease: Duration::from_millis(300), ..options(64 << 20) }).unwrap();
    let proxy = Proxy::new(server.local_addr());
    let store = TcpStore::connect_with(through(&proxy)).unwrap();
    let mut writer = store.open(Purpose::Write).unwrap();
    write_now(&mut *writer, &content(3, EXTENT), CHUNK_SECTORS).unwrap();
    proxy.close();
    eventually("the end of the lease", || {
        server.stats().used_bytes + server.stats().reserved_bytes == 0
    });
}

#[test]
fn memory_of_killed_programs_is_reclaimed_when_needed() {
    let server = serve(ServeOptions { lease: Duration::from_secs(4), ..options(8 << 20) }).unwrap();
    let proxy = Proxy::new(server.local_addr());
    let killed = TcpStore::connect_with(through(&proxy)).unwrap();
    let mut writer = killed.open(Purpose::Write).unwrap();
    while write_now(&mut *writer, &content(1, EXTENT), CHUNK_SECTORS).is_some() {}
    proxy.close();
    eventually("the loss of the connections", || server.stats().sessions[0].connections == 0);
    let store = store(&[&server]);
    let mut writer = store.open(Purpose::Write).unwrap();
    let mut fits = 0;
    // A client that has just gone may come back.
    eventually("the memory of the killed program", || {
        fits += usize::from(write_now(&mut *writer, &content(3, EXTENT), CHUNK_SECTORS).is_some());
        fits == 4
    });
}

#[test]
fn unreachable_server_is_named_at_start() {
    let server = server(8 << 20);
    let gone = serve(options(8 << 20)).unwrap();
    let gone_addr = gone.local_addr().to_string();
    drop(gone);
    let mut options = store_options(&[&server]);
    options.servers.push(gone_addr.clone());
    let error = TcpStore::connect_with(options.clone()).err().unwrap().to_string();
    assert!(
        error.contains(&format!("cannot connect to tcp://{gone_addr}"))
            && error.contains("hiroma serve"),
        "{error}"
    );
    options.servers = vec!["no.such.host.invalid:7070".into()];
    let error = TcpStore::connect_with(options).err().unwrap();
    assert!(
        matches!(error, StoreError::Config { .. })
            && error.to_string().contains("no.such.host.invalid"),
        "{error}"
    );
}

#[test]
fn every_address_of_a_name_is_tried() {
    let (server, gone) = (server(8 << 20), server(8 << 20));
    let addrs = vec![gone.local_addr(), server.local_addr()];
    drop(gone);
    let name = || {
        vec![ServerAddr {
            text: "tcp://name:7070".into(),
            addrs: addrs.clone(),
            introduction: Introduction::default(),
        }]
    };
    let store =
        TcpStore::connect_to(store_options(&[]), "tcp://name:7070".into(), None, name()).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == content(3, SECTOR));
}

#[test]
fn keys_are_checked_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let [right, wrong] = ["right", "wrong"].map(|name| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("0123456789abcdef {name}\n")).unwrap();
        path
    });
    let locked = serve(ServeOptions { key_file: Some(right.clone()), ..options(8 << 20) }).unwrap();
    let open = server(8 << 20);
    let connect = |server: &ServerHandle, key: Option<&PathBuf>| {
        TcpStore::connect_with(TcpOptions { key_file: key.cloned(), ..store_options(&[server]) })
    };
    let refused = |server, key| match connect(server, key) {
        Err(error @ StoreError::Refused { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("let in"),
    };
    assert!(refused(&locked, None).contains("asks for a key"));
    assert!(refused(&locked, Some(&wrong)).contains("not the server's"));
    assert!(refused(&open, Some(&right)).contains("does not ask for a key"));
    assert!(
        connect(&open, Some(&dir.path().join("missing")))
            .err()
            .unwrap()
            .to_string()
            .contains("cannot read the key file")
    );
    let store = connect(&locked, Some(&right)).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == content(3, SECTOR));
}

#[test]
fn non_server_peer_is_recognised() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer = |bytes: &'static [u8]| {
        let stream = listener.accept().unwrap().0;
        std::io::Write::write_all(&mut &stream, bytes).unwrap();
        let _ = std::io::Read::read_to_end(&mut &stream, &mut Vec::new());
    };
    let connect = || {
        let options = TcpOptions { servers: vec![addr.to_string()], ..store_options(&[]) };
        TcpStore::connect_with(options).err().unwrap().to_string()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| answer(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"));
        let error = connect();
        assert!(error.contains("does not speak the hiroma protocol"), "{error}");
    });
    std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept().unwrap()));
        let error = connect();
        assert!(error.contains("cannot connect"), "{error}");
    });
}

#[test]
fn child_reads_parent_content_without_interference() {
    let server = server(64 << 20);
    let store = store(&[&server]);
    let (_, mut writer) = channels(&store);
    let old = content(3, 5 * SECTOR);
    let old_locs = write_now(&mut *writer, &old, 5).unwrap();
    let guard = store.prepare_fork().unwrap();
    // This process acts as the child; the connections of the "parent" end with their channels,
    // except the control connection.
    guard.adopt().unwrap();
    let mut locs = [Loc(0)];
    let (buf, error) = writer.write(Token(1), buf_with(&old[..SECTOR]), &mut locs).unwrap_err();
    assert!(buf.len() == SECTOR && error.to_string().contains("forked"), "{error}");
    drop(writer);
    eventually("the parent's end", || server.stats().sessions[0].connections <= 1);
    let (mut reader, mut writer) = channels(&store);
    let new = content(7, 2 * SECTOR);
    let new_locs = write_now(&mut *writer, &new, 2).unwrap();
    assert!(new_locs.iter().all(|loc| !old_locs.contains(loc)));
    assert!(read_now(&mut *reader, &old_locs, SECTOR).unwrap() == old);
    let mixed = [old_locs[4], new_locs[1], old_locs[0]];
    let expected = [&old[4 * SECTOR..], &new[SECTOR..], &old[..SECTOR]].concat();
    assert!(read_now(&mut *reader, &mixed, SECTOR).unwrap() == expected);
    drop(guard);
    // A grandchild sees both.
    let guard = store.prepare_fork().unwrap();
    guard.adopt().unwrap();
    drop((reader, writer, guard));
    let (mut reader, _) = channels(&store);
    assert!(read_now(&mut *reader, &mixed, SECTOR).unwrap() == expected);
    store.free(&old_locs);
    store.free(&new_locs);
    assert_eq!(store.usage().far_bytes, 0);
}

#[test]
fn blocks_freed_by_parent_stay_until_child_exits() {
    let server = server(64 << 20);
    let store = store(&[&server]);
    let (mut reader, mut writer) = channels(&store);
    let old = content(3, EXTENT);
    let old_locs = write_now(&mut *writer, &old, CHUNK_SECTORS).unwrap();
    let guard = store.prepare_fork().unwrap();
    store.free(&old_locs);
    let new_locs = write_now(&mut *writer, &content(7, EXTENT), CHUNK_SECTORS).unwrap();
    assert!(new_locs.iter().all(|loc| !old_locs.contains(loc)));
    assert!(
        read_now(&mut *reader, &old_locs, SECTOR).unwrap() == old,
        "the child would still find it"
    );
    drop(guard);
    assert_eq!((store.usage().far_bytes, store.usage().stored_bytes), (2 << 20, 2 << 20));
}
