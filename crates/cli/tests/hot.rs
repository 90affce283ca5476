//! `hiroma hot` on real processes.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::HIROMA;
use common::hot::{Load, hot, manage_once, possible, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const HUGE: u64 = 2 << 20;

/// Counts of pages by address, from `hot show`.
fn counts(load: &Load, extra: &[&str]) -> BTreeMap<u64, u64> {
    let pid = load.pid();
    let mut args = vec!["show", "--pid", &pid, "--for", "1ms", "--json"];
    args.extend(extra);
    let output = hot(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut counts = BTreeMap::new();
    for run in shown["ranges"].as_array().unwrap() {
        let (start, end) = (run["start"].as_u64().unwrap(), run["end"].as_u64().unwrap());
        for page in (start..end)
            .step_by(4096)
            .filter(|page| (load.base..load.base + load.bytes).contains(page))
        {
            counts.insert(page, run["count"].as_u64().unwrap());
        }
    }
    counts
}

#[test]
fn show_separates_touched_from_untouched_pages() {
    if !possible() {
        return;
    }
    shown_by("bpf", 16);
}

#[test]
fn show_separates_pages_with_clear_refs() {
    if !possible() {
        return;
    }
    // More pages than the processor caches translations for: only pages whose translation it walks
    // again are seen.
    shown_by("bpf-clear-refs", 64);
}

fn shown_by(backend: &str, mib: u64) {
    let load = Load::start(mib, "scattered", |_| {});
    // Long windows on a small process: a touched page is found soon even on a busy machine.
    let deadline = Instant::now() + LIMIT;
    loop {
        let counts = counts(&load, &["--backend", backend, "--window", "300ms"]);
        assert_eq!(counts.len() as u64, load.bytes / 4096);
        let hot = counts.values().filter(|&&count| count > 0).count();
        // A third of the pages is touched; a page that is not touched is never counted.
        assert!(hot * 100 < counts.len() * 40, "{hot} of {}", counts.len());
        if hot * 100 > counts.len() * 25 {
            break;
        }
        assert!(Instant::now() < deadline, "only {hot} of {} pages were found", counts.len());
    }
}

#[test]
fn show_writes_lines_and_an_image() {
    let load = Load::start(8, "sequential", |_| {});
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("heat.png");
    let output =
        hot(&["show", "--pid", &load.pid(), "--for", "1ms", "--png", picture.to_str().unwrap()]);
    if !output.status.success() {
        hiroma_testkit::skip!(Machine, "{}", text(&output.stderr));
        return;
    }
    let shown = text(&output.stdout);
    assert!(
        shown.starts_with(&format!("# process {}", load.pid())) && shown.contains("tracked with"),
        "{shown}"
    );
    let is_range = |line: &str| {
        line.split_once(" : ").is_some_and(|(range, _)| range.split_once('-').is_some())
    };
    assert!(shown.lines().filter(|line| !line.starts_with('#')).all(is_range), "{shown}");
    assert_eq!(&fs::read(&picture).unwrap()[..8], b"\x89PNG\r\n\x1a\n");
}

#[test]
fn page_shared_with_a_child_is_not_counted() {
    if !possible() {
        return;
    }
    // After the fork every page is shared until it is written to. The pattern writes, so the pages
    // that it does not touch stay shared.
    let load = Load::start(8, "scattered", |job| job["forks"] = json!(true));
    let counts = counts(&load, &["--backend", "bpf", "--window", "100ms"]);
    let hot = counts.values().filter(|&&count| count > 0).count();
    assert!(
        hot * 100 < counts.len() * 40,
        "{hot} of {} pages: what cannot be forgotten was counted",
        counts.len()
    );
}

#[test]
fn damon_in_use_is_not_disturbed() {
    let owners = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    let before = fs::read_to_string(owners).unwrap_or_default();
    if before.is_empty() || before.trim() == "0" {
        hiroma_testkit::skip!(Machine, "nobody uses DAMON here");
        return;
    }
    let load = Load::start(4, "sequential", |_| {});
    let output = hot(&["show", "--pid", &load.pid(), "--for", "1ms", "--backend", "damon"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(
        said.contains("damon:")
            && (said.contains("DAMON is already in use") || said.contains("Linux 6.7")),
        "{said}"
    );
    assert_eq!(fs::read_to_string(owners).unwrap(), before);
}

#[test]
fn manage_collapses_explains_and_undoes() {
    if !possible() {
        return;
    }
    let load = Load::start(64, "skewed", |_| {});
    let pid = load.pid();
    // A dry run changes nothing.
    let dry = hot(&["manage", "--pid", &pid, "--dry-run", "--once", "--cpu", "50%"]);
    assert!(
        dry.status.success() && text(&dry.stderr).contains("would become huge"),
        "{}",
        text(&dry.stderr)
    );
    assert_eq!(load.huge_bytes(), 0);
    let told = text(&hot(&["explain", "--pid", &pid, "--all"]).stdout);
    assert!(told.contains("would be huge") && told.contains("nothing is huge now"), "{told}");
    let deadline = Instant::now() + LIMIT;
    // On a busy machine a call may find nothing to do because the process has not run yet.
    while load.huge_bytes() == 0 {
        assert!(Instant::now() < deadline, "nothing became huge");
        let managed = manage_once(&load, &[]);
        assert!(managed.status.success(), "{}", text(&managed.stderr));
    }
    let huge = load.huge_bytes();
    // A third is hot; the rest stays small. (How many of so few ranges are hot depends on the
    // pattern.)
    assert!(huge < load.bytes / 2, "{huge}");
    let told = text(&hot(&["explain", "--pid", &pid, "--all"]).stdout);
    assert!(
        told.contains("collapsed: ")
            && told.contains("huge now")
            && told.contains("nothing more to do"),
        "{told}"
    );
    let lines = text(&hot(&["explain", "--pid", &pid, "--json"]).stdout);
    assert!(
        lines
            .lines()
            .all(|line| serde_json::from_str::<Value>(line)
                .is_ok_and(|entry| entry["what"].is_string())),
        "{lines}"
    );
    let undone = hot(&["undo", "--pid", &pid]);
    assert!(undone.status.success(), "{}", text(&undone.stderr));
    assert_eq!(load.huge_bytes(), 0);
}

#[test]
fn manage_respects_the_budget() {
    if !possible() {
        return;
    }
    let load = Load::start(32, "sequential", |_| {});
    let managed = manage_once(&load, &["--budget", "6M"]);
    assert!(managed.status.success(), "{}", text(&managed.stderr));
    assert!(load.huge_bytes() <= 3 * HUGE);
}

#[test]
fn second_manager_on_one_process_is_refused() {
    if !possible() {
        return;
    }
    let load = Load::start(8, "sequential", |_| {});
    let mut first = Command::new(HIROMA);
    first.args(["hot", "manage", "--pid", &load.pid()]).stderr(Stdio::piped());
    let mut first = first.spawn().unwrap();
    let mut said = String::new();
    // It prints this once it has the ledger.
    BufReader::new(first.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("tracked with"), "{said}");
    let second = hot(&["manage", "--pid", &load.pid()]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let expected = format!("is managed by process {} already", first.id());
    assert!(text(&second.stderr).contains(&expected), "{}", text(&second.stderr));
}

#[test]
fn process_refusing_huge_pages_is_left_alone() {
    let load = Load::start(8, "sequential", |job| job["refuses_huge"] = json!(true));
    let managed = hot(&["manage", "--pid", &load.pid()]);
    assert_eq!(managed.status.code(), Some(2));
    assert!(text(&managed.stderr).contains("PR_SET_THP_DISABLE"), "{}", text(&managed.stderr));
    assert_eq!(load.huge_bytes(), 0);
}

#[test]
fn missing_or_ended_process_is_reported() {
    for command in ["show", "manage"] {
        let missing = hot(&[command, "--pid", "4194303"]);
        assert_eq!(missing.status.code(), Some(2));
        assert!(text(&missing.stderr).contains("no process 4194303"), "{}", text(&missing.stderr));
    }
    let nothing = hot(&["explain", "--pid", "4194303"]);
    assert!(
        !nothing.status.success() && text(&nothing.stderr).contains("not managed"),
        "{}",
        text(&nothing.stderr)
    );
    if !possible() {
        return;
    }
    let mut load = Load::start(8, "sequential", |_| {});
    let mut manager = Command::new(HIROMA);
    manager.args(["hot", "manage", "--pid", &load.pid()]).stderr(Stdio::piped());
    let manager = manager.spawn().unwrap();
    load.child.kill().unwrap();
    load.child.wait().unwrap();
    let ended = manager.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert!(
        said.contains("the process ended")
            || said.contains("has ended")
            || said.contains("no process"),
        "{said}"
    );
}

/// What is said of options that are refused.
fn refusal(args: &[&str]) -> String {
    let output = hot(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    text(&output.stderr).to_string()
}

#[test]
fn invalid_options_are_refused_up_front() {
    for args in [
        ["manage", "--pid", "1", "--budget", "0"],
        ["manage", "--pid", "1", "--growth", "200%"],
        ["manage", "--pid", "1", "--threshold", "513"],
        ["manage", "--pid", "1", "--backend", "magic"],
        ["show", "--pid", "1", "--window", "5h"],
        ["show", "--pid", "1", "--window", "0s"],
        ["show", "--pid", "1", "--window", "long"],
        ["show", "--pid", "1", "--cpu", "0%"],
    ] {
        let said = refusal(&args);
        assert!(said.contains(args[4]), "{args:?}: {said}");
    }
    // A value below zero is a value, and not an option.
    for args in [
        ["manage", "--pid", "1", "--growth", "-3%"],
        ["manage", "--pid", "1", "--threshold", "-1"],
        ["manage", "--pid", "1", "--stall", "-1ms"],
        ["show", "--pid", "1", "--window", "-1s"],
        ["run", "--keep", "-1s", "--", "true"],
    ] {
        let said = refusal(&args);
        assert!(said.contains("invalid value '-"), "{args:?}: {said}");
    }
    for args in [
        ["--only", "magic"],
        ["--sizes", "3M"],
        ["--sizes", "1M"],
        ["--sizes", "1G,4000T"],
        ["--sizes", "many"],
    ] {
        let output = Command::new(common::bench())
            .arg("huge")
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(
            output.stdout.is_empty()
                && text(&output.stderr).contains(args[1].rsplit(',').next().unwrap()),
            "{args:?}"
        );
    }
    let output = hot(&["manage", "--pid", "0"]);
    assert!(text(&output.stderr).contains("no process 0"), "{}", text(&output.stderr));
}

#[test]
fn run_says_at_once_that_a_program_is_not_managed() {
    let mut run = Command::new(HIROMA)
        .args(["hot", "run", "--", "sleep", "600"])
        .env("HIROMA_HOT_PRETEND", "thp-never")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(run.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    // It is passed on to the program.
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    run.wait().unwrap();
    assert!(said.contains("the program runs without huge pages of ours"), "{said}");
}

#[test]
fn run_passes_exit_codes() {
    let output = hot(&["run", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "out\n"));
    let output = hot(&["run", "--", "no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
}

#[test]
fn unprivileged_user_is_told_the_missing_rights() {
    if !rustix::process::geteuid().is_root() {
        hiroma_testkit::skip!(Root, "only root can become nobody");
        return;
    }
    let load = Load::start(4, "sequential", |_| {});
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        hiroma_testkit::skip!(Machine, "there is no setpriv");
        return;
    }
    // A copy that user `nobody` can execute, whatever directory the tests are built in.
    let dir = tempfile::Builder::new().prefix("hiroma-hot").tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = dir.path().join("hiroma");
    fs::copy(HIROMA, &copy).unwrap();
    let nobody = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let asked = |command: &str, pid: &str, more: &[&str]| {
        let mut asking = Command::new(nobody[0]);
        asking.args(&nobody[1..]).arg(&copy).args(["hot", command, "--pid", pid]).args(more);
        let output = asking.env("XDG_RUNTIME_DIR", dir.path()).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for command in ["show", "manage"] {
        let (code, _, said) = asked(command, &load.pid(), &[]);
        assert_eq!(code, Some(2), "{said}");
        if command == "show" || !said.contains("cannot have huge pages") {
            assert!(
                said.contains("bpf:")
                    && said.contains("smaps:")
                    && said.contains("no right to look into process"),
                "{said}"
            );
        }
    }
    // A user can track an own process, with a backend that requires no rights.
    let mut own =
        Command::new(nobody[0]).args(&nobody[1..]).args(["sleep", "600"]).spawn().unwrap();
    let pid = own.id().to_string();
    common::wait_until("setpriv to become sleep", || {
        fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == "sleep"
    });
    let shown = asked("show", &pid, &["--for", "1ms"]);
    let refused = asked("show", &pid, &["--for", "1ms", "--backend", "bpf"]);
    own.kill().unwrap();
    own.wait().unwrap();
    assert!(shown.0 == Some(0) && shown.1.contains("tracked with smaps"), "{shown:?}");
    assert!(refused.0 == Some(2) && refused.2.contains("bpf: "), "{refused:?}");
}

#[test]
fn killed_manager_is_reported_and_can_be_replaced() {
    if !possible() {
        return;
    }
    let load = Load::start(8, "sequential", |_| {});
    let pid = load.pid();
    let mut first = Command::new(HIROMA);
    first
        .args([
            "hot", "manage", "--cpu", "50%", "--stall", "60s", "--window", "50ms", "--pid", &pid,
        ])
        .stderr(Stdio::null());
    let mut first = first.spawn().unwrap();
    common::wait_until("something to be huge", || load.huge_bytes() > 0);
    first.kill().unwrap();
    first.wait().unwrap();
    let told = text(&hot(&["explain", "--pid", &pid]).stdout);
    assert!(
        told.contains(&format!("its manager (process {}) ended without a word", first.id())),
        "{told}"
    );
    // The program keeps its huge pages, and nothing that the first manager left obstructs the next
    // one.
    let second = hot(&["manage", "--once", "--pid", &pid, "--cpu", "50%"]);
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert!(!text(&hot(&["explain", "--pid", &pid]).stdout).contains("without a word"));
}

#[test]
fn children_end_with_a_killed_measurement() {
    let script = "\"$0\" with-parent --parent $$ -- sleep 600 & echo $!; wait";
    let mut parent = Command::new("sh")
        .args(["-c", script])
        .arg(common::bench())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let of = |file: &str| {
        fs::read_to_string(format!("/proc/{}/{file}", line.trim())).unwrap_or_default()
    };
    common::wait_until("the program to run", || of("comm").trim() == "sleep");
    parent.kill().unwrap();
    parent.wait().unwrap();
    // The process that inherits it may reap it late.
    common::wait_until("the program to end", || {
        of("stat").is_empty() || of("stat").contains(") Z")
    });
    // A `with-parent` that starts after its parent has ended does not start the program.
    let late = Command::new(common::bench())
        .args(["with-parent", "--parent", "1", "--", "echo", "started"])
        .output()
        .unwrap();
    assert!(!late.status.success() && late.stdout.is_empty());
}
