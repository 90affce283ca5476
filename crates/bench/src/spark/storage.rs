//! Every storage with every policy (the goals), and the paper's figure 4: sizes.

use hiroma_report::{Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series};
use hiroma_units::Bytes;

use super::Ground;
use super::grid::{Grid, RunResults};
use super::spec::{Policy, Spec, Storage, Workload};
use crate::children::Failed;
use crate::progress::Progress;

/// Runs of the microbenchmark with every storage and policy; for data on the heap also with Spark's
/// defaults, whose JVM options differ.
pub fn specs(ground: &Ground<'_>) -> Vec<Spec> {
    let mut specs = Vec::new();
    for &storage in &ground.params.storages {
        let policies: &[Policy] = if storage.is_off_heap() { &Policy::FOUR } else { &Policy::ALL };
        let chosen = policies.iter().filter(|policy| ground.params.policies.contains(policy));
        specs.extend(chosen.map(|&policy| ground.spec(Workload::Micro, storage, policy)));
    }
    specs
}

/// Measures and reports.
pub fn run(
    ground: &Ground<'_>,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<(), Failed> {
    let (grid, ended) = Grid::measure(ground, &specs(ground), progress);
    for &storage in &ground.params.storages {
        measures(&grid, storage, &mut report.measures);
    }
    report.sections.push(Section {
        title: "Cached data by storage and policy (microbenchmark)".into(),
        text: vec![
            "The paper's microbenchmark: every iteration reads all that is cached. Where the cached data lies was found from outside, by the addresses of its \
             arrays and chunks and the kernel's page map, not by the plugin. `off` has the JVM options that the plugin wants and no huge pages; `stock` is Spark \
             as it comes."
                .into(),
        ],
        tables: vec![grid.table("Medians of the rounds")],
        plots: vec![huge_plot(&grid, &ground.params.storages)],
    });
    ended
}

fn measures(grid: &Grid, storage: Storage, measures: &mut Vec<Measure>) {
    let (key, name) = (storage.key(), storage.name());
    let note = |policies: &[Policy]| grid.remark(storage, policies);
    let cached = Measure::new(
        format!("cached_huge_{key}"),
        format!("Cached bytes on huge pages as soon as caching ends, {name}"),
        "%",
        Better::Higher,
    )
    .spread(grid.spread(storage, Policy::Part, |outcome| outcome.cached.cached_huge_percent()))
    .paper("all 3 GB of an executor at once")
    .note(note(&[Policy::Part]));
    // There is no goal for small objects, which are covered only after they have become old.
    measures.push(if storage == Storage::Deserialised {
        cached
    } else {
        cached.must(95.0).aim(100.0)
    });
    measures.push(
        Measure::new(
            format!("other_huge_{key}"),
            format!("Other bytes on huge pages, share of all huge, {name}"),
            "%",
            Better::Lower,
        )
        .must(10.0)
        .aim(2.0)
        .spread(grid.spread(storage, Policy::Part, |outcome| outcome.steady.other_percent()))
        .note(note(&[Policy::Part])),
    );
    measures.push(
        Measure::new(
            format!("build_ratio_{key}"),
            format!("Caching time against off, {name}"),
            "",
            Better::Lower,
        )
        .must(1.05)
        .aim(1.0)
        .spread(grid.ratio(storage, Policy::Part, Policy::Off, |outcome| outcome.build_s))
        .note(note(&[Policy::Part, Policy::Off])),
    );
    measures.push(
        Measure::new(
            format!("huge_ratio_{key}"),
            format!("Huge pages used against entire, {name}"),
            "%",
            Better::Lower,
        )
        .must(60.0)
        .aim(35.0)
        .spread(
            grid.ratio(storage, Policy::Part, Policy::Entire, |outcome| outcome.steady.huge as f64)
                .map(percent),
        )
        .note(note(&[Policy::Part, Policy::Entire])),
    );
    measures.push(
        Measure::new(
            format!("iteration_ratio_jvms_{key}"),
            format!("Iteration against entire, between JVMs, {name}"),
            "",
            Better::Lower,
        )
        .spread(grid.ratio(storage, Policy::Part, Policy::Entire, RunResults::iteration_s))
        .paper("faster at 4 GB and 12 GB")
        .note(note(&[Policy::Part, Policy::Entire])),
    );
}

/// A ratio as a percentage.
fn percent(spread: hiroma_report::Spread) -> hiroma_report::Spread {
    hiroma_report::Spread {
        median: spread.median * 100.0,
        min: spread.min * 100.0,
        max: spread.max * 100.0,
        n: spread.n,
    }
}

fn huge_plot(grid: &Grid, storages: &[Storage]) -> Plot {
    let points = |policy: Policy, value: fn(&RunResults) -> f64| {
        let places = storages.iter().enumerate();
        places
            .filter_map(|(place, &storage)| {
                Some(Point::of(place as f64, grid.spread(storage, policy, value)?))
            })
            .collect::<Vec<_>>()
    };
    let mib = |outcome: &RunResults| outcome.steady.huge as f64 / f64::from(1 << 20);
    let cached = |outcome: &RunResults| outcome.steady.cached as f64 / f64::from(1 << 20);
    let mut series =
        vec![Series { reference: true, ..Series::new("cached", points(Policy::Part, cached)) }];
    series.extend(Policy::FOUR.map(|policy| Series::new(policy.name(), points(policy, mib))));
    Plot {
        title: "Huge pages of all executors after the iterations".into(),
        kind: Kind::Bars,
        x: Axis::names("storage", storages.iter().map(|storage| storage.name())),
        y: Axis::linear("on huge pages", "MiB"),
        series,
    }
}

