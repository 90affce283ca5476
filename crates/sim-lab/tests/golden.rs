//! Output of `hiroma sim run`, `compare` and `replay` for small clusters, word for word.
//!
//! `UPDATE_GOLDEN=1 cargo test -p hiroma-sim-lab --test golden` rewrites the files; the difference
//! shows how a change of the simulator affects a user.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use hiroma_report::Section;
use hiroma_sim::{Config, TraceKind, TraceRecord};
use hiroma_sim_lab::cluster::{cluster_of, read_cluster};
use hiroma_sim_lab::compare::{self, entrants};
use hiroma_sim_lab::figures::Figures;
use hiroma_sim_lab::jobs::Stop;
use hiroma_sim_lab::lab::{Lab, jobs_of};
use hiroma_sim_lab::policies::Policies;
use hiroma_sim_lab::replay::replayed;
use hiroma_sim_lab::settings::Settings;
use hiroma_sim_lab::single;
use hiroma_sim_lab::trace::Trace;

const CLUSTER: &str = "\
nodes = 16
disk.count = 2
policy.domain_radius = 2
load.arrivals_per_s = 40
run.warmup_ns = \"20ms\"
run.duration_ns = \"30ms\"
";

fn cluster() -> Config {
    cluster_of(Settings::parse("cluster.toml", CLUSTER).unwrap()).unwrap()
}

fn with_lab<T>(threads: usize, work: impl FnOnce(&Lab<'_>) -> T) -> T {
    let stop = Stop::new();
    work(&Lab { threads, stop: &stop, advance: &|_| (), lacking: &|_| None, instead: &|_| None })
}

fn runs(config: &Config, seeds: &[u64], threads: usize) -> Vec<Figures> {
    let jobs = jobs_of(&[("the cluster".to_owned(), Arc::new(config.clone()))], seeds);
    with_lab(threads, |lab| lab.map_all(&jobs, |_, outcome| Figures::of(&outcome))).unwrap()
}

fn same_as(name: &str, section: &Section) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = section.to_text();
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{name} is not what it was; now it is\n{text}");
}

#[test]
fn one_cluster_with_two_seeds() {
    let (config, seeds) = (cluster(), [7, 8]);
    let figures = runs(&config, &seeds, 1);
    same_as("run.txt", &single::section("One cluster", &config, &seeds, &figures));
    assert_eq!(
        single::to_json(&config, &seeds, &figures),
        single::to_json(&config, &seeds, &runs(&config, &seeds, 2))
    );
}

/// Networks, nodes and scripts that are not as in the paper: the files that the guide shows.
#[test]
fn clusters_of_the_examples() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim");
    for name in ["leaf-spine", "graph", "matrix", "failures", "faults", "joining", "tiers"] {
        let config =
            read_cluster(&directory.join(name).with_extension("toml"), &Policies::new()).unwrap();
        let seeds = [1, 2];
        let figures = runs(&config, &seeds, 2);
        let section = single::section(name, &config, &seeds, &figures);
        same_as(&format!("{name}.txt"), &section);
    }
}

#[test]
fn all_policies_on_one_cluster() {
    let config = cluster();
    let compared = |threads| {
        with_lab(threads, |lab| compare::compare(&config, entrants(&config), &[1, 2, 3], lab))
            .unwrap()
    };
    let comparison = compared(1);
    same_as("compare.txt", &comparison.section("Policies"));
    assert_eq!(comparison.to_json(), compared(2).to_json());
}

#[test]
fn a_recorded_load() {
    // Node 0 pages out a hundred pages and fetches half of them back.
    let out = (0..100).map(|page| TraceRecord {
        time_ns: page * 100_000,
        node: 0,
        kind: TraceKind::PageOut,
        page,
    });
    let back = (0..50).map(|page| TraceRecord {
        time_ns: 20_000_000 + page * 1_000_000,
        node: 0,
        kind: TraceKind::PageIn,
        page,
    });
    let trace = Trace { nodes: 16, page_bytes: 4096, lost: 0, records: out.chain(back).collect() };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.bin");
    trace.write(&path).unwrap();
    let config = replayed(Trace::read(&path).unwrap(), None, &path).unwrap();
    let figures = runs(&config, &[1], 1);
    assert_eq!(figures[0].get("faults"), Some(50.0));
    assert_eq!(figures[0].get("page_outs"), Some(100.0));
    same_as("replay.txt", &single::section("A recorded load", &config, &[1], &figures));
}
