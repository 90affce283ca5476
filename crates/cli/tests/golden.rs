//! The command's regular output, and the files that are derived from it.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{hiroma, output};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn man_pages_match_the_help() {
    let dir = tempfile::tempdir().unwrap();
    common::bench();
    assert!(output(["man", dir.path().to_str().unwrap()]).status.success());
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    let pages = |dir: &Path| -> BTreeMap<String, String> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let pages = entries.filter(|path| path.extension().is_some_and(|section| section == "1"));
        pages
            .map(|path| {
                (
                    path.file_name().unwrap().to_str().unwrap().to_owned(),
                    fs::read_to_string(path).unwrap(),
                )
            })
            .collect()
    };
    let (fresh, kept) = (pages(dir.path()), pages(&kept));
    assert!(fresh.len() > 20, "{}", fresh.len());
    for (page, text) in &fresh {
        assert!(kept.get(page) == Some(text), "{page} lags behind: make man");
    }
    for page in kept.keys() {
        assert!(fresh.contains_key(page), "{page} is of a command that is no more");
    }
}

#[test]
fn no_arguments_prints_first_steps() {
    let first = output::<&str>([]);
    let text = String::from_utf8(first.stderr).unwrap();
    assert_eq!(first.status.code(), Some(2));
    // Each line is a command whose help exists.
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  hiroma ")).collect();
    assert_eq!(lines.len(), 5, "{text}");
    for line in lines {
        let words = line.split(' ').take_while(|word| {
            word.chars().all(|letter| letter.is_ascii_lowercase()) && !word.is_empty()
        });
        assert!(output(words.chain(["--help"])).status.success(), "{line}");
    }
}

#[test]
fn shells_complete_commands_and_options() {
    common::bench();
    for shell in ["bash", "zsh", "fish"] {
        let script = output(["completions", shell]);
        assert!(script.status.success(), "{shell}");
        let text = String::from_utf8(script.stdout).unwrap();
        assert!(text.contains("fault-timeout") && text.contains("manage"), "{shell}");
        // Those of `hiroma-bench`.
        assert!(text.contains("noise") && text.contains("repetitions"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hiroma");
    fs::write(&file, output(["completions", "bash"]).stdout).unwrap();
    let script = "source \"$1\"; COMP_WORDS=(hiroma ser); COMP_CWORD=1; _hiroma hiroma ser hiroma; echo \"${COMPREPLY[@]}\"";
    let completed = Command::new("bash").args(["-c", script, "bash"]).arg(&file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "serve");
}

#[test]
fn doctor_text_json_and_exit_code_agree() {
    let (text, json) = (output(["doctor"]), output(["doctor", "--json"]));
    assert_eq!(text.status.code(), json.status.code());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["works"].as_bool(), Some(text.status.success()));
    let text = String::from_utf8(text.stdout).unwrap();
    for check in json["checks"].as_array().unwrap() {
        let (name, state) = (check["name"].as_str().unwrap(), check["state"].as_str().unwrap());
        let line = text
            .lines()
            .find(|line| line.get(7..).is_some_and(|rest| rest.starts_with(&format!("{name} "))));
        assert!(line.is_some_and(|line| line.starts_with(state)), "{name} in:\n{text}");
        assert_eq!(check["mend"].is_null(), state == "ok", "{name}");
    }
}

#[test]
fn doctor_reports_missing_parts() {
    let output = hiroma(["doctor"]).env("HIROMA_PRELOAD", "/no/such/library.so").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("lacks  preload library") && text.contains("-> make build"), "{text}");
}

#[test]
fn server_prints_its_address_and_stops_on_signal() {
    let mut server = hiroma(["serve", "--listen", "127.0.0.1:0", "--memory", "64M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
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
    assert!(
        log.contains("0B of 64MiB in use") && log.ends_with("hiroma serve: stopped\n"),
        "{log}"
    );
}
