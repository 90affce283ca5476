//! Sweeps as users run them: interrupted, in shards, with several threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hiroma_sim_lab::jobs::Stop;
use hiroma_sim_lab::lab::{Lab, LabError};
use hiroma_sim_lab::settings::Settings;
use hiroma_sim_lab::sweep::{self, Done, Merged, Plan, Shard, Store, StoreError, SweepError};

/// Twelve runs of a few milliseconds.
const SWEEP: &str = "\
seeds = 3
[cluster]
topology.dims = [4, 4]
disk.count = 2
policy.domain_radius = 2
run.warmup_ns = \"1ms\"
run.duration_ns = \"10ms\"
[grid]
load.arrivals_per_s = [40, 80]
policy.placement = [\"nearest\", \"random\"]
";

fn plan(text: &str) -> Plan {
    Plan::of(Settings::parse("sweep.toml", text).unwrap(), Path::new(".")).unwrap()
}

fn run(plan: &Plan, shard: &str, threads: usize, directory: &Path) -> Done {
    let stop = Stop::new();
    let store = Store::open(directory, plan).unwrap();
    sweep::run(
        plan,
        shard.parse().unwrap(),
        &store,
        &Lab { threads, stop: &stop, advance: &|_| (), lacking: &|_| None },
    )
    .unwrap()
}

/// Every file below a directory.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(
                files(&entry.path())
                    .into_iter()
                    .map(|(below, bytes)| (format!("{name}/{below}"), bytes)),
            );
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

#[test]
fn threads_and_shards_give_identical_bytes() {
    let (plan, alone, many) =
        (plan(SWEEP), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(run(&plan, "1/1", 1, alone.path()), Done { kept: 0, run: 12 });
    for shard in ["3/5", "1/5", "5/5", "2/5", "4/5"] {
        run(&plan, shard, 3, many.path());
    }
    let (one, other) = (files(alone.path()), files(many.path()));
    assert_eq!(one.len(), 13, "twelve points and what sweep it is");
    assert!(one == other);
    let merged = |directory: &Path| Merged::of(&Store::find(directory).unwrap()).unwrap();
    assert_eq!(merged(alone.path()).to_csv(), merged(many.path()).to_csv());
    assert_eq!(merged(alone.path()).to_json(), merged(many.path()).to_json());
    let lines = merged(alone.path()).to_csv();
    assert!(lines.lines().nth(1).unwrap().starts_with("40,nearest,3,"), "{lines}");
}

#[test]
fn interrupted_sweep_resumes() {
    let (plan, directory, whole) =
        (plan(SWEEP), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(&plan, "1/1", 2, whole.path());
    let store = Store::open(directory.path(), &plan).unwrap();
    let stop = Stop::new();
    let mut after = std::sync::atomic::AtomicUsize::new(0);
    // Simulates Ctrl-C after about five runs.
    let advance = |part: f64| {
        let done =
            after.fetch_add((part * 1000.0).round() as usize, std::sync::atomic::Ordering::Relaxed);
        if done > 5000 {
            stop.set();
        }
    };
    let ended = sweep::run(
        &plan,
        Shard::ALL,
        &store,
        &Lab { threads: 1, stop: &stop, advance: &advance, lacking: &|_| None },
    );
    assert!(matches!(ended, Err(SweepError::Lab(LabError::Interrupted))), "{ended:?}");
    assert!(*after.get_mut() < 12_000);
    let kept = 12 - sweep::missing(&plan, Shard::ALL, &store).len();
    assert!((1..12).contains(&kept), "{kept}");
    let error = Merged::of(&store).unwrap_err();
    assert!(matches!(error, StoreError::Missing { of: 12, .. }), "{error}");
    // A point that was damaged, and one that a killed process left unfinished.
    fs::write(directory.path().join("points/0000000.json"), "{\"finger").unwrap();
    fs::write(directory.path().join("points/.unfinished-0000011.json-x"), "{").unwrap();
    assert_eq!(run(&plan, "1/1", 2, directory.path()), Done { kept: kept - 1, run: 13 - kept });
    let mut found = files(directory.path());
    found.remove("points/.unfinished-0000011.json-x");
    assert!(found == files(whole.path()));
}

#[test]
fn directory_of_another_sweep_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    run(&plan(SWEEP), "1/12", 1, directory.path());
    let before = files(directory.path());
    let other = plan(&SWEEP.replace("80", "81"));
    let error = Store::open(directory.path(), &other).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "holds the results of another sweep, or of another version: choose another directory"
        ),
        "{error}"
    );
    assert!(files(directory.path()) == before);
    let error = Store::find(&directory.path().join("points")).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
}
