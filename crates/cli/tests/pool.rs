//! Pools of real members on this machine: `hiroma serve --join`, `hiroma pool`, `hiroma run --pool`.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::hiroma;
use common::member::{Member, serve};

/// What `hiroma pool --json` prints, asked of this member.
fn look(address: &str, more: &[&str]) -> serde_json::Value {
    let out = hiroma(["pool", "--json", "--pool", address].iter().chain(more)).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn count(pool: &serde_json::Value, health: &str) -> usize {
    let members = pool["members"].as_array().unwrap();
    members.iter().filter(|m| m["health"] == health && m["sequence"].as_u64() > Some(0)).count()
}

/// The health of the member at this address.
fn health(pool: &serde_json::Value, address: &str) -> String {
    let members = pool["members"].as_array().unwrap();
    let member = members.iter().find(|m| m["address"] == address);
    member.and_then(|m| m["health"].as_str()).unwrap_or("unknown").to_owned()
}

/// How long anything may take: it ends a test that would hang. Members that get no processor believe
/// each other dead for a while, so nothing shorter is sure.
const MOST: Duration = Duration::from_secs(120);

fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < MOST, "{what}: not within {MOST:?}");
        sleep(Duration::from_millis(100));
    }
    start.elapsed()
}

/// Why a member does not start.
fn refused(args: &[&str]) -> String {
    let out = serve("64M", args).wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn twenty_members_find_each_other_and_notice_a_death_and_a_restart() {
    let mut members = vec![Member::start("64M", "127.0.0.1:0", &[])];
    for number in 1..20 {
        // Each joins through the one before it: any member is a way in.
        let before = members[number - 1].address.clone();
        let name = format!("m{number}");
        members.push(Member::start("64M", "127.0.0.1:0", &["--join", &before, "--name", &name]));
    }
    let addresses: Vec<String> = members.iter().map(|m| m.address.clone()).collect();
    let found = until("all know all", || {
        [0, 7, 19].iter().all(|n| count(&look(&addresses[*n], &[]), "alive") == 20)
    });
    let boot = |at: &str| {
        let pool = look(at, &[]);
        let members = pool["members"].as_array().unwrap();
        let member = members.iter().find(|m| m["address"] == addresses[5].as_str()).unwrap();
        (member["boot"].as_u64(), member["health"].as_str() == Some("alive"))
    };
    let before = boot(&addresses[0]).0;
    drop(members.remove(5));
    let noticed = until("the death", || {
        [0, 19].iter().all(|n| health(&look(&addresses[*n], &[]), &addresses[5]) == "dead")
    });
    println!("20 members: all known {found:?} after the last start, a death after {noticed:?}");
    members.push(Member::start("64M", &addresses[5], &["--join", &addresses[2], "--name", "m5"]));
    until("the restart", || {
        let (after, alive) = boot(&addresses[0]);
        alive && after != before && after.is_some()
    });
}

#[test]
fn name_key_and_address_that_do_not_fit_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let key = |name: &str, content: &str| {
        fs::write(dir.path().join(name), content).unwrap();
        dir.path().join(name).display().to_string()
    };
    let (right, wrong) = (key("right", "0123456789abcdef"), key("wrong", "fedcba9876543210"));
    let first = Member::start("64M", "127.0.0.1:0", &["--name", "ann", "--key-file", &right]);
    let join = ["--listen", "127.0.0.1:0", "--join", &first.address];
    let taken = refused(&[&join[..], &["--key-file", &right, "--name", "ann"]].concat());
    assert!(taken.contains(&first.address) && taken.contains("--name"), "{taken}");
    let stranger = refused(&[&join[..], &["--key-file", &wrong]].concat());
    assert!(stranger.contains("key is not the server's"), "{stranger}");
    assert!(refused(&join).contains("asks for a key"));
    assert!(refused(&["--listen", "127.0.0.1:0", "--label", "rack"]).contains("KEY=VALUE"));
    let everywhere = ["--listen", "0.0.0.0:0", "--key-file", &right, "--join", &first.address];
    assert!(refused(&everywhere).contains("--advertise"));
    let out = hiroma(["pool", "--pool", &first.address]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("asks for a key"));
    assert_eq!(count(&look(&first.address, &["--key-file", &right]), "alive"), 1);
}

