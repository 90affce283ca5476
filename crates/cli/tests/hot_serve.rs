//! `hiroma hot serve` as a process: it starts, answers, refuses invalid requests, and ends when a
//! signal arrives.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::hot::{Load, possible};
use common::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

fn serve(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hiroma"));
    command.args(["hot", "serve", "--socket"]).arg(socket).stdin(Stdio::null());
    command
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

#[test]
fn serve_runs_until_stopped_and_refuses_a_second() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("hot.sock");
    let mut child =
        Running(serve(&socket).args(["--budget", "100M"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(
        line,
        format!("hiroma hot serve: ready on {}, 100MiB may be huge\n", socket.display())
    );
    let status = serve(&socket).arg("--status").output().unwrap();
    assert!(
        status.status.success() && text(&status).starts_with("budget 100 MiB, 0 processes"),
        "{}",
        text(&status)
    );
    let second = serve(&socket).output().unwrap();
    assert!(
        second.status.code() == Some(2) && text(&second).contains("another daemon serves"),
        "{}",
        text(&second)
    );
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert!(child.0.wait().unwrap().success());
    assert!(!socket.exists());
    let status = serve(&socket).arg("--status").output().unwrap();
    assert!(
        status.status.code() == Some(2) && text(&status).contains("no `hiroma hot serve` listens"),
        "{}",
        text(&status)
    );
}

#[test]
fn invalid_serve_options_are_refused() {
    let dir = TempDir::new().unwrap();
    for (option, value, part) in [
        ("--budget", "1M", "less than one huge page"),
        ("--budget", "-1", "--budget"),
        ("--cpu", "0%", "is no share"),
        ("--cpu", "-1%", "is no share"),
        ("--collapse", "-5%", "is no share"),
        ("--cpu", "200%", "is no share"),
        ("--backend", "crystal-ball", "no way of tracking"),
    ] {
        let output = serve(&dir.path().join("s")).args([option, value]).output().unwrap();
        let said = text(&output);
        assert!(output.status.code() == Some(2) && said.contains(part), "{option} {value}: {said}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_hiroma"))
        .args(["hot", "serve", "--socket", "/proc/version"])
        .output()
        .unwrap();
    assert!(
        output.status.code() == Some(2) && text(&output).contains("cannot listen"),
        "{}",
        text(&output)
    );
}

/// A load whose first thread has the name `name`.
fn named_load(dir: &Path, name: &str) -> Load {
    let link = dir.join(name);
    std::os::unix::fs::symlink(common::bench(), &link).unwrap();
    let bytes = 128 << 20;
    let job = json!({"bytes": bytes, "pattern": "sequential", "pages": "default"});
    let mut command = Command::new(link);
    command.args(["huge-load", &job.to_string()]);
    Load::of(command, bytes, false).expect("the load does not start")
}

#[test]
fn rules_choose_processes_that_do_not_register() {
    if !possible() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let (chosen, left) = (named_load(dir.path(), "chosen"), named_load(dir.path(), "left"));
    let (socket, policy) = (dir.path().join("hot.sock"), dir.path().join("hot.toml"));
    fs::write(&policy, "[[rule]]\nname = 'chosen'\n").unwrap();
    let mut daemon = serve(&socket);
    daemon.arg("--policy").arg(&policy).args(["--cpu", "50%", "--metrics", "127.0.0.1:0"]);
    let daemon = Running(daemon.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    wait_until("the chosen process to get huge pages", || chosen.huge_bytes() > 0);
    let top = || {
        let mut top = Command::new(env!("CARGO_BIN_EXE_hiroma"));
        text(&top.args(["hot", "top", "--once", "--socket"]).arg(&socket).output().unwrap())
    };
    let shown = top();
    assert!(shown.contains("chosen") && !shown.contains(&format!("{}", left.pid)), "{shown}");
    // A mistake changes nothing, a correct file does.
    let signal = |signal| kill_process(Pid::from_child(&daemon.0), signal).unwrap();
    let hang_up = || signal(Signal::HUP);
    fs::write(&policy, "[[rule]]\nleave = true\n").unwrap();
    // Several at once are as good as one.
    (0..50).for_each(|_| hang_up());
    wait_until("an answer", || top().contains("chosen"));
    fs::write(&policy, "[[rule]]\nname = 'left'\n").unwrap();
    hang_up();
    wait_until("the other process to get huge pages", || left.huge_bytes() > 0);
    wait_until("the first to be left alone", || top().contains("1 processes"));
    signal(Signal::TERM);
    wait_until("the daemon to end", || !socket.exists());
    let explained = text(&common::hot::hot(&["explain", "--pid", &left.pid()]));
    assert!(
        explained.contains("ended: the daemon left it") && !explained.contains("was killed"),
        "{explained}"
    );
}

#[test]
fn wrong_policies_are_refused_at_the_start() {
    let dir = TempDir::new().unwrap();
    let policy = dir.path().join("hot.toml");
    fs::write(&policy, "[[rule]]\nname = 3\n").unwrap();
    for path in [policy, dir.path().join("absent")] {
        let output = serve(&dir.path().join("s")).arg("--policy").arg(&path).output().unwrap();
        let said = text(&output);
        assert!(output.status.code() == Some(2) && said.contains(path.to_str().unwrap()), "{said}");
    }
}
