//! Comparison inside the same warm executors: two JVMs differ in more than their pages.
//!
//! The effects of the policies are produced from outside, while nothing runs: huge pages are split
//! (`MADV_COLD` for a part of each), and ranges are collapsed (`MADV_COLLAPSE`): those with cached
//! data, as `part` leaves them, or all of the heap, as `entire` does.

use std::collections::BTreeSet;

use anyhow::Context;
use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table,
};
use hiroma_sys::hot::target::{Advice, Span, Target};
use hiroma_units::{EXTENT, PAGE};

use super::cluster::Session;
use super::interval;
use super::pages::{Executor, huge_of, large_ranges};
use super::spec::{Policy, Storage, Workload};
use super::{Ground, Params};
use crate::children::Failed;
use crate::progress::Progress;

/// Which pages are huge during a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arm {
    Small,
    Cached,
    All,
}

const ARMS: [Arm; 3] = [Arm::Small, Arm::Cached, Arm::All];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Small => "none",
            Arm::Cached => "cached data",
            Arm::All => "everything",
        }
    }
}

/// Medians of the turns of each arm, by round, and shares of the cached ranges that were huge.
#[derive(Default)]
struct Turns {
    seconds: [Vec<f64>; 3],
    huge_percent: [Vec<f64>; 3],
}

/// Ranges to split and to collapse for an arm, if `huge` are huge now. `large`: all ranges of the
/// executor's large mappings.
fn changes(
    arm: Arm,
    cached: &BTreeSet<u64>,
    large: &BTreeSet<u64>,
    huge: &BTreeSet<u64>,
) -> (Vec<u64>, Vec<u64>) {
    let wanted: BTreeSet<u64> = match arm {
        Arm::Small => BTreeSet::new(),
        Arm::Cached => cached & large,
        Arm::All => large.clone(),
    };
    ((huge - &wanted).into_iter().collect(), (&wanted - huge).into_iter().collect())
}

fn switch(executor: &Executor, arm: Arm) -> anyhow::Result<()> {
    let ranges = large_ranges(executor.pid)?;
    let huge = huge_of(executor.pid, &ranges)?;
    let (apart, collapse) =
        changes(arm, &executor.cached_ranges(), &ranges.into_iter().collect(), &huge);
    let target = Target::open(executor.pid)?;
    for range in apart {
        // Advice on one of its pages splits a huge page.
        target
            .advise(&[Span { start: range * EXTENT as u64, len: PAGE as u64 }], Advice::Cold)
            .context("taking a huge page apart")?;
    }
    for range in collapse {
        // Ranges without any page cannot be collapsed; the huge share of the cached data is
        // measured afterwards.
        let _ = target
            .advise(&[Span { start: range * EXTENT as u64, len: EXTENT as u64 }], Advice::Collapse);
    }
    Ok(())
}

fn huge_percent(executors: &[Executor]) -> anyhow::Result<f64> {
    let (mut huge, mut all) = (0, 0);
    for executor in executors {
        let cached: Vec<u64> = executor.cached_ranges().into_iter().collect();
        huge += huge_of(executor.pid, &cached)?.len();
        all += cached.len();
    }
    Ok(100.0 * huge as f64 / all.max(1) as f64)
}

fn turn(session: &mut Session<'_>, arm: Arm, ground: &Ground<'_>) -> Result<(f64, f64), Failed> {
    let executors = session.look()?;
    for executor in &executors {
        switch(executor, arm)?;
    }
    session.iterate(1)?;
    let seconds = session.iterate(ground.params.inside_iterations)?;
    let share = huge_percent(&session.look()?)?;
    Ok((Spread::of(&seconds).map_or(f64::NAN, |spread| spread.median), share))
}

fn measure(
    ground: &Ground<'_>,
    workload: Workload,
    storage: Storage,
    progress: &mut Progress,
) -> Result<Turns, Failed> {
    let spec = ground.spec(workload, storage, Policy::Off);
    let mut session = ground.start(&spec)?;
    session.cache()?;
    session.iterate(2 * ground.params.warm_iterations)?;
    session.settle()?;
    let mut turns = Turns::default();
    for round in 0..ground.params.inside_rounds {
        progress.starts(&format!(
            "inside a JVM, {}, {}: round {} of {}",
            workload.name(),
            storage.name(),
            round + 1,
            ground.params.inside_rounds
        ));
        for step in 0..ARMS.len() {
            let at = (step + round) % ARMS.len();
            let (seconds, share) = turn(&mut session, ARMS[at], ground)?;
            turns.seconds[at].push(seconds);
            turns.huge_percent[at].push(share);
        }
        progress.done(seconds_of(ground) / ground.params.inside_rounds as f64);
    }
    Ok(turns)
}

