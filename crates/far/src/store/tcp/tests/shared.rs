//! Connections in shared memory. The proxy carries only their TCP sockets, whose end is theirs.

use std::sync::atomic::AtomicBool;

use super::*;

/// Connections of all sessions, and of these, those in shared memory.
fn connections(server: &ServerHandle) -> (usize, usize) {
    let sessions = server.stats().sessions;
    sessions.iter().fold((0, 0), |(all, shared), session| {
        (all + session.connections, shared + session.shared_connections)
    })
}

#[test]
fn content_on_one_machine_moves_in_shared_memory() {
    let server = server(64 << 20);
    for (transport, tcp, shared) in [(TransportChoice::Auto, 0, 2), (TransportChoice::Tcp, 2, 0)] {
        let options = TcpOptions { transport, ..store_options(&[&server]) };
        let store = TcpStore::connect_with(options).unwrap();
        let (mut reader, mut writer) = channels(&store);
        assert_eq!(connections(&server), (3, shared as usize), "{transport:?}");
        let bytes = content(3, EXTENT);
        let locs = write_now(&mut *writer, &bytes, CHUNK_SECTORS).unwrap();
        assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == bytes);
        let usage = store.usage();
        assert_eq!((usage.tcp_connections, usage.shared_connections), (tcp, shared));
        drop((reader, writer, store));
        eventually("the end of the session", || server.stats().sessions.is_empty());
    }
}

#[test]
fn connection_cut_during_traffic_recovers_without_loss() {
    let server = server(128 << 20);
    let proxy = Proxy::new(server.local_addr());
    let options = TcpOptions { transport: TransportChoice::Auto, ..through(&proxy) };
    let store = TcpStore::connect_with(options).unwrap();
    let (is_over, mut cuts) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            let mut cuts = 0;
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(3 + cuts % 11));
                proxy.cut();
                cuts += 1;
            }
            cuts
        });
        for seed in 0..4 {
            let mut driver = model::Driver::new(&store, SECTOR);
            model::random_ops(seed + 1, CHUNK_SECTORS, 40).iter().for_each(|op| driver.step(op));
            driver.verify();
            driver.finish();
        }
        is_over.store(true, Ordering::Relaxed);
        cuts = cutter.join().unwrap();
    });
    let usage = store.usage();
    assert!(cuts > 5 && usage.shared_connections > 10, "{cuts} cuts, {usage:?}");
}

#[test]
fn death_of_the_server_is_noticed_at_once() {
    let server = server(64 << 20);
    let options = TcpOptions { timeout: Duration::from_millis(500), ..store_options(&[&server]) };
    let store = TcpStore::connect_with(options).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    drop(server);
    let since = Instant::now();
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

#[test]
fn death_of_the_client_is_noticed_at_once() {
    let server =
        serve(ServeOptions { lease: Duration::from_secs(3), ..options(64 << 20) }).unwrap();
    let proxy = Proxy::new(server.local_addr());
    let options = TcpOptions { transport: TransportChoice::Auto, ..through(&proxy) };
    let store = TcpStore::connect_with(options).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, EXTENT), CHUNK_SECTORS).unwrap();
    // It asks for more than fits, reads none of it, and its sockets are closed.
    for token in 0..8 {
        reader.read(Token(token), &locs, FrameBuf::leak(EXTENT));
    }
    reader.poll(&mut Vec::new());
    proxy.close();
    let since = Instant::now();
    eventually("the loss of the connections", || connections(&server).0 == 0);
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}
