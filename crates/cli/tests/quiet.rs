//! `hiroma quiet` on this machine: small files, dry runs, no memory pressure.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use common::{hiroma, output, refusal, wait_until};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn noise_is_measured_shown_and_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (json, html) = (dir.path().join("noise.json"), dir.path().join("noise.html"));
    let files = ["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()];
    for method in ["fwq", "ftq"] {
        let args = ["quiet", "measure", "--seconds", "1", "--method", method];
        let output = output(args.into_iter().chain(files));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(
            text.contains("time stolen; a column is") && text.contains("Who stole the time"),
            "{text}"
        );
        let written: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        let names: Vec<&str> = written["results"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|result| result["name"].as_str())
            .collect();
        assert_eq!(
            names,
            ["noise_share", "slowed_share", "quantum_p99", "quantum_max", "explained_share"]
        );
        assert!(written["results"][3]["value"].as_f64().unwrap() >= 1.0);
        let page = fs::read_to_string(&html).unwrap();
        assert_eq!(page.matches("<svg").count(), 2);
    }
}

#[test]
fn unmeasurable_options_are_refused_with_a_reason() {
    for (args, expected) in [
        (["--cpus", "x"], "is no list of processors"),
        (["--cpus", "1023"], "cannot be used here: choose among"),
        (["--cpus", "3-1"], "is no list of processors"),
        (["--seconds", "0"], "1..=3600"),
        (["--quantum-us", "1"], "100..=100000"),
        (["--html", "/no/such/place/x.html"], "choose another place"),
    ] {
        let (code, said) = refusal(["quiet", "measure"].into_iter().chain(args));
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    assert!(!Path::new("/no/such/place").exists());
}

/// A daemon that only reports what it would do. Ends with the test.
struct DryRun {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl DryRun {
    fn start(state: &Path) -> DryRun {
        DryRun::start_with(state, &[])
    }

    fn start_with(state: &Path, args: &[&str]) -> DryRun {
        let mut command =
            hiroma(["quiet", "serve", "--dry-run", "--state", state.to_str().unwrap()]);
        command.args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (said, sink) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                let mut log = sink.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let daemon = DryRun { child, log };
        assert_eq!(line, "hiroma quiet: ready, dry run\n", "{}", daemon.log());
        daemon
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, || self.log().contains(text));
    }
}

impl Drop for DryRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn running_daemon_takes_settings_and_is_unique() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let state_arg = state.to_str().unwrap();
    let set = |args: &[&str]| refusal(["quiet", "set", "--state", state_arg].iter().chain(args));
    let (code, said) = set(&[]);
    assert!(code == Some(2) && said.contains("no daemon runs here"), "{said}");
    let mut daemon = DryRun::start(&state);
    let (code, said) = refusal(["quiet", "serve", "--dry-run", "--state", state_arg]);
    assert!(code == Some(2) && said.contains("another daemon runs already"), "{said}");
    let (code, said) = refusal(["quiet", "restore", "--state", state_arg]);
    assert!(code == Some(2) && said.contains("another daemon runs already"), "{said}");
    assert_eq!(set(&["poll_ns", "20ms"]), (Some(0), String::new()));
    daemon.wait_for("poll_ns is 20ms now, was 100ms");
    for (args, expected) in [
        (["poll_ns", "1ms"], "from 10ms to 10000ms"),
        (["colour", "1"], "there is no setting `colour`"),
        (["batch_bytes", "x"], "is no value for batch_bytes"),
    ] {
        let (code, said) = set(&args);
        assert!(code == Some(2) && said.contains(expected), "{said}");
    }
    fs::write(state.join("settings.json"), "{").unwrap();
    daemon.wait_for("settings stay as they are");
    kill_process(Pid::from_raw(daemon.child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());
    daemon.wait_for("stopped; everything is as it was");
}

#[test]
fn metrics_are_served_and_used_address_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = DryRun::start_with(&dir.path().join("one"), &["--metrics", "127.0.0.1:0"]);
    daemon.wait_for("metrics are at http://");
    let log = daemon.log();
    let address = log.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let ask = || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    wait_until("a second look", || {
        ask().contains("hiroma_quiet_verdicts_total{node=\"0\",reason=\"first\"} 1")
    });
    // A dry run does nothing, and the metrics report that.
    assert!(ask().contains("hiroma_quiet_mechanism{name=\"node_reclaim\"} 0"), "{}", ask());
    let state = dir.path().join("two");
    let (code, said) = refusal([
        "quiet",
        "serve",
        "--dry-run",
        "--state",
        state.to_str().unwrap(),
        "--metrics",
        address,
    ]);
    assert!(code == Some(2) && said.contains("choose another address"), "{said}");
}

