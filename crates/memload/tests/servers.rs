//! The load against a real memcached, where Debian's package is installed, and against a server
//! that returns wrong answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hiroma_memload::{
    Connection, Distribution, Endpoint, LoadError, RunSpec, Store, fill, make_value, run, server,
};
use tempfile::TempDir;

const STORE: Store = Store { items: 2000, value_bytes: 512 };

fn spec(endpoint: &Endpoint) -> RunSpec {
    RunSpec {
        endpoint: endpoint.clone(),
        store: STORE,
        distribution: Distribution::Zipf { exponent: 0.99 },
        connections: 3,
        depth: 8,
        write_percent: 0,
        operations: Some(6000),
        time: None,
        seed: 1,
        may_miss: false,
        fresh: true,
    }
}

/// A private memcached on a Unix socket; killed when dropped.
struct Memcached {
    child: Child,
    endpoint: Endpoint,
    _dir: TempDir,
}

impl Memcached {
    fn start() -> Option<Memcached> {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let mut command = Command::new("memcached");
        command
            .arg("-s")
            .arg(&path)
            .args(["-u", "root", "-m", "64", "-t", "2"])
            .stdin(Stdio::null());
        let Ok(child) = command.spawn() else {
            hiroma_testkit::skip!(
                Machine,
                "memcached is not installed (sudo apt-get install memcached)"
            );
            return None;
        };
        let mut server = Memcached { child, endpoint: Endpoint::Unix(path.clone()), _dir: dir };
        let start = Instant::now();
        while UnixStream::connect(&path).is_err() {
            assert!(server.child.try_wait().unwrap().is_none(), "memcached ended");
            assert!(start.elapsed() < Duration::from_secs(60), "memcached does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn memcached_values_are_correct_read_only_and_mixed() {
    let Some(server) = Memcached::start() else { return };
    fill(&server.endpoint, STORE, &|_| ()).unwrap();
    let outcome = run(&spec(&server.endpoint), &|_| ()).unwrap();
    assert!(outcome.operations >= 6000 && outcome.writes == 0 && outcome.missing == 0);
    assert!(outcome.latency_ns_p50 > 0 && outcome.latency_ns_max >= outcome.latency_ns_p50);
    let mixed = RunSpec {
        write_percent: 30,
        distribution: Distribution::Uniform,
        ..spec(&server.endpoint)
    };
    let outcome = run(&mixed, &|_| ()).unwrap();
    assert!(outcome.reads > 0 && outcome.writes > 0);
    // The items are no longer at version 0.
    assert!(matches!(run(&spec(&server.endpoint), &|_| ()).unwrap_err(), LoadError::Wrong { .. }));
    run(&RunSpec { fresh: false, seed: 2, ..mixed }, &|_| ()).unwrap();
    let stats = Connection::open(&server.endpoint).unwrap().stats("").unwrap();
    assert!(stats.iter().any(|(name, value)| name == "curr_items" && value == "2000"));
    assert!(server::memory(server.child.id()).unwrap().resident_bytes > 1 << 20);
}

#[test]
fn changed_values_and_missing_items_are_detected() {
    let Some(server) = Memcached::start() else { return };
    fill(&server.endpoint, STORE, &|_| ()).unwrap();
    let mut other = Connection::open(&server.endpoint).unwrap();
    let mut value = vec![0; 512];
    // Stores the correct value of another item under the key of each.
    for item in 0..STORE.items {
        make_value(item + 1, 0, &mut value);
        let key = hiroma_memload::key_of(item);
        other.set(&key, &value);
        other.flush().unwrap();
        other.stored(&key).unwrap();
    }
    let error = run(&spec(&server.endpoint), &|_| ()).unwrap_err();
    assert!(matches!(error, LoadError::Wrong { .. }), "{error}");
    let fewer = Store { items: 10, ..STORE };
    fill(&server.endpoint, fewer, &|_| ()).unwrap();
    let absent = RunSpec {
        store: Store { items: 1 << 40, ..STORE },
        distribution: Distribution::Uniform,
        ..spec(&server.endpoint)
    };
    assert!(run(&absent, &|_| ()).unwrap_err().to_string().contains("no such item"));
    assert!(run(&RunSpec { may_miss: true, ..absent }, &|_| ()).unwrap().missing > 0);
}

/// A server that answers every request on a connection with `answer`.
fn lying(answer: Vec<u8>) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let answer = answer.clone();
            thread::spawn(move || {
                let mut requests = BufReader::new(socket.try_clone().unwrap());
                let mut line = String::new();
                while requests.read_line(&mut line).is_ok_and(|count| count > 0) {
                    if socket.write_all(&answer).is_err() {
                        return;
                    }
                    line.clear();
                }
                let _ = requests.read(&mut [0]);
            });
        }
    });
    Endpoint::Tcp(address)
}

