//! Accessed bits under `hiroma run`: a hot set that is used beside cold memory stays local.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{HIROMA, compile, hiroma};
use hiroma_testkit::skip;
use serde_json::Value;

/// Uses 12 MiB all the time, and single pages of 64 MiB at random; all of it is verified.
const HOT_AND_COLD: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(void) {
    size_t hot = 3 << 10, cold = 16 << 10, turns = 40000;
    unsigned long *memory = mmap(0, (hot + cold) * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long seed = 1, wrong = 0;
    for (size_t i = 0; i < (hot + cold) * 512; i++) memory[i] = i * 0x9e3779b97f4a7c15UL;
    for (size_t turn = 0; turn < turns; turn++)
        for (int use = 0; use < 9; use++) {
            seed = seed * 6364136223846793005UL + 1442695040888963407UL;
            size_t page = use ? (seed >> 33) % hot : hot + (seed >> 33) % cold;
            wrong += memory[page * 512] != page * 512 * 0x9e3779b97f4a7c15UL;
        }
    puts(wrong ? "wrong" : "right");
    return wrong != 0;
}
"#;

/// Runs the program with `hiroma run` as the last part of `command`; returns its statistics.
fn run(mut command: Command, dir: &Path, options: &[&str]) -> (Value, String) {
    let program = compile(dir, "hot-and-cold", HOT_AND_COLD, &[]);
    let file = dir.join("stats.json");
    command.args(["run", "--local", "32M", "--block", "4K", "--no-prefetch", "--stats"]).arg(&file);
    let output = command.args(options).arg("--").arg(program).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && output.stdout == b"right\n", "{said}");
    (serde_json::from_slice(&fs::read(&file).unwrap()).unwrap(), said)
}

fn count(stats: &Value, counter: &str) -> u64 {
    stats["total"][counter].as_u64().unwrap()
}

#[test]
fn a_hot_set_stays_local_beside_cold_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (blind, _) = run(hiroma::<&str>([]), dir.path(), &["--no-accessed-bits"]);
    assert_eq!(count(&blind, "accessed_reads"), 0);
    let (seeing, _) = run(hiroma::<&str>([]), dir.path(), &[]);
    if let Some(why) = seeing["accessed_bits_missing"].as_str() {
        return skip!(Bpf, "{why}");
    }
    assert!(count(&seeing, "accessed_reads") > 0);
    let (with, without) = (count(&seeing, "faults_fetched"), count(&blind, "faults_fetched"));
    assert!(with * 10 < without * 9, "{with} fetches with accessed bits, {without} without");
}

#[test]
fn unprivileged_run_explains_missing_bits_and_stays_correct() {
    let dir = tempfile::tempdir().unwrap();
    let caps = "--bounding-set=-sys_admin,-bpf,-perfmon,-sys_nice";
    let without = || {
        let mut command = Command::new("setpriv");
        for (name, value) in hiroma::<&str>([]).get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.args([caps, HIROMA]);
        command
    };
    let works = without().args(["run", "--local", "32M", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return skip!(Root, "setpriv cannot drop capabilities here");
    }
    let (stats, said) = run(without(), dir.path(), &[]);
    match stats["accessed_bits_missing"].as_str() {
        Some(why) => assert!(said.contains(why), "{said}"),
        // There are kernels on which root needs no capability for it.
        None => assert!(count(&stats, "accessed_reads") > 0),
    }
    let lacks: Vec<&str> =
        stats["lacks"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    assert!(lacks.iter().any(|what| what.contains("SCHED_IDLE")), "{lacks:?}");
    assert!(lacks.iter().all(|what| said.contains(what)), "{said}");
}

#[test]
fn killed_run_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "hot-and-cold", HOT_AND_COLD, &[]);
    let mut command = hiroma(["run", "--quiet", "--local", "32M"]);
    command.env("XDG_RUNTIME_DIR", dir.path()).arg("--").arg(program).stdout(Stdio::null());
    let mut run = command.spawn().unwrap();
    let files = dir.path().join(format!("hiroma/run-{}", run.id()));
    let has_board = || {
        let entries = fs::read_dir(&files).into_iter().flatten().flatten();
        entries
            .into_iter()
            .any(|entry| entry.path().extension().is_some_and(|ext| ext == "accessed"))
    };
    let wait_until = |is_so: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !is_so() && since.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_millis(5));
        }
        is_so()
    };
    assert!(wait_until(&has_board), "no board in {}", files.display());
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(wait_until(&|| !files.exists()), "{:?}", fs::read_dir(&files).map(Vec::from_iter));
}
