//! What the command says when nothing is wrong, and what is derived from it.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use common::{hiroma, output};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn the_man_pages_are_those_of_the_help() {
    let dir = tempfile::tempdir().unwrap();
    assert!(output(["man", dir.path().to_str().unwrap()]).status.success());
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    // The pages of experiments change with them; what must not lag behind are those for everyday use.
    for page in ["hiroma-run.1", "hiroma-serve.1", "hiroma-ctl.1", "hiroma-doctor.1"] {
        let fresh = fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(fs::read_to_string(kept.join(page)).unwrap_or_default() == fresh, "{page} lags behind: make man");
    }
}

#[test]
fn doctor_says_the_same_in_both_forms_and_by_its_exit_code() {
    let (text, json) = (output(["doctor"]), output(["doctor", "--json"]));
    assert_eq!(text.status.code(), json.status.code());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["works"].as_bool(), Some(text.status.success()));
    let text = String::from_utf8(text.stdout).unwrap();
    for check in json["checks"].as_array().unwrap() {
        let (name, state) = (check["name"].as_str().unwrap(), check["state"].as_str().unwrap());
        let line = text.lines().find(|line| line.get(7..).is_some_and(|rest| rest.starts_with(&format!("{name} "))));
        assert!(line.is_some_and(|line| line.starts_with(state)), "{name} in:\n{text}");
        assert_eq!(check["mend"].is_null(), state == "ok", "{name}");
    }
}

#[test]
fn doctor_finds_what_is_lacking() {
    let output = hiroma(["doctor"]).env("HIROMA_PRELOAD", "/no/such/library.so").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("lacks  preload library") && text.contains("-> make build"), "{text}");
}

#[test]
fn a_server_says_where_it_is_and_stops_when_told() {
    let mut server =
        hiroma(["serve", "--listen", "127.0.0.1:0", "--memory", "64M"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let port: u16 = line
        .strip_prefix("hiroma serve: ready on 127.0.0.1:")
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{line}"));
    assert!(line.ends_with(", lending 64MiB\n"), "{line}");
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    kill_process(Pid::from_raw(server.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    let mut log = String::new();
    server.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("0B of 64MiB in use") && log.ends_with("hiroma serve: stopped\n"), "{log}");
}
