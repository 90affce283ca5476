//! Memory that lacks half of the huge pages that `entire` would take.

use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, figures,
};
use hiroma_units::{Bytes, EXTENT};

use super::Ground;
use super::grid::{self, Grid, RunResults};
use super::spec::{Policy, Spec, Storage, Workload};
use crate::children::Failed;
use crate::progress::Progress;

const STORAGE: Storage = Storage::Serialised;
/// Time to take all memory and to free it, in seconds.
const FRAGMENTING_S: f64 = 30.0;

fn specs(ground: &Ground<'_>) -> Vec<Spec> {
    ground
        .params
        .four()
        .into_iter()
        .map(|policy| ground.spec(Workload::Micro, STORAGE, policy))
        .collect()
}

/// Estimated duration in seconds.
pub fn seconds_of(ground: &Ground<'_>) -> f64 {
    let one = grid::seconds_of(ground, &ground.spec(Workload::Micro, STORAGE, Policy::Entire));
    FRAGMENTING_S + one * (1 + specs(ground).len() * ground.params.rounds) as f64
}

/// Measures and reports.
pub fn run(
    ground: &Ground<'_>,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<(), Failed> {
    let entire = ground.spec(Workload::Micro, STORAGE, Policy::Entire);
    progress.starts("what entire takes of memory that is whole");
    let wanted = grid::run(ground, &entire)?.steady.huge;
    progress.done(grid::seconds_of(ground, &entire));
    progress.starts("fragmenting memory");
    let half = wanted / 2 / EXTENT as u64 * EXTENT as u64;
    ground.fragmented(half, |settled| {
        progress.done(FRAGMENTING_S);
        let (grid, ended) = Grid::measure(ground, &specs(ground), progress);
        let entire_percent = grid.spread(STORAGE, Policy::Entire, |outcome| 100.0 * outcome.steady.huge as f64 / wanted as f64);
        report.measures.extend(measures(&grid, entire_percent));
        report.sections.push(Section {
            title: "Fragmented memory".into(),
            text: vec![format!(
                "In memory that is whole, entire takes {} on huge pages. Here huge pages of {} are left before each run, and {} are available; of \
                 everything else that is free no huge page can be made: another process keeps one pinned page in each 2 MiB.",
                Bytes(wanted),
                Bytes(settled.huge),
                Bytes(settled.available)
            )],
            tables: vec![grid.table("Medians of the rounds, serialised data")],
            plots: vec![plot(&grid)],
        });
        ended
    })
}

fn measures(grid: &Grid, entire_percent: Option<Spread>) -> [Measure; 3] {
    let got = entire_percent.map_or_else(String::new, |spread| {
        format!("entire got {} % of what it takes otherwise", figures(spread.median))
    });
    let note = |policies: &[Policy]| match grid.remark(STORAGE, policies) {
        remark if remark.is_empty() => got.clone(),
        remark => remark,
    };
    [
        Measure::new(
            "fragmented_cached_huge",
            "Cached bytes on huge pages as soon as caching ends, memory fragmented",
            "%",
            Better::Higher,
        )
        .must(90.0)
        .spread(grid.spread(STORAGE, Policy::Part, |outcome| outcome.cached.cached_huge_percent()))
        .note(note(&[Policy::Part])),
        Measure::new(
            "fragmented_job_ratio",
            "Caching and iterations against entire, between JVMs, memory fragmented",
            "",
            Better::Lower,
        )
        .aim(0.9)
        .spread(grid.ratio(STORAGE, Policy::Part, Policy::Entire, RunResults::whole_s))
        .note(note(&[Policy::Part, Policy::Entire])),
        Measure::new(
            "fragmented_iteration_ratio",
            "Iteration against entire, between JVMs, memory fragmented",
            "",
            Better::Lower,
        )
        .aim(0.9)
        .spread(grid.ratio(STORAGE, Policy::Part, Policy::Entire, RunResults::iteration_s))
        .note(note(&[Policy::Part, Policy::Entire])),
    ]
}

fn plot(grid: &Grid) -> Plot {
    let bars = |name: &str, value: fn(&RunResults) -> f64| {
        let spreads = Policy::FOUR.iter().enumerate();
        Series::new(
            name,
            spreads
                .filter_map(|(place, &policy)| {
                    Some(Point::of(place as f64, grid.spread(STORAGE, policy, value)?))
                })
                .collect(),
        )
    };
    let series = vec![
        bars("as soon as caching ends", |outcome| outcome.cached.cached_huge_percent()),
        bars("after the iterations", |outcome| outcome.steady.cached_huge_percent()),
    ];
    Plot {
        title: "Cached data on huge pages, memory fragmented".into(),
        kind: Kind::Bars,
        x: Axis::names("policy", Policy::FOUR.map(Policy::name)),
        y: Axis::linear("of the cached bytes", "%"),
        series,
    }
}
