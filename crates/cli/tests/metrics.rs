//! What servers, runs and the page about a pool tell over HTTP; the board and the rules in `contrib`
//! use no other names.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{compile, hiroma};
use yaml_rust2::{Yaml, YamlLoader};

/// A command that goes on until it is killed.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(args: &[&str]) -> Running {
        let mut command = hiroma(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Running { child, out: BufReader::new(out), err: BufReader::new(err) }
    }
}

/// What follows `mark` in the next line that has it, up to a blank or a comma.
fn after(lines: &mut impl BufRead, mark: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "{mark} was never said");
        if let Some((_, rest)) = line.split_once(mark) {
            return rest.split([' ', ',', '\n']).next().unwrap().to_owned();
        }
    }
}

/// A member, its address, and where its metrics are.
struct Member {
    running: Running,
    metrics: String,
    address: String,
}

fn member(args: &[&str]) -> Member {
    let base = ["serve", "--memory", "160M", "--listen", "127.0.0.1:0", "--metrics", ":0"];
    let mut running = Running::start(&[&base[..], args].concat());
    let metrics = after(&mut running.err, "metrics are at http://");
    let address = after(&mut running.out, "ready on ");
    Member { running, metrics, address }
}

/// The body of a page at `HOST:PORT/PATH`.
fn get(place: &str) -> String {
    let (address, path) = place.split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

/// The value of a series, given as it is written.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} never happened");
        sleep(Duration::from_millis(100));
    }
}

/// Two processes that touch 40 MiB each, again and again, until the file in their argument exists.
const LOAD: &str = r#"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    pid_t child = fork();
    size_t bytes = 40 << 20;
    volatile unsigned *memory = malloc(bytes);
    for (unsigned round = 1; access(words[1], F_OK) != 0; round++)
        for (size_t at = 0; at < bytes / 4; at += 1024)
            memory[at] = (unsigned)at * 2654435761u + round;
    return child > 0 ? wait(NULL) != child : 0;
}
"#;

/// A load under `hiroma run`, and where its metrics are.
fn run(dir: &Path, args: &[&str]) -> (Running, String) {
    let load = compile(dir, "load", LOAD, &[]);
    let (load, stop) = (load.display().to_string(), dir.join("stop").display().to_string());
    let base = ["run", "--local", "16M", "--metrics", ":0"];
    let mut running = Running::start(&[&base[..], args, &["--", &load, &stop]].concat());
    let metrics = after(&mut running.err, "metrics are at http://");
    (running, metrics)
}

fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("hiroma_")).map(str::to_owned).collect()
}

fn contrib(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(path)
}

/// All `expr` of the rules.
fn expressions(yaml: &Yaml, found: &mut Vec<String>) {
    match yaml {
        Yaml::Hash(hash) => hash.iter().for_each(|(key, inner)| match (key.as_str(), inner) {
            (Some("expr"), Yaml::String(text)) => found.push(text.clone()),
            _ => expressions(inner, found),
        }),
        Yaml::Array(array) => array.iter().for_each(|inner| expressions(inner, found)),
        _ => {}
    }
}

fn board_expressions(json: &serde_json::Value, found: &mut Vec<String>) {
    match json {
        serde_json::Value::Object(object) => object.iter().for_each(|(key, inner)| {
            if let (true, Some(text)) = (key == "expr" || key == "query", inner.as_str()) {
                found.push(text.to_owned());
            }
            board_expressions(inner, found);
        }),
        serde_json::Value::Array(array) => {
            array.iter().for_each(|inner| board_expressions(inner, found));
        }
        _ => {}
    }
}

/// Checks the rules by Prometheus' own tool, if it is here.
fn check_by_promtool() {
    for words in
        [["check", "rules", "hiroma.rules.yml"], ["test", "rules", "hiroma.rules.test.yml"]]
    {
        let mut tool = Command::new("promtool");
        match tool.args(words).current_dir(contrib("prometheus")).output() {
            Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr)),
            Err(_) => {
                hiroma_testkit::skip!(Machine, "promtool is missing: apt-get install prometheus");
                return;
            }
        }
    }
}

