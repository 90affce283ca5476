//! What carries the connections of a program to a server: shared memory on one machine, or TCP.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use common::member::Member;
use common::{compile, hiroma};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Fills twice as much memory as the limits here, waits for a line, and checks it in a child and in
/// itself.
const SWEEP: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static const size_t words = (size_t)64 << 17;
static unsigned long *memory;
static int check(void) {
    unsigned long seed = 1;
    for (size_t i = 0; i < words; i++)
        if (memory[i] != (seed = seed * 6364136223846793005UL + 1442695040888963407UL)) return 1;
    return 0;
}
int main(void) {
    unsigned long seed = 1;
    memory = malloc(words * 8);
    for (size_t i = 0; i < words; i++) memory[i] = seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    puts("filled");
    fflush(stdout);
    getchar();
    pid_t child = fork();
    if (child == 0) {
        int wrong = check();
        for (size_t i = 0; i < words; i += 512) memory[i] = i;
        _exit(wrong);
    }
    int status = 1;
    waitpid(child, &status, 0);
    puts(status || check() ? "wrong" : "right");
    return 0;
}
"#;

struct Sweep {
    run: Child,
    output: BufReader<ChildStdout>,
}

fn start(dir: &Path, server: &Member, options: &[&str]) -> Sweep {
    let program = compile(dir, "sweep", SWEEP, &[]);
    let store = format!("tcp://{}", server.address);
    let mut command = hiroma(["run", "--local", "32M", "--store", &store]);
    command.args(options).arg("--").arg(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let mut output = BufReader::new(run.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "filled\n");
    Sweep { run, output }
}

impl Sweep {
    fn go_on(&mut self) {
        self.run.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    /// What it says, and what its run says.
    fn end(mut self) -> (String, String) {
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        let ended = self.run.wait_with_output().unwrap();
        (said, String::from_utf8(ended.stderr).unwrap())
    }
}

fn pid(server: &Member) -> Pid {
    Pid::from_raw(server.child.id() as i32).unwrap()
}

fn shared_connections(server: &Member) -> Vec<u64> {
    let out = hiroma(["pool", "--json", "--pool", &server.address]).output().unwrap();
    let pool: Value = serde_json::from_slice(&out.stdout).unwrap();
    let clients = pool["members"][0]["clients"].as_array().unwrap();
    clients.iter().map(|client| client["shared_connections"].as_u64().unwrap()).collect()
}

#[test]
fn servers_on_this_machine_are_reached_in_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Member::start("512M", "127.0.0.1:0", &[]);
    for (transport, by) in [("auto", "shared memory"), ("tcp", "tcp")] {
        let file = dir.path().join(transport);
        let options = ["--transport", transport, "--stats", file.to_str().unwrap()];
        let mut sweep = start(dir.path(), &server, &options);
        let shared = shared_connections(&server);
        assert_eq!(shared.iter().any(|&count| count > 0), transport == "auto", "{shared:?}");
        let out = hiroma(["pool", "--pool", &server.address]).output().unwrap();
        let table = String::from_utf8(out.stdout).unwrap();
        assert!(table.contains(&format!("  {by}  ")), "{table}");
        sweep.go_on();
        let (said, summary) = sweep.end();
        assert_eq!(said, "right\n", "{summary}");
        assert!(summary.contains(&format!(" (in servers, by {by})")), "{summary}");
        let stats: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let made = |name: &str| stats["total"][name].as_u64().unwrap();
        let (shared, tcp) = (made("connections_shared_memory"), made("connections_tcp"));
        // The child has its own.
        let (used, unused) = if by == "tcp" { (tcp, shared) } else { (shared, tcp) };
        assert!(used >= 4 && unused == 0, "{stats}");
    }
}

#[test]
fn stopped_server_is_waited_for_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Member::start("512M", "127.0.0.1:0", &[]);
    let mut sweep = start(dir.path(), &server, &[]);
    kill_process(pid(&server), Signal::STOP).unwrap();
    sweep.go_on();
    std::thread::sleep(Duration::from_secs(2));
    kill_process(pid(&server), Signal::CONT).unwrap();
    let (said, summary) = sweep.end();
    assert_eq!(said, "right\n", "{summary}");
}

#[test]
fn death_of_the_server_ends_the_program_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = Member::start("512M", "127.0.0.1:0", &[]);
    let mut sweep = start(dir.path(), &server, &["--store-timeout", "2s"]);
    kill_process(pid(&server), Signal::KILL).unwrap();
    let since = Instant::now();
    sweep.go_on();
    let (said, summary) = sweep.end();
    assert_eq!(said, "", "{summary}");
    assert!(summary.contains("lost the connection") && since.elapsed().as_secs() < 20, "{summary}");
}