#[test]
fn unprivileged_mechanisms_report_missing_rights() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let state = dir.path().join("state");
    let mut command = hiroma(["quiet", "serve", "--state", state.to_str().unwrap()]);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            return hiroma_testkit::skip!(
                Machine,
                "another user cannot start the command here: {error}"
            );
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for expected in [
        "nothing can be done for quiet here",
        "node reclaim (Linux 6.17, root)",
        "memory.reclaim (Linux 5.19",
        "no --app-cpus",
        "fadvise on the files",
    ] {
        assert!(said.contains(expected), "{expected} is missing in {said}");
    }
}

#[test]
fn daemon_and_restore_work_after_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    drop(DryRun::start(dir.path()));
    let (code, said) = refusal(["quiet", "restore", "--state", dir.path().to_str().unwrap()]);
    assert!(code == Some(0) && said.contains("nothing has to be put back"), "{said}");
    drop(DryRun::start(dir.path()));
}

#[test]
fn processors_must_be_left_for_reclaim() {
    let dir = tempfile::tempdir().unwrap();
    let all = fs::read_to_string("/proc/self/status").unwrap();
    let all = all
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim()
        .to_owned();
    let state = dir.path().to_str().unwrap();
    let (code, said) =
        refusal(["quiet", "serve", "--dry-run", "--state", state, "--app-cpus", &all]);
    assert!(code == Some(2) && said.contains("no processor would be left"), "{said}");
}

#[test]
fn bsp_runs_over_processes_and_shows_last_rank() {
    let dir = tempfile::tempdir().unwrap();
    let (json, html) = (dir.path().join("bsp.json"), dir.path().join("bsp.html"));
    let mut first = hiroma([
        "quiet",
        "bsp",
        "--steps",
        "20",
        "--step-us",
        "200",
        "--listen",
        "127.0.0.1:0",
        "--processes",
        "2",
    ]);
    first.args(["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()]);
    let mut first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(first.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line
        .split(' ')
        .find(|word| word.starts_with("127.0.0.1:"))
        .unwrap_or_else(|| panic!("{line}"));
    let second = output(["quiet", "bsp", "--no-bpf", "--connect", address]);
    let text = String::from_utf8(second.stdout).unwrap();
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    assert!(
        text.contains("20 steps of 0.200 ms")
            && text.contains("Who came last")
            && text.contains("there is no BPF"),
        "{text}"
    );
    assert!(first.wait().unwrap().success());
    let written: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(written["results"].as_array().unwrap().len(), 4);
    assert_eq!(fs::read_to_string(&html).unwrap().matches("<svg").count(), 2);
    for (args, expected) in [
        (vec!["--cpus", "1023"], "cannot be used here"),
        (vec!["--listen", "127.0.0.1:0"], "--processes"),
        (vec!["--connect", "127.0.0.1:1"], "is `hiroma quiet bsp --listen` running there?"),
        (vec!["--connect", "nowhere"], "write one like 10.0.0.1:7171"),
        (vec!["--alloc", "1x"], "invalid value"),
    ] {
        let (code, said) = refusal(["quiet", "bsp"].into_iter().chain(args.clone()));
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}

#[test]
fn advice_shows_evidence_and_remedies() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        output(["quiet", "advise", "--seconds", "1", "--state", dir.path().to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("kswapd ran")
            && text.contains("the file cache fills at")
            && text.contains("  1. "),
        "{text}"
    );
    let (code, said) = refusal(["quiet", "advise", "--seconds", "0"]);
    assert!(code == Some(2) && said.contains("1..=600"), "{said}");
}