#[test]
fn figures_of_servers_and_runs_are_right_and_contrib_uses_no_other_names() {
    let dir = tempfile::tempdir().unwrap();
    let first = member(&["--name", "a", "--label", "rack=r1"]);
    let second = member(&["--name", "b", "--join", &first.address]);
    let third = member(&["--name", "c", "--join", &first.address]);
    let served = || get(&first.metrics);
    until("three members", || value(&served(), "hiroma_pool_members{state=\"alive\"}") == 3.0);
    let (mut running, metrics) = run(dir.path(), &["--pool", &first.address, "--copies", "2"]);
    let shown = || get(&metrics);
    until("faults of two processes", || {
        let text = shown();
        value(&text, "hiroma_run_processes") == 2.0
            && value(&text, "hiroma_run_faults_total{kind=\"fetched\"}") > 1000.0
            && value(&text, "hiroma_run_stored_bytes{store=\"server\"}") > (64 << 20) as f64
    });
    let (text, server) = (shown(), served());
    let count = value(&text, "hiroma_run_fault_wait_seconds_count");
    let kinds: f64 = text
        .lines()
        .filter(|line| line.starts_with("hiroma_run_faults_total{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum();
    assert!(count > 1000.0 && (count - kinds).abs() < kinds / 10.0, "{count} {kinds}");
    assert_eq!(value(&text, "hiroma_run_limit_bytes"), 2.0 * (16 << 20) as f64);
    assert!(value(&text, "hiroma_run_local_bytes") <= 2.2 * (16 << 20) as f64, "{text}");
    assert_eq!(text.matches("\nhiroma_run_process_far_bytes{pid=").count(), 2, "{text}");
    assert_eq!(value(&server, "hiroma_server_lent_bytes"), (160 << 20) as f64);
    assert!(value(&server, "hiroma_server_clients") >= 2.0);
    let reads = "hiroma_server_request_duration_seconds_bucket{le=\"+Inf\",kind=\"read\"}";
    assert!(value(&server, reads) > 100.0);
    assert!(value(&server, "hiroma_server_sent_bytes_total") > (1 << 20) as f64);

    // Each name that the board and the rules use is there.
    let told: BTreeSet<String> = names(&text).union(&names(&server)).cloned().collect();
    let mut used = Vec::new();
    let rules = fs::read_to_string(contrib("prometheus/hiroma.rules.yml")).unwrap();
    YamlLoader::load_from_str(&rules).unwrap().iter().for_each(|it| expressions(it, &mut used));
    assert_eq!(used.len(), 8, "{used:?}");
    let board = fs::read_to_string(contrib("grafana/hiroma.json")).unwrap();
    board_expressions(&serde_json::from_str(&board).unwrap(), &mut used);
    let used = names(&used.join(" "));
    let unknown: Vec<_> = used.difference(&told).collect();
    assert!(used.len() > 30 && unknown.is_empty(), "nobody tells {unknown:?}");
    check_by_promtool();

    // A death: what was there is copied again.
    drop(second.running);
    until("the death", || value(&served(), "hiroma_pool_members{state=\"dead\"}") == 1.0);
    until("the copies", || value(&shown(), "hiroma_run_recopied_bytes_total") > 0.0);
    fs::write(dir.path().join("stop"), "").unwrap();
    assert!(running.child.wait().unwrap().success());
    drop(third);
}

#[test]
fn refusals_are_counted_by_reason() {
    let dir = tempfile::tempdir().unwrap();
    let key = |name: &str, content: &str| {
        fs::write(dir.path().join(name), content).unwrap();
        dir.path().join(name).display().to_string()
    };
    let (right, wrong) = (key("right", "0123456789abcdef"), key("wrong", "fedcba9876543210"));
    let server = member(&["--key-file", &right]);
    let ask = |key: &str| {
        hiroma(["pool", "--pool", &server.address, "--key-file", key]).output().unwrap()
    };
    assert!(ask(&right).status.success());
    let refused = |reason: &str| {
        value(
            &get(&server.metrics),
            &format!("hiroma_server_refusals_total{{reason=\"{reason}\"}}"),
        )
    };
    assert_eq!((refused("key"), refused("protocol")), (0.0, 0.0));
    assert_eq!(ask(&wrong).status.code(), Some(2));
    until("the wrong key", || refused("key") == 1.0);
    TcpStream::connect(&server.address).unwrap().write_all(&[b'x'; 64]).unwrap();
    until("the stranger", || refused("protocol") == 1.0);
}

#[test]
fn addresses_in_use_or_invalid_are_refused_before_anything_starts() {
    let server = member(&[]);
    let taken = server.metrics.split('/').next().unwrap();
    let marker = tempfile::tempdir().unwrap();
    let file = marker.path().join("ran").display().to_string();
    let serve = ["serve", "--memory", "64M", "--listen", "127.0.0.1:0", "--metrics", taken];
    let run = ["run", "--local", "16M", "--metrics", taken, "--", "touch", &file];
    let web = ["pool", "--pool", &server.address, "--web", taken];
    for args in [&serve[..], &run, &web] {
        let (code, text) = common::refusal(args);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(taken) && text.contains("another program listens"), "{text}");
    }
    assert!(!Path::new(&file).exists());
    let (code, text) = common::refusal(["run", "--metrics", "9464", "--", "true"]);
    assert!(code == Some(2) && text.contains("HOST:PORT"), "{text}");
}

/// What a browser makes of a page; none if there is no browser that works here.
fn browse(dir: &Path, address: &str, more: &[&str]) -> Option<String> {
    let mut command = Command::new("timeout");
    command.args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu"]);
    command.args(["--disable-dev-shm-usage", "--virtual-time-budget=4000"]);
    command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    let out = command.args(more).arg(address).stdin(Stdio::null()).output().unwrap();
    if !out.status.success() {
        let reason = String::from_utf8_lossy(&out.stderr);
        let reason = reason.lines().last().unwrap_or("no reason given");
        hiroma_testkit::skip!(Machine, "chromium does not look at the page: {reason}");
        return None;
    }
    Some(String::from_utf8(out.stdout).unwrap())
}

/// The colour of the first pixel of a picture.
fn corner(path: &Path) -> [u8; 3] {
    let decoder = png::Decoder::new(BufReader::new(fs::File::open(path).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let row = reader.next_row().unwrap().unwrap();
    row.data()[..3].try_into().unwrap()
}

#[test]
fn page_shows_the_pool_and_what_happened_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let first = member(&["--name", "ann", "--label", "rack=r1"]);
    let second = member(&["--name", "bob", "--label", "rack=r2", "--join", &first.address]);
    let mut web = Running::start(&["pool", "--pool", &first.address, "--web", ":0"]);
    let address = after(&mut web.out, "shown at http://");
    let json = || -> serde_json::Value {
        serde_json::from_str(&get(&format!("{address}pool.json"))).unwrap()
    };
    let has = |what: &str| json()["events"].to_string().contains(what);
    until("both", || json()["members"].as_array().unwrap().len() == 2);
    let (mut running, _) = run(dir.path(), &["--pool", &first.address]);
    until("a client", || json()["clients"][0]["used_bytes"].as_u64() > Some(16 << 20));
    until("traffic", || {
        let seen = json();
        let rates = seen["rates"].as_array().unwrap();
        rates.iter().any(|rate| rate["read_per_s"].as_u64() > Some(1 << 20))
    });
    assert!(has("127.0.0.1 uses ann"), "{}", json()["events"]);
    let page = get(&address);
    let outside = ["http:", "https:", "src=", "@import", "url("];
    let foreign = page.replace("http://www.w3.org/2000/svg", "");
    assert!(outside.iter().all(|mark| !foreign.contains(mark)), "the page needs something else");
    let url = format!("http://{address}");
    if let Some(dom) = browse(dir.path(), &url, &["--dump-dom"]) {
        for mark in ["id=\"pool-map\"", "rack=r1", "rack=r2", ">bob<", "<polyline", "127.0.0.1: "] {
            assert!(dom.contains(mark), "{mark} is not in\n{dom}");
        }
        assert_eq!(dom.matches("class=\"member\"").count(), 2);
    }
    for (scheme, is_light) in [("0", false), ("1", true)] {
        let shot = dir.path().join("shot.png");
        let arg = format!("--screenshot={}", shot.display());
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        if browse(dir.path(), &url, &[&arg, &scheme, "--window-size=1150,800"]).is_some() {
            assert_eq!(corner(&shot).iter().all(|&part| part > 128), is_light, "{scheme}");
        }
    }
    fs::write(dir.path().join("stop"), "").unwrap();
    assert!(running.child.wait().unwrap().success());
    drop(second.running);
    until("the death", || has("bob is dead"));
    drop(first.running);
    until("the trouble", || json()["trouble"].as_str().is_some_and(|it| it.contains("no")));
}
