//! To its caller, `hiroma run` behaves like the program: exit codes, signals, output, environment.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{hiroma, hiroma_with_default_signals, output, wait_until};
use rustix::process::{Pid, Signal, kill_process};

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Starts a shell under hiroma that prints its process id when it is ready; returns its further
/// output too.
fn shell(script: &str) -> (Child, u32, BufReader<std::process::ChildStdout>) {
    let script = format!("{script}\necho $$\nwhile :; do sleep 0.02; done");
    let args = ["run", "--quiet", "--", "sh", "-c", &script];
    // In a process group of its own: the kernel ignores SIGTSTP for a group that no process outside
    // of it could continue.
    let mut child =
        hiroma_with_default_signals(args).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let pid = line.trim().parse().unwrap_or_else(|_| panic!("the shell said {line:?}"));
    (child, pid, lines)
}

#[test]
fn exit_code_is_that_of_the_program() {
    for code in [0, 1, 2, 75, 126, 255] {
        let output = output(["run", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn fatal_signal_of_program_also_ends_hiroma() {
    for signal in ["TERM", "KILL", "SEGV", "ABRT", "PIPE", "USR1"] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("kill -{signal} $$");
        let output = hiroma(["run", "--quiet", "--", "sh", "-c", &script])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let native =
            Command::new("sh").args(["-c", &script]).current_dir(dir.path()).status().unwrap();
        assert_eq!(output.status.signal(), native.signal(), "{signal}");
        assert!(!output.status.core_dumped(), "hiroma left a core of its own at {signal}");
    }
}

#[test]
fn signals_reach_the_program() {
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let (mut child, _, _lines) = shell(&format!("trap 'exit 42' {name}"));
        send(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(42), "{name}");
    }
}

#[test]
fn a_signal_without_a_handler_ends_both() {
    let (mut child, program, _lines) = shell("");
    send(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    assert!(!std::path::Path::new(&format!("/proc/{program}")).exists());
}

fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
}

#[test]
fn stop_and_continue_reach_program_and_are_visible() {
    let (mut child, program, _lines) = shell("");
    send(child.id(), Signal::TSTP);
    wait_until("the program stops", || state(program) == 'T');
    wait_until("hiroma stops with it", || state(child.id()) == 'T');
    send(child.id(), Signal::CONT);
    wait_until("the program goes on", || state(program) != 'T');
    wait_until("hiroma goes on", || state(child.id()) != 'T');
    send(child.id(), Signal::KILL);
    child.wait().unwrap();
    send(program, Signal::KILL);
}

#[test]
fn hiroma_continues_when_program_is_continued_directly() {
    let (mut child, program, _lines) = shell("");
    send(program, Signal::STOP);
    wait_until("the program stops", || state(program) == 'T');
    send(program, Signal::CONT);
    send(program, Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn ignored_signals_stay_ignored() {
    let mut child = Command::new("nohup");
    let template = hiroma(["run", "--quiet", "--", "sh", "-c", "grep SigIgn /proc/self/status"]);
    child.arg(template.get_program()).args(template.get_args());
    child.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = child.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mask = u64::from_str_radix(text.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(mask & 1, 1, "SIGHUP is no longer ignored: {text}");
}

#[test]
fn standard_streams_are_those_of_the_program() {
    let mut child = hiroma(["run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("hiroma: ") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn quiet_option_prints_nothing() {
    let output = output(["run", "--quiet", "--", "true"]);
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn existing_preload_list_is_kept() {
    let other = std::env::temp_dir().join("not-there.so");
    let output = hiroma(["run", "--quiet", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", &other)
        .output()
        .unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let parts: Vec<&str> = list.trim().split(':').collect();
    assert!(
        parts.len() == 2 && parts[0].ends_with(".so") && parts[1] == other.to_str().unwrap(),
        "{list}"
    );
}

#[test]
fn the_program_sees_its_own_name_and_arguments() {
    let output = output([
        "run",
        "--quiet",
        "--",
        "sh",
        "-c",
        "echo \"$0 $*\"; tr '\\0' ' ' </proc/$$/cmdline",
        "name",
        "--local",
        "x",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("name --local x\nsh -c "), "{text}");
}

#[test]
fn statistics_report_how_the_program_ended() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stats.json");
    let stats = |script: &str| -> serde_json::Value {
        output([
            "run",
            "--local",
            "64M",
            "--stats",
            file.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            script,
        ]);
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
    };
    let exited = stats("exit 7");
    assert_eq!((exited["exit_code"].as_u64(), exited["signal"].as_u64()), (Some(7), None));
    assert_eq!(exited["config"]["local_limit_bytes"].as_u64(), Some(64 << 20));
    assert!(matches!(exited["path"].as_str(), Some("full" | "fallback")), "{exited}");
    assert!(exited["peak_rss_bytes"].as_u64().unwrap() > 0);
    let killed = stats("kill -TERM $$");
    assert_eq!((killed["exit_code"].as_u64(), killed["signal"].as_u64()), (None, Some(15)));
}

#[test]
fn nothing_is_left_behind() {
    let output = output(["run", "--quiet", "--", "sh", "-c", "echo $HIROMA_CONFIG"]);
    let config: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let dir = config["control_dir"].as_str().unwrap();
    assert!(dir.contains("/run-") && !std::path::Path::new(dir).exists(), "{dir}");
}

/// `sh` and the `sleep` that it is starting lose hiroma at an arbitrary moment of their start.
#[test]
fn processes_losing_hiroma_at_start_end_promptly() {
    for round in 0..30 {
        let (mut child, shell, mut lines) = shell("");
        std::thread::sleep(Duration::from_millis(round * 7 % 41));
        child.kill().unwrap();
        child.wait().unwrap();
        // Every process that was started has the pipe open, except for the helpers: the pipe ends
        // when the last of them ends.
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || ended.send(lines.read_line(&mut String::new()).map(drop)));
        let end = end.recv_timeout(Duration::from_secs(30));
        assert!(end.is_ok(), "round {round}: something that shell {shell} started still lives");
    }
}