#[test]
fn garbage_datagrams_do_no_harm_and_are_told_once() {
    let first = Member::start("64M", "127.0.0.1:0", &[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in 0..500 {
        socket.send_to(&vec![len as u8; len], &first.address).unwrap();
    }
    let second = Member::start("64M", "127.0.0.1:0", &["--join", &first.address]);
    until("both know both", || count(&look(&second.address, &[]), "alive") == 2);
    // Not before: the socket's buffer was full. Lost ones are sent again.
    let mut other_version = b"HIRP\0\x09".to_vec();
    other_version.resize(60, 0);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..5 {
        socket.send_to(&other_version, &first.address).unwrap();
        look(&first.address, &[]);
    }
    let told = first.stderr_after_kill();
    assert_eq!(told.matches("no datagram of a pool").count(), 1, "{told}");
    assert!(told.contains("version 9") && told.contains("same release"), "{told}");
}

#[test]
fn member_that_no_datagram_reaches_is_told_which_port_to_open() {
    // What the first one says of itself is where datagrams go: nobody receives them there.
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let first = Member::start("64M", "127.0.0.1:0", &["--advertise", &nobody]);
    let deaf = Member::start("64M", "127.0.0.1:0", &["--join", &first.address]);
    let port = deaf.address.rsplit_once(':').unwrap().1.to_owned();
    sleep(Duration::from_secs(13));
    let told = deaf.stderr_after_kill();
    assert_eq!(told.matches("no datagram has come").count(), 1, "{told}");
    assert!(told.contains(&format!("UDP to port {port}")), "{told}");
    let told = first.stderr_after_kill();
    assert!(!told.contains("no datagram has come"), "{told}");
}

#[test]
fn member_that_starts_before_its_pool_joins_later() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("members");
    fs::write(&list, "").unwrap();
    let source = format!("static:{}", list.display());
    let early = Member::start("64M", "127.0.0.1:0", &["--discovery", &source]);
    let late = Member::start("64M", "127.0.0.1:0", &[]);
    fs::write(&list, format!("{} # came later\n", late.address)).unwrap();
    until("both know both", || count(&look(&late.address, &[]), "alive") == 2);
    drop(early);
}

/// A real etcd; killed when it is dropped.
struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers of etcd to a request for all keys: nothing while it is away.
fn keys_in_etcd(port: u16) -> String {
    let body = r#"{"key":"AA==","range_end":"AA=="}"#;
    let request =
        format!("POST /v3/kv/range HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

impl Etcd {
    fn start(dir: &Path, port: u16, peer_port: u16) -> Etcd {
        let [client, peer] = [port, peer_port].map(|port| format!("http://127.0.0.1:{port}"));
        let mut etcd = Command::new("etcd");
        etcd.args(["--name", "one", "--data-dir"]).arg(dir.join("etcd"));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("one={peer}")]);
        let etcd = Etcd(etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("etcd answers", || keys_in_etcd(port).contains("header"));
        etcd
    }
}

#[test]
fn members_find_each_other_by_etcd_and_outlive_it() {
    if Command::new("etcd").arg("--version").output().is_err() {
        return hiroma_testkit::skip!(Machine, "there is no etcd: apt-get install etcd-server");
    }
    let dir = tempfile::tempdir().unwrap();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port, peer_port) = (free(), free());
    let source = format!("etcd://127.0.0.1:{port}/rack");
    let args = ["--discovery", &source];
    let nobody = refused(&[&["--listen", "127.0.0.1:0"], &args[..]].concat());
    assert!(nobody.contains(&source) && nobody.contains("does not answer"), "{nobody}");
    let etcd = Etcd::start(dir.path(), port, peer_port);
    let (first, second) =
        (Member::start("64M", "127.0.0.1:0", &args), Member::start("64M", "127.0.0.1:0", &args));
    until("both", || count(&look(&first.address, &[]), "alive") == 2);
    let keys = |count: u32| keys_in_etcd(port).contains(&format!(r#""count":"{count}""#));
    assert!(keys(2), "{}", keys_in_etcd(port));
    drop(etcd);
    sleep(Duration::from_secs(5));
    assert_eq!(count(&look(&second.address, &[]), "alive"), 2, "they know each other");
    let etcd = Etcd::start(dir.path(), port, peer_port);
    let third = Member::start("64M", "127.0.0.1:0", &args);
    until("three", || count(&look(&second.address, &[]), "alive") == 3);
    until("all are registered again", || keys(3));
    drop(third);
    until("the dead member's key expires", || keys(2));
    let told = second.stderr_after_kill();
    assert_eq!(told.matches("does not answer").count(), 1, "{told}");
    assert_eq!(told.matches("etcd answers again").count(), 1, "{told}");
    drop(etcd);
}

#[test]
fn program_runs_in_the_pool_and_drained_members_are_left_out() {
    let first = Member::start("64M", "127.0.0.1:0", &["--name", "a"]);
    let second = Member::start("64M", "127.0.0.1:0", &["--name", "b", "--join", &first.address]);
    until("both", || count(&look(&first.address, &[]), "alive") == 2);
    let plain = ["run", "-v", "--local", "16M", "--pool", &first.address];
    let all = |more: &[&str]| {
        let out = hiroma([&plain[..], more, &["--", "true"]].concat()).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let said = all(&[]);
    assert!(said.contains(&first.address) && said.contains(&second.address), "{said}");
    assert!(said.contains(", then file:/var/tmp;"), "the disk is behind the pool: {said}");
    assert!(said.contains("the program ends if a member dies"), "{said}");
    let said = all(&["--copies", "2", "--store", "compressed:16M"]);
    assert!(!said.contains("file:") && !said.contains("if a member dies"), "{said}");
    let config = tempfile::tempdir().unwrap();
    fs::create_dir(config.path().join("hiroma")).unwrap();
    let file = config.path().join("hiroma/pool.toml");
    fs::write(&file, format!("members = [\"{}\"]\n", second.address)).unwrap();
    let mut drain = hiroma(["pool", "drain", "a"]);
    let drained = drain.env("XDG_CONFIG_HOME", config.path()).output().unwrap();
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    until("the drain is known", || {
        look(&second.address, &[])["members"]
            .as_array()
            .unwrap()
            .iter()
            .any(|m| m["draining"] == true)
    });
    let mut run = hiroma(["run", "-v", "--local", "16M", "--pool", "--", "true"]);
    let out = run.env("HIROMA_POOL", &second.address).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains(&second.address) && !said.contains(&first.address), "{said}");
    let mut undrain = hiroma(["pool", "undrain", "a", "--pool", &second.address]);
    assert!(undrain.status().unwrap().success());
    fs::write(&file, "member = 1").unwrap();
    let out = hiroma(["pool"]).env("XDG_CONFIG_HOME", config.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("pool.toml"), "{out:?}");
}