#[test]
fn lying_server_is_detected() {
    let one = |answer: Vec<u8>| {
        let one = Store { items: 1, value_bytes: 512 };
        let spec = RunSpec {
            store: one,
            connections: 1,
            depth: 1,
            operations: Some(5),
            ..spec(&lying(answer))
        };
        run(&spec, &|_| ()).unwrap_err()
    };
    let key = hiroma_memload::key_of(0);
    let mut value = vec![0; 512];
    make_value(0, 0, &mut value);
    let framed = |value: &[u8]| {
        [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat()
    };
    value[300] ^= 4;
    assert!(matches!(one(framed(&value)), LoadError::Wrong { .. }));
    value[300] ^= 4;
    assert!(matches!(one(framed(&value[..500])), LoadError::Wrong { .. }));
    // A version that was never written.
    make_value(0, 9, &mut value);
    assert!(matches!(one(framed(&value)), LoadError::Wrong { .. }));
    for answer in [
        "ERROR\r\n",
        "SERVER_ERROR out of memory\r\n",
        "VALUE other 0 5\r\nhello\r\nEND\r\n",
        "VALUE\r\n",
        "END\r\n",
    ] {
        assert!(matches!(one(answer.into()), LoadError::Answer { .. }), "{answer}");
    }
}

#[test]
fn unreachable_server_and_invalid_specs_are_refused() {
    let nobody = Endpoint::Unix("/nonexistent/socket".into());
    assert!(matches!(fill(&nobody, STORE, &|_| ()), Err(LoadError::Connect { .. })));
    let base = spec(&nobody);
    for wrong in [
        RunSpec { connections: 0, ..base.clone() },
        RunSpec { depth: 0, ..base.clone() },
        RunSpec { depth: usize::MAX, ..base.clone() },
        RunSpec { write_percent: 101, ..base.clone() },
        RunSpec { operations: None, ..base.clone() },
        RunSpec { write_percent: 50, store: Store { items: 2, ..STORE }, ..base.clone() },
        RunSpec { store: Store { items: 0, ..STORE }, ..base.clone() },
        RunSpec { store: Store { value_bytes: 3, ..STORE }, ..base.clone() },
        RunSpec { store: Store { value_bytes: usize::MAX, ..STORE }, ..base.clone() },
    ] {
        assert!(matches!(run(&wrong, &|_| ()), Err(LoadError::Spec(_))), "{wrong:?}");
    }
}

#[test]
fn deep_pipelines_do_not_deadlock() {
    let Some(server) = Memcached::start() else { return };
    // More than the socket buffers can contain, in both directions.
    let store = Store { items: 40, value_bytes: 200_000 };
    fill(&server.endpoint, store, &|_| ()).unwrap();
    for depth in [1, 2, 3, 64] {
        let spec = RunSpec {
            store,
            connections: 2,
            depth,
            write_percent: 50,
            operations: Some(400),
            ..spec(&server.endpoint)
        };
        let spec = RunSpec { seed: depth as u64, fresh: false, ..spec };
        let answered = std::sync::atomic::AtomicU64::new(0);
        let count = |count| {
            answered.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        };
        let outcome = run(&spec, &count).unwrap();
        assert!(
            outcome.operations >= 400 && outcome.writes > 0 && outcome.reads > 0,
            "{depth}: {outcome:?}"
        );
        assert!(outcome.operations < 400 + 2 * depth as u64, "{depth}: {outcome:?}");
        assert_eq!(answered.into_inner(), outcome.operations, "{depth}");
    }
}
