//! Records a program for the policy lab, with both tools that see every access.

mod common;

use std::path::Path;
use std::process::Command;

use hiroma_far_lab::{Costs, Trace, policies::Kind};

/// Records `sort` of `lines` lines.
fn record(tool: &str, lines: usize, dir: &Path) -> Trace {
    let (input, out) = (dir.join("lines"), dir.join(tool));
    let text: String =
        (0..lines).map(|at| format!("{} some text\n", at * 7919 % 100_003)).collect();
    std::fs::write(&input, text).unwrap();
    let mut command = Command::new(common::bench());
    command.args(["policy", "record", "--tool", tool, "--out"]).arg(&out);
    let output = command
        .args(["--", "/usr/bin/sort", "--parallel=1", "-S", "4M"])
        .arg(&input)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Trace::read(&std::fs::read(&out).unwrap()).unwrap()
}

#[test]
fn both_recorders_see_the_same_memory() {
    if !Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        hiroma_testkit::skip!(Machine, "valgrind is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = record("pages", 60_000, dir.path());
    assert_eq!((trace.header.program.as_str(), trace.header.window), ("sort", 32));
    assert!(trace.touched > 256 && trace.header.references > 1_000_000, "{:?}", trace.header);
    let misses = |kind: Kind, share: usize| {
        kind.simulate(&trace, trace.touched * share / 4, &Costs::default()).fetches
    };
    assert!(
        misses(Kind::Belady, 2) > 0
            && misses(Kind::Belady, 2) <= misses(Kind::Lru, 2)
            && misses(Kind::Lru, 2) <= misses(Kind::Lru, 1)
    );
    assert_eq!(misses(Kind::Lru, 4), 0);

    let (ours, lackey) = (record("pages", 50, dir.path()), record("lackey", 50, dir.path()));
    assert!(
        ours.touched.abs_diff(lackey.touched) <= 2,
        "{} and {} pages",
        ours.touched,
        lackey.touched
    );
    let (few, many) = (
        ours.header.references.min(lackey.header.references),
        ours.header.references.max(lackey.header.references),
    );
    assert!(many - few <= many / 50, "{few} and {many} references");
}