/// Estimated duration for one storage, in seconds.
pub fn seconds_of(ground: &Ground<'_>) -> f64 {
    let gib = ground.params.bytes as f64 / (1u64 << 30) as f64;
    20.0 + ground.params.inside_rounds as f64
        * (3.0 + gib * 3.0 * (1.0 + ground.params.inside_iterations as f64))
}

/// The jobs that are compared.
const JOBS: [(Workload, Storage); 3] = [
    (Workload::Micro, Storage::Serialised),
    (Workload::Micro, Storage::Deserialised),
    (Workload::PageRank, Storage::Deserialised),
];

/// The jobs with the selected storages.
pub fn jobs(params: &Params) -> Vec<(Workload, Storage)> {
    JOBS.into_iter()
        .filter(|(_, storage)| params.storages.contains(storage))
        .take(params.inside_jobs)
        .collect()
}

/// Measures and reports; after an interruption, reports the results so far.
pub fn run(
    ground: &Ground<'_>,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<(), Failed> {
    let mut table = Table::new("An iteration, medians of the rounds")
        .text("job")
        .text("on huge pages")
        .number("an iteration", "s")
        .number("cached ranges huge", "%");
    let mut series: Vec<Series> = ARMS.map(|arm| Series::new(arm.name(), Vec::new())).into();
    let jobs = jobs(&ground.params);
    let mut ended = Ok(());
    for (place, &(workload, storage)) in jobs.iter().enumerate() {
        let turns = match measure(ground, workload, storage, progress) {
            Ok(turns) => turns,
            Err(failed) => {
                ended = Err(failed);
                break;
            }
        };
        for (at, arm) in ARMS.iter().enumerate() {
            let spread = Spread::of(&turns.seconds[at]);
            series[at].points.extend(spread.map(|spread| Point::of(place as f64, spread)));
            let text =
                |values: &[f64]| Spread::of(values).map_or_else(|| "–".to_owned(), Spread::to_text);
            table.row([
                format!("{}, {}", workload.name(), storage.name()),
                arm.name().to_owned(),
                text(&turns.seconds[at]),
                text(&turns.huge_percent[at]),
            ]);
        }
        report.measures.extend(measures(workload, storage, &turns));
    }
    report.sections.push(Section {
        title: "Before and after inside the same executors".into(),
        text: vec![
            "Executors are started and warmed once. Before each turn, while nothing runs, their huge pages are taken apart, or collapsed: none, those of the \
             cached data (as with part), or the whole heap (as with entire); the turns are interleaved, and each begins with an iteration that does not count."
                .into(),
        ],
        tables: vec![table],
        plots: vec![Plot {
            title: "An iteration by what is on huge pages".into(),
            kind: Kind::Bars,
            x: Axis::names("job", jobs.iter().map(|(workload, storage)| format!("{}, {}", workload.name(), storage.name()))),
            y: Axis::linear("an iteration", "s"),
            series,
        }],
    });
    ended
}

fn measures(workload: Workload, storage: Storage, turns: &Turns) -> [Measure; 2] {
    let key = format!("{}_{}", workload.name().replace('-', "_"), storage.key());
    let name = format!("{}, {}", workload.name(), storage.name());
    let [small, cached, all] = &turns.seconds;
    let pairs = |over: &[f64], under: &[f64]| {
        over.iter().zip(under).map(|(over, under)| over / under).collect::<Vec<f64>>()
    };
    let (against_all, against_none) = (pairs(cached, all), pairs(cached, small));
    [
        Measure::new(
            format!("iteration_ratio_{key}"),
            format!("Iteration against entire, same JVM, {name}"),
            "",
            Better::Lower,
        )
        .must(1.02)
        .aim(0.95)
        .paper("faster at 4 GB and 12 GB")
        .spread(Spread::of(&against_all))
        .note(interval::describe(&against_all)),
        Measure::new(
            format!("iteration_ratio_off_{key}"),
            format!("Iteration against off, same JVM, {name}"),
            "",
            Better::Lower,
        )
        .paper("faster at 4 GB and 12 GB")
        .spread(Spread::of(&against_none))
        .note(interval::describe(&against_none)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_changes_only_ranges_that_differ() {
        let set = |ranges: &[u64]| ranges.iter().copied().collect::<BTreeSet<u64>>();
        let (cached, large, huge) = (set(&[1, 2, 9]), set(&[0, 1, 2, 3]), set(&[2, 3]));
        assert_eq!(changes(Arm::Small, &cached, &large, &huge), (vec![2, 3], vec![]));
        assert_eq!(changes(Arm::Cached, &cached, &large, &huge), (vec![3], vec![1]));
        assert_eq!(changes(Arm::All, &cached, &large, &huge), (vec![], vec![0, 1]));
    }
}
