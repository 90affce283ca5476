//! Random 4 KiB reads with a quarter of the memory local.

use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table,
};

use super::params::Params;
use super::plan::{Local, Ours, Place, Run};
use super::results::{Results, lower};
use crate::job::{Latency, Task, TaskResult};

const ROWS: [(&str, &str); 4] = [
    ("random compressed", "far memory, compressed store"),
    ("random tcp", "far memory over TCP"),
    ("random zram", "zram swap"),
    ("random swap file", "swap file"),
];

pub fn plan(params: &Params) -> Vec<Run> {
    let bytes = params.peer_region;
    let (local, far) = (bytes as u64 / 4, bytes as u64);
    // There are enough settling accesses to visit every 2 MiB some dozens of times: adaptive parts
    // have adapted by then.
    let settle = if params.quick { 10_000 } else { 30_000 };
    let task = Task::Random {
        bytes,
        settle,
        accesses: 60_000,
        time_limit_ms: if params.quick { 2000 } else { 4000 },
    };
    let seconds = if params.quick { 1.8 } else { 4.0 };
    let mut runs = vec![
        Run::task(
            "random compressed",
            Place::Ours(Ours::compressed(local, far)),
            task.clone(),
            seconds,
        ),
        Run::task("random tcp", Place::Ours(Ours::tcp(local, far)), task.clone(), seconds),
    ];
    runs.extend(Run::peers("random", Local::Bytes(local), &task, 1.5 * seconds));
    runs
}

pub fn report(_params: &Params, results: &Results, report: &mut Report) {
    let time = TaskResult::us_per_access;
    let mut table = Table::new("Random 4 KiB reads, 25 % local")
        .text("what")
        .number("per read", "µs")
        .number("p50", "µs")
        .number("p99", "µs")
        .number("max", "µs");
    let numbers: [fn(&Latency) -> f64; 3] = [|l| l.p50_us, |l| l.p99_us, |l| l.max_us];
    for (key, name) in ROWS {
        let latency = numbers.map(|number| {
            results
                .spread(key, |outcome| outcome.latency.as_ref().map_or(f64::NAN, number))
                .map_or("–".into(), |spread| spread.to_text())
        });
        table.row([name.to_owned(), results.cell(key, time)].into_iter().chain(latency));
    }
    table.note("Content: half of each page random, half a repeated text, so it compresses to about a half; the same for all. A quarter of the reads find their page local.");
    table.note("Swap with the machine's own settings (vm.page-cluster: read-ahead).");
    report.measures.push(
        Measure::new("random_compressed_us", "random read, compressed", "µs", Better::Lower)
            .spread(results.spread("random compressed", time)),
    );
    report.measures.push(
        Measure::new("random_tcp_us", "random read, over TCP", "µs", Better::Lower)
            .spread(results.spread("random tcp", time)),
    );
    let ratios = [
        (
            lower("random_compressed_vs_zram", "random read, compressed: of zram's time")
                .must(1.0)
                .aim(0.6),
            "random compressed",
            "random zram",
        ),
        (
            lower("random_tcp_vs_zram", "random read, TCP: of zram's time").must(1.5).aim(0.7),
            "random tcp",
            "random zram",
        ),
        (
            lower("random_tcp_vs_swap_file", "random read, TCP: of swap file's time").must(0.5),
            "random tcp",
            "random swap file",
        ),
    ];
    for (measure, over, under) in ratios {
        report.measures.push(results.ratio(measure, over, under, time));
    }
    let points = |number: &dyn Fn(&TaskResult) -> f64| -> Vec<Point> {
        let spreads = ROWS.iter().enumerate().filter_map(|(place, (key, _))| {
            results.spread(key, number).map(|spread: Spread| Point::of(place as f64, spread))
        });
        spreads.collect()
    };
    let plot = Plot {
        title: "Random 4 KiB reads, 25 % local".into(),
        kind: Kind::Bars,
        x: Axis::names("", ["compressed", "TCP", "zram", "swap file"]),
        y: Axis::log("time per read", "µs"),
        series: vec![
            Series::new("mean", points(&time)),
            Series::new("p99", points(&|outcome| outcome.latency.map_or(f64::NAN, |l| l.p99_us))),
        ],
    };
    let text = "Pages are chosen at random and read whole; before timing starts, as many as it takes for whatever adapts to settle.";
    report.sections.push(Section {
        title: "Random reads".into(),
        text: vec![text.into()],
        tables: vec![table],
        plots: vec![plot],
    });
}