/// Figure 4: the microbenchmark over serialised data of several sizes.
pub fn size_specs(ground: &Ground<'_>) -> Vec<Spec> {
    let sizes = ground.params.sizes.iter();
    sizes
        .flat_map(|&bytes| {
            let policies = ground.params.four().into_iter();
            policies.map(move |policy| Spec {
                bytes,
                ..ground.spec(Workload::Micro, Storage::Serialised, policy)
            })
        })
        .collect()
}

/// Measures and reports figure 4.
pub fn run_sizes(
    ground: &Ground<'_>,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<(), Failed> {
    let (grid, ended) = Grid::measure(ground, &size_specs(ground), progress);
    let of_size = |bytes: u64| grid.0.iter().filter(move |cell| cell.spec.bytes == bytes);
    let mut series = Vec::new();
    for policy in ground.params.four() {
        let points = ground.params.sizes.iter().enumerate().filter_map(|(place, &bytes)| {
            let cell = of_size(bytes).find(|cell| cell.spec.policy == policy)?;
            let values: Vec<f64> =
                cell.outcomes.iter().flatten().map(RunResults::whole_s).collect();
            Some(Point::of(place as f64, hiroma_report::Spread::of(&values)?))
        });
        series.push(Series::new(policy.name(), points.collect()));
    }
    report.sections.push(Section {
        title: "Run time by size (figure 4)".into(),
        text: vec![
            "Paper: 2, 4 and 12 GB in four executors of 20 GB; no difference at 2 GB, and part before entire before part-old before off at 4 GB and 12 GB \
             (its bars are in a figure without numbers). Here: caching and the iterations that count."
                .into(),
        ],
        tables: vec![grid.table("Medians of the rounds")],
        plots: vec![Plot {
            title: "Caching and iterations, serialised data".into(),
            kind: Kind::Bars,
            x: Axis::names("cached data", ground.params.sizes.iter().map(|&bytes| Bytes(bytes).to_string())),
            y: Axis::linear("time", "s"),
            series,
        }],
    });
    ended
}

/// PageRank and k-means, serialised and deserialised, with the four policies.
pub fn workload_specs(ground: &Ground<'_>) -> Vec<Spec> {
    let mut specs = Vec::new();
    for workload in [Workload::PageRank, Workload::KMeans] {
        for &storage in ground.params.workload_storages {
            specs.extend(
                ground
                    .params
                    .four()
                    .into_iter()
                    .map(|policy| ground.spec(workload, storage, policy)),
            );
        }
    }
    specs
}

/// Measures and reports the workloads.
pub fn run_workloads(
    ground: &Ground<'_>,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<(), Failed> {
    let (grid, ended) = Grid::measure(ground, &workload_specs(ground), progress);
    for workload in [Workload::PageRank, Workload::KMeans] {
        let part =
            Grid(grid.0.iter().filter(|cell| cell.spec.workload == workload).cloned().collect());
        for &storage in ground.params.workload_storages {
            report.measures.push(
                Measure::new(
                    format!(
                        "iteration_ratio_jvms_{}_{}",
                        workload.name().replace('-', "_"),
                        storage.key()
                    ),
                    format!(
                        "Iteration against entire, between JVMs, {}, {}",
                        workload.name(),
                        storage.name()
                    ),
                    "",
                    Better::Lower,
                )
                .spread(part.ratio(storage, Policy::Part, Policy::Entire, RunResults::iteration_s))
                .paper("left for later")
                .note(part.remark(storage, &[Policy::Part, Policy::Entire])),
            );
        }
    }
    report.sections.push(Section {
        title: "PageRank and k-means (the paper's future work)".into(),
        text: vec!["PageRank: links are cached, ranks are broadcast. k-means: Lloyd's algorithm, points are cached.".into()],
        tables: vec![grid.table("Medians of the rounds")],
        plots: vec![workload_plot(&grid)],
    });
    ended
}

fn workload_plot(grid: &Grid) -> Plot {
    let first = grid.0.first().map(|cell| cell.spec.policy);
    let jobs: Vec<Spec> =
        grid.0.iter().map(|cell| cell.spec).filter(|spec| Some(spec.policy) == first).collect();
    let series = Policy::FOUR.map(|policy| {
        let points = jobs.iter().enumerate().filter_map(|(place, &job)| {
            let cell = grid.0.iter().find(|cell| cell.spec == Spec { policy, ..job })?;
            let values: Vec<f64> =
                cell.outcomes.iter().flatten().map(RunResults::iteration_s).collect();
            Some(Point::of(place as f64, hiroma_report::Spread::of(&values)?))
        });
        Series::new(policy.name(), points.collect())
    });
    Plot {
        title: "An iteration by workload".into(),
        kind: Kind::Bars,
        x: Axis::names(
            "job",
            jobs.iter().map(|job| format!("{}, {}", job.workload.name(), job.storage.name())),
        ),
        y: Axis::linear("an iteration", "s"),
        series: series.into(),
    }
}
