//! `hiroma bench real` with one small program in all arms: what it counts, what it leaves behind,
//! and how it resumes.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{compile, output};
use serde_json::Value;

/// Fills 96 MiB with compressible data, passes over it twice, and then runs long enough to be
/// observed.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    size_t words = (size_t)96 << 17;
    unsigned long *memory = malloc(words * 8), sum = 0;
    for (size_t i = 0; i < words; i++) memory[i] = i >> 9;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < words; i += 64) sum += memory[i];
    usleep(150000);
    printf("%lu\n", sum);
    return 0;
}
"#;
const ARMS: [&str; 6] = ["zram", "swap-file", "zswap", "compressed", "default", "tcp"];

/// Serializes the tests: files that one test makes would look like leftovers of another one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state that a run must leave unchanged.
fn machine() -> (String, BTreeSet<String>, String) {
    let names = |dir: &str, prefix: &str| {
        let entries = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        entries.filter(|name| name.starts_with(prefix)).collect::<Vec<_>>()
    };
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let swaps = swaps.lines().filter(|line| line.contains("hiroma-bench")).collect();
    let made = [
        names("/sys/block", "zram"),
        names("/sys/fs/cgroup/memory", "hiroma-bench"),
        names("/sys/fs/cgroup", "hiroma-bench"),
    ];
    (
        swaps,
        made.into_iter().flatten().collect(),
        fs::read_to_string("/sys/module/zswap/parameters/enabled").unwrap_or_default(),
    )
}

/// A refusal of `hiroma bench`, which is built first.
fn refused<const N: usize>(args: [&str; N]) -> (Option<i32>, String) {
    common::bench();
    common::refusal(args)
}

fn bench(json: &Path, document: &Path, program: &Path) -> Output {
    common::bench();
    let arms = ARMS.join(",");
    let mut args = vec![
        "bench",
        "real",
        "--at",
        "75",
        "--repetitions",
        "1",
        "--patience",
        "200",
        "--append",
        "--arms",
        &arms,
        "--json",
    ];
    args.extend([
        json.to_str().unwrap(),
        "--document",
        document.to_str().unwrap(),
        "--",
        program.to_str().unwrap(),
    ]);
    output(args)
}

#[test]
fn each_arm_uses_equal_total_and_cleans_up() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "program", PROGRAM, &["-O1"]);
    let (json, document) = (dir.path().join("real.json"), dir.path().join("README.md"));
    fs::write(&document, "# Before\n<!-- results: begin -->\nold\n<!-- results: end -->\n")
        .unwrap();
    let before = machine();
    let ended = bench(&json, &document, &program);
    let said = String::from_utf8_lossy(&ended.stderr);
    if ended.status.code() == Some(2) && said.contains("skipped") {
        hiroma_testkit::skip!(Machine, "{said}");
        return;
    }
    assert!(ended.status.success(), "{said}");
    assert_eq!(machine(), before, "{said}");
    let read = || serde_json::from_slice::<Value>(&fs::read(&json).unwrap()).unwrap();
    let results = read();
    for arm in ARMS {
        let cells = results["cells"].as_array().unwrap();
        let cell = cells
            .iter()
            .find(|cell| cell["arm"] == arm)
            .unwrap_or_else(|| panic!("no {arm} in {results}"));
        if let Some(reason) = cell["end"]["skipped"].as_str() {
            hiroma_testkit::skip!(Machine, "{arm}: {reason}");
            continue;
        }
        assert!(cell["end"].is_null(), "{cell}");
        let (target, total) = (
            cell["target_bytes"].as_u64().unwrap(),
            cell["runs"][0]["total_bytes"].as_u64().unwrap(),
        );
        assert!(target > 70 << 20 && total <= target + (target / 32).max(2 << 20), "{cell}");
        let remote = cell["runs"][0]["remote_bytes"].as_u64().unwrap();
        assert_eq!(remote > 8 << 20, arm == "tcp", "{cell}");
    }
    let text = fs::read_to_string(&document).unwrap();
    assert!(
        text.starts_with("# Before\n")
            && text.contains("### Programs with 75% of their memory")
            && !text.contains("old"),
        "{text}"
    );

    // All cells have results: none is run again.
    let ended = bench(&json, &document, &program);
    assert!(
        ended.status.success() && !String::from_utf8_lossy(&ended.stderr).contains("natively"),
        "{ended:?}"
    );
    assert_eq!(read()["cells"], results["cells"]);
}

#[test]
fn timeouts_kills_and_wrong_output_are_reported() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    for (does, end) in [("sleep 60", "stopped"), ("kill -9 $$", "killed"), ("echo other", "failed")]
    {
        let (json, marker) = (dir.path().join(format!("{end}.json")), dir.path().join(end));
        // The native run comes first.
        let script =
            format!("if [ -e {0} ]; then {does}; fi; touch {0}; echo done", marker.display());
        let args = [
            "bench",
            "real",
            "--at",
            "50",
            "--repetitions",
            "1",
            "--arms",
            "default",
            "--json",
            json.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            &script,
        ];
        let ended = output(args);
        let said = String::from_utf8_lossy(&ended.stderr);
        if ended.status.code() == Some(2) && said.contains("skipped") {
            hiroma_testkit::skip!(Machine, "{said}");
            return;
        }
        assert!(ended.status.success(), "{said}");
        let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        let cell = results["cells"]
            .as_array()
            .unwrap()
            .iter()
            .find(|cell| cell["arm"] == "default")
            .unwrap();
        assert!(cell["end"] == end || cell["end"].get(end).is_some(), "{cell}");
    }
}

#[test]
fn unknown_names_and_foreign_files_are_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.json");
    fs::write(&other, "{\"results\": []}").unwrap();
    let (code, said) = refused(["bench", "real", "--only", "sorts"]);
    assert!(
        code == Some(2) && said.contains("java-serial") && said.contains("random-read-t2"),
        "{said}"
    );
    let (code, said) =
        refused(["bench", "real", "--append", "--json", other.to_str().unwrap(), "--only", "sort"]);
    assert!(
        code == Some(2)
            && (said.contains("no `cells`") || said.contains("root") || said.contains("skipped")),
        "{said}"
    );
    assert_eq!(refused(["bench", "real", "--append"]).0, Some(2));
    assert_eq!(refused(["bench", "real", "--items", "all"]).0, Some(2));
}
