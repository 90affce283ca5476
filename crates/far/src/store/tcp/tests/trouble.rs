//! Connections that break, and servers that die.

use super::proxy::Proxy;
use super::*;

/// Bytes of a greeting, to the server and to the client.
const GREETING: (u64, u64) = (68 + 64 + 56, 68 + 64 + 120);

#[test]
fn connection_cut_during_answers_recovers_without_loss() {
    let server = server(128 << 20);
    let mut cuts = 0;
    for sectors_max in [1, 3, 10, 40] {
        let proxy = Proxy::new(server.local_addr());
        let store = TcpStore::connect_with(through(&proxy)).unwrap();
        let mut driver = model::Driver::new(&store, SECTOR);
        // One answer of the largest kind passes, and a part of another one.
        proxy.set_budgets(u64::MAX, GREETING.1 + 32 + (sectors_max * SECTOR) as u64 * 3 / 2);
        model::random_ops(sectors_max as u64, sectors_max, 50)
            .iter()
            .for_each(|op| driver.step(op));
        driver.verify();
        cuts += proxy.cuts();
        proxy.set_budgets(u64::MAX, u64::MAX);
        driver.finish();
    }
    assert!(cuts > 10, "the network was cut {cuts} times only");
}

#[test]
fn connection_cut_during_requests_recovers_without_loss() {
    let server = server(128 << 20);
    let mut cuts = 0;
    for sectors_max in [1, 3, 10, 40] {
        let proxy = Proxy::new(server.local_addr());
        let store = TcpStore::connect_with(through(&proxy)).unwrap();
        let mut driver = model::Driver::new(&store, SECTOR);
        proxy.set_budgets(GREETING.0 + 32 + (sectors_max * SECTOR) as u64 * 3 / 2, u64::MAX);
        for op in model::random_ops(sectors_max as u64, sectors_max, 50) {
            driver.step(&op);
            // If the network never carries two requests, two must not be in flight.
            driver.settle();
        }
        cuts += proxy.cuts();
        proxy.set_budgets(u64::MAX, u64::MAX);
        driver.finish();
    }
    assert!(cuts > 10, "the network was cut {cuts} times only");
}

#[test]
fn pending_requests_are_resent_after_network_outage() {
    let server = server(64 << 20);
    let proxy = Proxy::new(server.local_addr());
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let options = TcpOptions {
        log: Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned())),
        ..through(&proxy)
    };
    let store = TcpStore::connect_with(options).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let bytes = content(3, EXTENT);
    let locs = write_now(&mut *writer, &bytes, CHUNK_SECTORS).unwrap();
    proxy.close();
    let (mut out, mut more) = (Vec::new(), vec![Loc(0); 3]);
    reader.read(Token(1), &locs, FrameBuf::leak(EXTENT));
    writer.write(Token(2), buf_with(&bytes[..3 * SECTOR]), &mut more).unwrap();
    eventually("word of the loss", || {
        reader.poll(&mut out);
        writer.poll(&mut out);
        !lines.lock().unwrap().is_empty()
    });
    assert!(out.is_empty() && reader.in_flight() == 1 && writer.in_flight() == 1);
    proxy.reopen();
    let done = wait(&mut *reader).pop().unwrap();
    assert!(done.result.is_ok() && done.buf.bytes() == bytes);
    assert!(wait(&mut *writer).pop().unwrap().result.is_ok());
    assert!(read_now(&mut *reader, &more, SECTOR).unwrap() == bytes[..3 * SECTOR]);
    let lines = lines.lock().unwrap();
    assert!(
        lines[0].contains("lost the connection to tcp://127.0.0.1") && lines[0].contains("60s"),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.contains("is back")), "{lines:?}");
}

#[test]
fn absent_server_is_given_up_and_returns_buffers() {
    let server = server(64 << 20);
    let proxy = Proxy::new(server.local_addr());
    let store = TcpStore::connect_with(TcpOptions {
        timeout: Duration::from_millis(300),
        ..through(&proxy)
    })
    .unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    proxy.close();
    reader.read(Token(1), &locs, FrameBuf::leak(SECTOR));
    let done = wait(&mut *reader).pop().unwrap();
    assert_eq!((done.token, done.buf.len(), reader.in_flight()), (Token(1), SECTOR, 0));
    let error = done.result.unwrap_err();
    assert!(
        matches!(error, StoreError::Unreachable { .. })
            && error.to_string().contains("hiroma serve"),
        "{error}"
    );
    // So do all later requests.
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
}

#[test]
fn unresponsive_server_times_out() {
    let server = server(64 << 20);
    let proxy = Proxy::new(server.local_addr());
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let log: LogLine = Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned()));
    let store = TcpStore::connect_with(TcpOptions {
        timeout: Duration::from_millis(800),
        log,
        ..through(&proxy)
    })
    .unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    proxy.hold();
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(lines.lock().unwrap()[0].contains("does not answer"));
}

type Heard<T> = Arc<Mutex<Vec<T>>>;

/// Options that collect the messages to the user and the reports of losses.
fn listening(options: TcpOptions) -> (TcpOptions, Heard<String>, Heard<StoreError>) {
    let (lines, losses) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (log, lost) = (Arc::clone(&lines), Arc::clone(&losses));
    let log: LogLine = Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned()));
    let lost: Lost = Arc::new(move |error: &StoreError| lost.lock().unwrap().push(error.clone()));
    (TcpOptions { log, lost, ..options }, lines, losses)
}

