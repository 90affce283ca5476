//! Tests with real servers on loopback.

mod tls;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hiroma_units::{EXTENT, Loc};
use proptest::prelude::*;
use redis::{Commands, Connection};

use super::*;
use crate::store::Token;
use crate::store::model::{self, content, read_now, write_now};

const SECTOR: usize = 8192;
const CHUNK_SECTORS: usize = EXTENT / SECTOR;

/// A server of our own that ends with the test.
struct Server {
    process: Child,
    port: u16,
    password: Option<String>,
}

impl Server {
    fn start(options: &[&str]) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Server::at(port, options)
    }

    fn at(port: u16, options: &[&str]) -> Server {
        let fixed = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string()])
            .args(fixed)
            .args(options)
            .current_dir(std::env::temp_dir())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server: sudo apt-get install redis-server (make deps)");
        let at = options.iter().position(|&option| option == "--requirepass");
        let password = at.map(|at| options[at + 1].to_owned());
        let server = Server { process, port, password };
        eventually("the server's start", || server.try_connect().is_some());
        server
    }

    fn url(&self) -> String {
        let login = self.password.as_ref().map(|word| format!(":{word}@")).unwrap_or_default();
        format!("redis://{login}127.0.0.1:{}", self.port)
    }

    fn try_connect(&self) -> Option<Connection> {
        let mut connection = redis::Client::open(self.url()).ok()?.get_connection().ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok()?;
        Some(connection)
    }

    fn ask(&self) -> Connection {
        self.try_connect().expect("a server that runs")
    }

    fn keys(&self) -> usize {
        redis::cmd("DBSIZE").query(&mut self.ask()).unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn store(&self, options: &str) -> RedisStore {
        self.try_store(options, Duration::from_secs(30)).unwrap()
    }

    fn try_store(&self, options: &str, timeout: Duration) -> Result<RedisStore, StoreError> {
        connect(&format!("{}{options}", self.url()), timeout, Arc::new(|_| {}))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connect(url: &str, timeout: Duration, lost: Lost) -> Result<RedisStore, StoreError> {
    RedisStore::connect(RedisOptions {
        address: url.parse().unwrap(),
        sector_bytes: SECTOR,
        timeout,
        resolved: Vec::new(),
        log: Arc::new(|_| {}),
        lost,
    })
}

type Said = Arc<Mutex<Vec<String>>>;

/// A store, and what it tells the user.
fn heard(server: &Server, timeout: Duration) -> (RedisStore, Said) {
    let said = Said::default();
    let hears = said.clone();
    let store = RedisStore::connect(RedisOptions {
        address: server.url().parse().unwrap(),
        sector_bytes: SECTOR,
        timeout,
        resolved: Vec::new(),
        log: Arc::new(move |line| hears.lock().unwrap().push(line.to_owned())),
        lost: Arc::new(|_| {}),
    });
    (store.unwrap(), said)
}

fn config_set(connection: &mut Connection, name: &str, value: &str) {
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(connection).unwrap();
}

fn channels(store: &RedisStore) -> (Box<dyn Channel>, Box<dyn Channel>) {
    (store.open(Purpose::Read).unwrap(), store.open(Purpose::Write).unwrap())
}

fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < deadline, "{what} never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn refusal(result: Result<RedisStore, StoreError>) -> String {
    result.err().expect("a refusal").to_string()
}

#[test]
fn writes_round_trip() {
    let server = Server::start(&[]);
    let store = server.store("");
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
}

#[test]
fn several_threads_share_a_store() {
    let server = Server::start(&[]);
    let store = server.store("");
    model::check_concurrently(&store, SECTOR, 4, 60);
}

#[test]
fn every_sector_size_is_supported() {
    let server = Server::start(&[]);
    for sector_bytes in (12..=21).map(|shift| 1usize << shift) {
        let store = RedisStore::connect(RedisOptions {
            address: server.url().parse().unwrap(),
            sector_bytes,
            timeout: Duration::from_secs(30),
            resolved: Vec::new(),
            log: Arc::new(|_| {}),
            lost: Arc::new(|_| {}),
        })
        .unwrap();
        let (mut reader, mut writer) = channels(&store);
        let bytes = content(3, EXTENT + sector_bytes);
        let locs = write_now(&mut *writer, &bytes, EXTENT / sector_bytes + 1).unwrap();
        assert!(read_now(&mut *reader, &locs, sector_bytes).unwrap() == bytes, "{sector_bytes}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn store_matches_a_naive_map(ops in model::ops(CHUNK_SECTORS + 20, 60)) {
        let server = Server::start(&[]);
        let store = server.store("?size=16M");
        model::check(&store, SECTOR, &ops);
        drop(store);
        prop_assert_eq!(server.keys(), 0);
    }
}

#[test]
fn nothing_is_left_at_the_end() {
    let server = Server::start(&[]);
    let store = server.store("/1");
    let (_reader, mut writer) = channels(&store);
    write_now(&mut *writer, &content(1, 4 * EXTENT), 4 * CHUNK_SECTORS).unwrap();
    let keys = |server: &Server| {
        let mut connection = server.ask();
        redis::cmd("SELECT").arg(1).exec(&mut connection).unwrap();
        redis::cmd("DBSIZE").query::<usize>(&mut connection).unwrap()
    };
    assert!(keys(&server) >= 8);
    store.leave();
    assert_eq!(keys(&server), 0);
}

#[test]
fn every_key_expires_and_is_renewed() {
    let server = Server::start(&[]);
    let store = server.store("?ttl=1s");
    let (mut reader, mut writer) = channels(&store);
    let bytes = content(2, 2 * EXTENT);
    let locs = write_now(&mut *writer, &bytes, 2 * CHUNK_SECTORS).unwrap();
    let mut connection = server.ask();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let keys: Vec<String> = connection.keys("*").unwrap();
        assert!(keys.len() >= 4);
        for key in keys {
            let left: i64 = connection.pttl(&key).unwrap();
            assert!((1..=1000).contains(&left), "{key} expires in {left} ms");
            assert!(key.starts_with("hiroma:"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == bytes);
    // What a client does that was killed: nothing more.
    store.shared.minding.stand_still();
    eventually("the expiry of all keys", || server.keys() == 0);
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err().to_string();
    assert!(error.contains("keys of this program are gone"), "{error}");
}

#[test]
fn missing_key_is_an_error_and_never_zeros() {
    let server = Server::start(&[]);
    let said = Arc::new(Mutex::new(String::new()));
    let heard = said.clone();
    let lost: Lost = Arc::new(move |error| *heard.lock().unwrap() = error.to_string());
    let store = connect(&format!("{}?ttl=2s", server.url()), Duration::from_secs(9), lost).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(2, SECTOR), 1).unwrap();
    redis::cmd("FLUSHALL").exec(&mut server.ask()).unwrap();
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err().to_string();
    assert!(error.contains("keys of this program are gone"), "{error}");
    writer.write(Token(0), model::buf_with(&content(3, SECTOR)), &mut [Loc(0)]).unwrap();
    let error = model::wait(&mut *writer).pop().unwrap().result.unwrap_err().to_string();
    assert!(error.contains("keys of this program are gone"), "{error}");
    eventually("the report that nobody asked for", || !said.lock().unwrap().is_empty());
    eventually("the end of what was made again", || server.keys() == 0);
}

#[test]
fn full_server_refuses_writes_and_what_is_there_can_be_overwritten() {
    let server = Server::start(&["--maxmemory", "24mb"]);
    let store = server.store("");
    let (mut reader, mut writer) = channels(&store);
    let mut held: Vec<(Vec<Loc>, Vec<u8>)> = Vec::new();
    for seed in 0.. {
        let bytes = content(seed * 4 + 3, EXTENT);
        match write_now(&mut *writer, &bytes, CHUNK_SECTORS) {
            Some(locs) => held.push((locs, bytes)),
            None => break,
        }
        assert!(seed < 20, "24 MiB have no room for so much");
    }
    assert!(held.len() >= 6, "only {} chunks", held.len());
    // Others take what is left.
    let mut connection = server.ask();
    let mut number = 0;
    while connection.set::<_, _, ()>(format!("other:{number}"), vec![0u8; 20_000]).is_ok() {
        number += 1;
    }
    let (locs, _) = held.pop().unwrap();
    store.free(&locs);
    for seed in 0..8 {
        let bytes = content(seed * 4 + 3, 16 * SECTOR);
        let locs = write_now(&mut *writer, &bytes, 16).expect("room in a chunk that exists");
        held.push((locs, bytes));
    }
    for (locs, bytes) in &held {
        assert!(read_now(&mut *reader, locs, SECTOR).unwrap() == *bytes);
    }
    let usage = store.usage();
    assert!(usage.stored_bytes <= usage.capacity_bytes, "{usage:?}");
}

#[test]
fn useless_servers_are_refused_in_words() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{nobody}");
    let said = refusal(connect(&url, Duration::from_secs(1), Arc::new(|_| {})));
    assert!(said.contains("start redis-server there"), "{said}");
    let said =
        refusal(connect("redis://no.such.host.invalid", Duration::from_secs(1), Arc::new(|_| {})));
    assert!(said.contains("cannot find the server no.such.host.invalid:6379"), "{said}");

    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let said = refusal(server.try_store("", Duration::from_secs(5)));
    assert!(said.contains("allkeys-lru") && said.contains("config set"), "{said}");
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory-policy")
        .arg("noeviction")
        .exec(&mut server.ask())
        .unwrap();
    server.store("");
    let said = refusal(server.try_store("/99", Duration::from_secs(5)));
    assert!(said.contains("no database of this number"), "{said}");
    let to = ["--replicaof", "127.0.0.1", &server.port.to_string()].map(str::to_owned);
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let replica = Server::start(&[&to[..1], &[&*format!("{} {}", to[1], to[2])]].concat());
    let said = refusal(replica.try_store("", Duration::from_secs(5)));
    assert!(said.contains("replica") || said.contains("loading"), "{said}");

    let dir = tempfile::tempdir().unwrap();
    let nodes = dir.path().join("nodes.conf");
    let cluster =
        Server::start(&["--cluster-enabled", "yes", "--cluster-config-file", shown(&nodes)]);
    let said = refusal(cluster.try_store("", Duration::from_secs(5)));
    assert!(said.contains("Redis Cluster"), "{said}");
}

#[test]
fn change_of_the_policy_is_told_once() {
    let server = Server::start(&[]);
    let (_store, said) = heard(&server, Duration::from_secs(5));
    let count = |what: &str| {
        said.lock().unwrap().iter().filter(|line: &&String| line.contains(what)).count()
    };
    config_set(&mut server.ask(), "maxmemory-policy", "allkeys-lru");
    eventually("the line", || count("changed to allkeys-lru") > 0);
    // The keeper asks twice in this time.
    std::thread::sleep(Duration::from_secs(7));
    config_set(&mut server.ask(), "maxmemory-policy", "volatile-ttl");
    eventually("the next line", || count("changed to volatile-ttl") > 0);
    assert_eq!(count("changed to allkeys-lru"), 1);
    config_set(&mut server.ask(), "maxmemory-policy", "noeviction");
    eventually("the last line", || count("is noeviction again") == 1);
    assert_eq!(said.lock().unwrap().len(), 3);
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn passwords_are_checked_and_not_shown() {
    let server = Server::start(&["--requirepass", "open-sesame"]);
    let store = server.store("");
    let (mut reader, mut writer) = channels(&store);
    let bytes = content(2, SECTOR);
    let locs = write_now(&mut *writer, &bytes, 1).unwrap();
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == bytes);
    assert!(!store.name().contains("sesame"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    fs::write(&file, "open-sesame\n").unwrap();
    let url = format!("redis://127.0.0.1:{}?password-file={}", server.port, file.display());
    connect(&url, Duration::from_secs(5), Arc::new(|_| {})).unwrap();
    for (login, words) in [("", "requires a password"), (":wrong-sesame@", "password is wrong")] {
        let url = format!("redis://{login}127.0.0.1:{}", server.port);
        let said = refusal(connect(&url, Duration::from_secs(5), Arc::new(|_| {})));
        assert!(said.contains(words) && !said.contains("wrong-sesame"), "{said}");
    }
}

#[test]
fn hanging_server_is_given_up_after_the_timeout() {
    let server = Server::start(&[]);
    let store = server.try_store("", Duration::from_secs(1)).unwrap();
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(2, SECTOR), 1).unwrap();
    server.signal("-STOP");
    let start = Instant::now();
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err().to_string();
    let waited = start.elapsed();
    server.signal("-CONT");
    assert!((Duration::from_millis(900)..Duration::from_secs(4)).contains(&waited), "{waited:?}");
    assert!(error.contains("no answer for 1s"), "{error}");
}

#[test]
fn server_that_puts_us_off_is_asked_again() {
    let server = Server::start(&[]);
    let (store, said) = heard(&server, Duration::from_secs(60));
    let (mut reader, mut writer) = channels(&store);
    let old = content(2, 8 * SECTOR);
    let old_locs = write_now(&mut *writer, &old, 8).unwrap();
    let mut connection = server.ask();
    config_set(&mut connection, "min-replicas-to-write", "1");
    let bytes = content(3, 8 * SECTOR);
    let mut locs = [Loc(0); 8];
    writer.write(Token(1), model::buf_with(&bytes), &mut locs).unwrap();
    eventually("the news", || {
        assert!(read_now(&mut *reader, &old_locs, SECTOR).unwrap() == old, "reads are served");
        said.lock().unwrap().iter().any(|line| line.contains("NOREPLICAS"))
    });
    config_set(&mut connection, "min-replicas-to-write", "0");
    model::wait(&mut *writer).pop().unwrap().result.unwrap();
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == bytes);
    let said = said.lock().unwrap().clone();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[1].ends_with("answers again"), "{said:?}");
}

#[test]
fn server_that_runs_a_script_is_asked_again() {
    let server = Server::start(&["--lua-time-limit", "20"]);
    let (store, said) = heard(&server, Duration::from_secs(60));
    let (mut reader, mut writer) = channels(&store);
    let bytes = content(2, 8 * SECTOR);
    let locs = write_now(&mut *writer, &bytes, 8).unwrap();
    // What comes back meanwhile is put off too, when it logs in.
    redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(&mut server.ask()).unwrap();
    let (mut killer, mut runner) = (server.ask(), server.ask());
    let script = "while true do end";
    let running = std::thread::spawn(move || {
        redis::cmd("EVAL").arg(script).arg(0).exec(&mut runner).unwrap_err()
    });
    eventually("the script", || redis::cmd("PING").exec(&mut killer).is_err());
    reader.read(Token(1), &locs, model::buf_with(&vec![0; 8 * SECTOR]));
    eventually("the news", || said.lock().unwrap().iter().any(|line| line.contains("BUSY")));
    redis::cmd("SCRIPT").arg("KILL").exec(&mut killer).unwrap();
    running.join().unwrap();
    let done = model::wait(&mut *reader).pop().unwrap();
    done.result.unwrap();
    assert!(done.buf.bytes() == bytes);
    assert_eq!(said.lock().unwrap().iter().filter(|line| line.contains("BUSY")).count(), 1);
}

#[test]
fn error_that_does_not_pass_is_named_after_the_timeout() {
    let server = Server::start(&[]);
    let store = server.try_store("", Duration::from_secs(1)).unwrap();
    let (_reader, mut writer) = channels(&store);
    write_now(&mut *writer, &content(2, SECTOR), 1).unwrap();
    config_set(&mut server.ask(), "min-replicas-to-write", "1");
    let start = Instant::now();
    writer.write(Token(0), model::buf_with(&content(3, SECTOR)), &mut [Loc(0)]).unwrap();
    let error = model::wait(&mut *writer).pop().unwrap().result.unwrap_err().to_string();
    assert!(error.contains("NOREPLICAS") && error.contains("for 1s"), "{error}");
    assert!((700..4000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    config_set(&mut server.ask(), "min-replicas-to-write", "0");
}

#[test]
fn old_versions_are_refused_in_words() {
    let server = Server::start(&[]);
    let store = server.store("");
    let facts = |version: &str| {
        let text =
            format!("redis_version:{version}\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n");
        Facts::of(Value::BulkString(text.into_bytes())).unwrap()
    };
    for version in ["5.0.14", "6.2.6", "7.0.15", "unstable"] {
        store.shared.check(&facts(version)).unwrap();
    }
    let said = store.shared.check(&facts("4.0.9")).unwrap_err().to_string();
    assert!(said.contains("it is Redis 4.0.9, and 5.0 or later"), "{said}");
}

#[test]
fn broken_connections_are_restored() {
    let server = Server::start(&[]);
    let store = server.store("");
    let (mut reader, mut writer) = channels(&store);
    for seed in 0..20 {
        let bytes = content(seed * 4 + 3, 8 * SECTOR);
        let locs = write_now(&mut *writer, &bytes, 8).unwrap();
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(&mut server.ask()).unwrap();
        assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == bytes);
    }
}

#[test]
fn restarted_server_is_recognized() {
    let mut server = Server::start(&[]);
    let store = server.store("");
    let (mut reader, mut writer) = channels(&store);
    let locs = write_now(&mut *writer, &content(2, SECTOR), 1).unwrap();
    let port = server.port;
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let _second = Server::at(port, &[]);
    let error = read_now(&mut *reader, &locs, SECTOR).unwrap_err().to_string();
    assert!(error.contains("restarted"), "{error}");
}

#[test]
fn what_a_child_reads_stays_until_its_guard_is_dropped() {
    let server = Server::start(&[]);
    let store = server.store("");
    let (mut reader, mut writer) = channels(&store);
    let old = content(3, EXTENT);
    let locs = write_now(&mut *writer, &old, CHUNK_SECTORS).unwrap();
    let guard = store.prepare_fork().unwrap();
    let child = store.shared.books().pieces(&locs);
    store.free(&locs);
    for seed in 0..40 {
        let bytes = content(seed * 4 + 7, EXTENT);
        let locs = write_now(&mut *writer, &bytes, CHUNK_SECTORS).unwrap();
        assert!(
            store
                .shared
                .books()
                .pieces(&locs)
                .iter()
                .all(|new| child.iter().all(|old| old.home != new.home))
        );
        store.free(&locs);
    }
    let mut connection = server.ask();
    let mut bytes: Vec<u8> = Vec::new();
    for piece in &child {
        let key = store.shared.books().key(piece.home, piece.part);
        let string: Vec<u8> = connection.get(key).unwrap();
        bytes.extend(&string[..string.len() - 1]);
    }
    assert!(bytes == old, "the child reads what the parent had");
    drop(guard);
    let again = write_now(&mut *writer, &old, CHUNK_SECTORS).unwrap();
    assert!(read_now(&mut *reader, &again, SECTOR).unwrap() == old);
}

#[test]
fn adopted_store_reads_the_old_and_writes_under_another_prefix() {
    let server = Server::start(&[]);
    let store = server.store("");
    let (_, mut writer) = channels(&store);
    let old = content(3, EXTENT);
    let locs = write_now(&mut *writer, &old, CHUNK_SECTORS).unwrap();
    let guard = store.prepare_fork().unwrap();
    guard.adopt().unwrap();
    let (mut reader, mut writer) = channels(&store);
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == old);
    let new = content(7, EXTENT);
    let new_locs = write_now(&mut *writer, &new, CHUNK_SECTORS).unwrap();
    assert_ne!(locs, new_locs);
    assert!(read_now(&mut *reader, &new_locs, SECTOR).unwrap() == new);
    assert!(read_now(&mut *reader, &locs, SECTOR).unwrap() == old);
    let homes: Vec<u16> = store
        .shared
        .books()
        .pieces(&[locs[0], new_locs[0]])
        .iter()
        .map(|piece| piece.home.prefix)
        .collect();
    assert_eq!(homes, [0, 1]);
    store.free(&locs);
    store.leave();
    assert!(server.keys() >= 2, "the parent's keys are the parent's");
}
