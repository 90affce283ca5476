//! Page-outs of a program, recorded while it runs and replayed in the simulator.

mod common;

use std::fs;
use std::path::Path;
use std::process::Output;

use common::{compile, hiroma, output};
use serde_json::Value;

/// Fills memory far beyond any limit in these tests, has it evicted and faulted in again, forks,
/// and ends as its arguments require: with an exit code, or by a signal.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static size_t words = (size_t)64 << 17;
static unsigned long *memory;
static void fill(unsigned long seed) {
    for (size_t i = 0; i < words; i++) memory[i] = seed = seed * 6364136223846793005UL + 1442695040888963407UL;
}
static int check(unsigned long seed) {
    for (size_t i = 0; i < words; i++)
        if (memory[i] != (seed = seed * 6364136223846793005UL + 1442695040888963407UL)) return 1;
    return 0;
}
int main(int argc, char **argv) {
    memory = malloc(words * 8);
    fill(1);
    if (check(1)) return puts("wrong"), 1;
    fill(2);
    if (check(2)) return puts("wrong"), 1;
    if (argc > 1 && !strcmp(argv[1], "fork")) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            fill(3);
            _exit(check(3));
        }
        if (waitpid(child, &status, 0) != child || status != 0 || check(2)) return puts("wrong in one of two"), 1;
    }
    if (argc > 1 && !strcmp(argv[1], "kill")) raise(SIGKILL);
    return 0;
}
"#;

/// Runs the program and returns its statistics.
fn record(dir: &Path, name: &str, args: &[&str], options: &[&str]) -> (Output, Value) {
    let program = compile(dir, name, PROGRAM, &[]);
    let file = |end: &str| dir.join(format!("{name}.{end}"));
    let mut command = hiroma(["run", "--local", "16M", "--store", "compressed:512M"]);
    command.arg("--trace").arg(file("trace")).arg("--stats").arg(file("json")).args(options);
    let ended = command.arg("--").arg(program).args(args).output().unwrap();
    let stats = fs::read(file("json"))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    (ended, stats)
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {value}"))
}

/// Compares the pages that were written to the stores with those in the trace.
///
/// A process can also end between two steps of its pager: one block, of 2 MiB at most, may be in
/// one count and not in the other.
fn assert_complete(stats: &Value) {
    let recorded = number(stats, "/trace/page_outs") + number(stats, "/trace/lost");
    let written = number(stats, "/total/written_bytes") / number(stats, "/trace/page_bytes");
    assert!(
        written > 0 && recorded.abs_diff(written) <= (2 << 20) / number(stats, "/trace/page_bytes"),
        "{stats}"
    );
}

/// Replays a trace; returns the figures of the run.
fn replay(traces: &[&Path], json: &Path) -> (String, Value) {
    let mut args: Vec<&str> = vec!["sim", "replay"];
    args.extend(traces.iter().map(|path| path.to_str().unwrap()));
    args.extend(["--json", json.to_str().unwrap()]);
    let replayed = output(args);
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    let figures: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    (String::from_utf8(replayed.stdout).unwrap(), figures["runs"][0].clone())
}

#[test]
fn evictions_of_a_program_are_recorded_and_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let (ended, stats) = record(dir.path(), "plain", &[], &[]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!((number(&stats, "/trace/nodes"), number(&stats, "/trace/page_bytes")), (1, 4096));
    assert_complete(&stats);
    let (text, run) = replay(&[&dir.path().join("plain.trace")], &dir.path().join("run.json"));
    let (outs, ins) = (number(&stats, "/trace/page_outs"), number(&stats, "/trace/page_ins"));
    assert!(text.starts_with(&format!("{outs} page-outs, {ins} page-ins and ")), "{text}");
    // Every page-out of the trace leaves its node in the simulated cluster, unless the page was out
    // already; then it is counted as skipped.
    let figure = |name: &str| run[name].as_f64().unwrap_or(0.0) as u64;
    assert_eq!(
        figure("page_outs") - figure("replay_drops") + figure("replay_skipped"),
        outs,
        "{run}"
    );
    assert!(figure("faults") > 0 && figure("faults") <= ins, "{run}");
}

#[test]
fn trace_is_complete_after_program_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (ended, stats) = record(dir.path(), "killed", &["kill"], &["--block", "64K", "--quiet"]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(9), "{ended:?}");
    assert_eq!(number(&stats, "/trace/page_bytes"), 64 << 10);
    assert_complete(&stats);
    replay(&[&dir.path().join("killed.trace")], &dir.path().join("run.json"));
}

#[test]
fn forked_child_is_a_node_and_traces_merge() {
    let dir = tempfile::tempdir().unwrap();
    let (ended, stats) = record(dir.path(), "forking", &["fork"], &[]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(number(&stats, "/trace/nodes"), 2);
    assert_complete(&stats);
    let trace = dir.path().join("forking.trace");
    let (text, _) = replay(&[&trace, &trace], &dir.path().join("run.json"));
    assert!(text.contains(" of 4 nodes, pages of 4096 bytes"), "{text}");
}

#[test]
fn unwritable_trace_prevents_program_start() {
    let dir = tempfile::tempdir().unwrap();
    for (target, why) in [
        ("/nonexistent/t.bin", "No such file or directory"),
        (dir.path().to_str().unwrap(), "Is a directory"),
    ] {
        let refused = output([
            "run",
            "--trace",
            target,
            "--",
            "touch",
            dir.path().join("started").to_str().unwrap(),
        ]);
        assert_eq!(refused.status.code(), Some(2));
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(message.starts_with(&format!("hiroma: --trace {target}: {why}")), "{message}");
    }
    assert!(!dir.path().join("started").exists());
}
