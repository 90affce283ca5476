//! The same events give the same decisions, now and after every change that is not meant to alter
//! them.

mod common;

use std::path::Path;

use common::{EXTENT_PAGES, Model, Rng};
use hiroma_policy::{Fifo, Lru, Replacement};

/// Set it to write the recordings again, after a change that is meant to alter decisions.
const UPDATE_ENV: &str = "HIROMA_UPDATE_GOLDEN";

/// A program with all kinds of accesses: streams up and down, strides, a hot set, random reads; in
/// memory that was written from end to end (which is fetched whole) and in memory of which single
/// places were written (which is fetched in sectors).
fn recording<R: Replacement>(replacement: R) -> String {
    const DENSE: u64 = 100 * EXTENT_PAGES;
    const ALL: u64 = 112 * EXTENT_PAGES;
    let mut model = Model::new(replacement, 64, true);
    let mut rng = Rng(2026);
    (0..DENSE).for_each(|page| model.touch(page));
    (DENSE..ALL).step_by(16).for_each(|page| model.touch(page));
    model.evict_all();
    model.log = Some(String::new());
    (0..ALL).rev().step_by(2).for_each(|page| model.touch(page));
    (0..300).for_each(|i| model.touch(i * 37));
    (0..1500).for_each(|_| model.touch(rng.below(8 * EXTENT_PAGES)));
    for page in 10 * EXTENT_PAGES..60 * EXTENT_PAGES {
        model.touch(page);
        if page % 16 == 0 {
            model.touch(rng.below(8 * EXTENT_PAGES));
        }
    }
    model.evict_all();
    (0..300).for_each(|i| model.touch(DENSE + i * 16));
    (0..500).for_each(|_| model.touch(DENSE + rng.below(ALL - DENSE)));
    (0..1000).for_each(|_| model.touch(rng.below(ALL)));
    format!("{}{:#?}\n", model.log.expect("a log"), model.stats)
}

fn hold_against(name: &str, recording: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os(UPDATE_ENV).is_some() {
        std::fs::create_dir_all(path.parent().expect("a directory"))
            .expect("the directory can be made");
        std::fs::write(&path, recording).expect("the recording can be written");
        return;
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (line, (now, then)) in recording.lines().zip(golden.lines()).enumerate() {
        assert_eq!(
            now,
            then,
            "{name}:{}: another decision than recorded; {UPDATE_ENV}=1 if that is meant",
            line + 1
        );
    }
    assert_eq!(
        recording.lines().count(),
        golden.lines().count(),
        "{name}: another number of decisions than recorded"
    );
}

#[test]
fn recorded_trace_gives_recorded_decisions_under_lru() {
    let once = recording(Lru::new());
    assert_eq!(once, recording(Lru::new()));
    hold_against("lru.txt", &once);
}

#[test]
fn recorded_trace_gives_recorded_decisions_under_fifo() {
    hold_against("fifo.txt", &recording(Fifo::new()));
}
