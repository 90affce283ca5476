//! `hiroma hot serve` as a process: it starts, answers, refuses invalid requests, and ends when a
//! signal arrives.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

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
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
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
