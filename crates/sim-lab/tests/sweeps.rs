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
        &Lab { threads, stop: &stop, advance: &|_| (), lacking: &|_| None, instead: &|_| None },
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
    let (one, mut other) = (files(alone.path()), files(many.path()));
    assert_eq!(one.len(), 13, "twelve points and what sweep it is");
    assert_eq!(other.remove("shards-of-5"), Some(Vec::new()));
    assert!(one == other);
    let merged = |directory: &Path| Merged::of(&Store::find(&[directory]).unwrap()).unwrap();
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
        &Lab { threads: 1, stop: &stop, advance: &advance, lacking: &|_| None, instead: &|_| None },
    );
    assert!(matches!(ended, Err(SweepError::Lab(LabError::Interrupted))), "{ended:?}");
    assert!(*after.get_mut() < 12_000);
    let kept = 12 - sweep::missing(&plan, Shard::ALL, &store).len();
    assert!((1..12).contains(&kept), "{kept}");
    let merged = Merged::of(&store).unwrap();
    assert_eq!((merged.gaps().missing, merged.gaps().of), (12 - kept, 12));
    // A point that was damaged, and one that a killed process left unfinished.
    fs::write(directory.path().join("points/000000-000001.json"), "{\"finger").unwrap();
    fs::write(directory.path().join("points/.unfinished-000003-000003.json-x"), "{").unwrap();
    assert_eq!(run(&plan, "1/1", 2, directory.path()), Done { kept: kept - 1, run: 13 - kept });
    let mut found = files(directory.path());
    found.remove("points/.unfinished-000003-000003.json-x");
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
    let error = Store::find(&[directory.path().join("points")]).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
}

#[test]
fn more_seeds_extend_a_sweep() {
    let (few, more) = (plan(SWEEP), plan(&SWEEP.replace("seeds = 3", "seeds = 5")));
    let (extended, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(run(&few, "1/1", 2, extended.path()), Done { kept: 0, run: 12 });
    let before = files(extended.path());
    assert_eq!(run(&more, "1/1", 2, extended.path()), Done { kept: 12, run: 8 });
    assert_eq!(run(&more, "1/1", 2, whole.path()), Done { kept: 0, run: 20 });
    let after = files(extended.path());
    assert!(after == files(whole.path()), "as if it had been run with five seeds at once");
    let points = |name: &&String| name.starts_with("points/");
    assert!(before.keys().filter(points).all(|name| before[name] == after[name]));
    // Fewer seeds again: nothing is run, nothing is lost.
    assert_eq!(run(&few, "1/1", 2, extended.path()), Done { kept: 12, run: 0 });
    assert!(files(extended.path()) == after);
}

#[test]
fn what_there_is_of_a_sweep_is_merged_with_a_note() {
    let (plan, whole, part) =
        (plan(SWEEP), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(&plan, "1/1", 2, whole.path());
    let other = tempfile::tempdir().unwrap();
    run(&plan, "1/4", 1, part.path());
    run(&plan, "3/4", 1, part.path());
    run(&plan, "2/4", 1, other.path());
    let merged = |directories: &[&Path]| Merged::of(&Store::find(directories).unwrap()).unwrap();
    let half = merged(&[part.path()]);
    let text = half.section().text.join("\n");
    assert!(
        text.contains("Note: 6 of 12 runs are missing, the first is load.arrivals_per_s = 40, policy.placement = nearest, seed 2."),
        "{text}"
    );
    assert!(
        text.contains("\nMissing in shard 2/4: 3 of 3 runs\nMissing in shard 4/4: 3 of 3 runs"),
        "{text}"
    );
    let seeds: Vec<String> = half
        .to_csv()
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(2).unwrap().to_owned())
        .collect();
    assert_eq!(seeds, ["2", "1", "2", "1"]);
    // Directories of several machines are merged as one.
    let more = merged(&[part.path(), other.path()]);
    assert_eq!(more.gaps().missing, 3);
    run(&plan, "4/4", 1, other.path());
    let all = merged(&[part.path(), other.path()]);
    assert_eq!(all.to_json(), merged(&[whole.path()]).to_json());
    let nothing = tempfile::tempdir().unwrap();
    Store::open(nothing.path(), &plan).unwrap();
    let error = Merged::of(&Store::find(&[nothing.path()]).unwrap()).unwrap_err();
    assert!(
        error.to_string().ends_with("has no results yet: run `hiroma sim sweep` first"),
        "{error}"
    );
}