#[test]
fn idle_connection_reconnects_within_its_lease() {
    let server =
        serve(ServeOptions { lease: Duration::from_secs(8), ..options(64 << 20) }).unwrap();
    let proxy = Proxy::new(server.local_addr());
    let (options, lines, losses) = listening(through(&proxy));
    let store = TcpStore::connect_with(options).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    let connections = || server.stats().sessions[0].connections;
    assert_eq!(connections(), 3);
    proxy.cut();
    // Without any request, the connection to the server is restored.
    eventually("word of the loss", || {
        lines.lock().unwrap().iter().any(|line| line.contains("lost the connection"))
    });
    eventually("word of the return", || {
        lines.lock().unwrap().iter().any(|line| line.contains("is back"))
    });
    eventually("one connection of three", || connections() == 1);
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == content(3, SECTOR));
    assert!(losses.lock().unwrap().is_empty());
}

#[test]
fn idle_server_death_is_detected_as_loss() {
    for silently in [false, true] {
        let server = server(64 << 20);
        let proxy = Proxy::new(server.local_addr());
        let (options, lines, losses) =
            listening(TcpOptions { timeout: Duration::from_secs(1), ..through(&proxy) });
        let store = TcpStore::connect_with(options).unwrap();
        let (_reader, mut writer) = channels(&store);
        write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
        if silently {
            proxy.hold()
        } else {
            proxy.close()
        }
        eventually("word of the loss", || !losses.lock().unwrap().is_empty());
        let (lines, losses) = (lines.lock().unwrap(), losses.lock().unwrap());
        assert!(matches!(&losses[..], [StoreError::Unreachable { .. }]), "{losses:?}");
        assert!(
            lines[0].contains(if silently { "does not answer" } else { "lost the connection" }),
            "{lines:?}"
        );
    }
}

#[test]
fn stopped_program_time_does_not_count_as_timeout() {
    let server = server(64 << 20);
    let proxy = Proxy::new(server.local_addr());
    let store =
        TcpStore::connect_with(TcpOptions { timeout: Duration::from_secs(1), ..through(&proxy) })
            .unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    proxy.hold();
    reader.read(Token(1), &locs, FrameBuf::leak(SECTOR));
    std::thread::sleep(Duration::from_millis(2500));
    let mut out = Vec::new();
    reader.poll(&mut out);
    assert!(out.is_empty() && reader.in_flight() == 1, "given up without having been looked at");
    let error = wait(&mut *reader).pop().unwrap().result.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
}

#[test]
fn zero_timeout_accepts_a_responsive_server() {
    let server = server(64 << 20);
    let store =
        TcpStore::connect_with(TcpOptions { timeout: Duration::ZERO, ..store_options(&[&server]) })
            .unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == content(3, SECTOR));
}

#[test]
fn dead_server_without_our_data_is_no_loss() {
    let server = server(64 << 20);
    let proxy = Proxy::new(server.local_addr());
    let (options, lines, losses) =
        listening(TcpOptions { timeout: Duration::from_millis(500), ..through(&proxy) });
    let _store = TcpStore::connect_with(options).unwrap();
    proxy.close();
    eventually("word of it", || {
        lines.lock().unwrap().iter().any(|line| line.contains("hiroma serve"))
    });
    assert!(losses.lock().unwrap().is_empty());
}

#[test]
fn idle_server_restart_is_detected_as_loss() {
    let first = server(64 << 20);
    let listen = first.local_addr().to_string();
    let (options, _, losses) = listening(store_options(&[&first]));
    let store = TcpStore::connect_with(options).unwrap();
    let (_reader, mut writer) = channels(&store);
    write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    drop(first);
    let _second = serve(ServeOptions { listen, ..super::tests::options(64 << 20) }).unwrap();
    eventually("word of the loss", || !losses.lock().unwrap().is_empty());
    assert!(losses.lock().unwrap()[0].to_string().contains("restarted"));
}

#[test]
fn server_monitoring_pauses_during_fork() {
    let server = server(64 << 20);
    let proxy = Proxy::new(server.local_addr());
    let (options, lines, _) = listening(through(&proxy));
    let store = TcpStore::connect_with(options).unwrap();
    let guard = store.prepare_fork().unwrap();
    proxy.cut();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(lines.lock().unwrap().is_empty());
    store.usage();
    eventually("word of the return", || {
        lines.lock().unwrap().iter().any(|line| line.contains("is back"))
    });
    // The same for the child.
    guard.adopt().unwrap();
    lines.lock().unwrap().clear();
    proxy.cut();
    eventually("word of the return in the child", || {
        lines.lock().unwrap().iter().any(|line| line.contains("is back"))
    });
}

#[test]
fn restarted_server_is_reported_at_once_as_loss() {
    let first = server(64 << 20);
    let listen = first.local_addr().to_string();
    let store = TcpStore::connect_with(TcpOptions {
        timeout: Duration::from_secs(600),
        ..store_options(&[&first])
    })
    .unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(3, SECTOR), 1).unwrap();
    drop(first);
    let _second = serve(ServeOptions { listen, ..options(64 << 20) }).unwrap();
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err();
    assert!(error.to_string().contains("restarted"), "{error}");
    let mut more = [Loc(0)];
    let error = match writer.write(Token(1), buf_with(&content(3, SECTOR)), &mut more) {
        Ok(()) => wait(&mut *writer).pop().unwrap().result.unwrap_err(),
        Err((_, error)) => error,
    };
    assert!(error.to_string().contains("restarted"), "{error}");
}
