//! GNU sort with less memory than it uses (the paper on remote swap, figure 6).

use hiroma_far::config::{Allocation, ReplacementKind};
use hiroma_report::{Axis, Kind, Plot, Point, Report, Section, Series, Table, figures};

use super::params::Params;
use super::plan::{Local, Ours, Place, Run, Store, Text, TimeLimit, Work, roomy};
use super::results::{Results, lower};
use crate::job::TaskResult;
use crate::peers::SwapKind;

const NATIVE: &str = "sort native";
const SHARES: [u32; 4] = [100, 60, 30, 15];
/// Multiple of the usual patience for the sort with less local memory than its text.
const SLOW_PATIENCE: f64 = 10.0;
const PEERS: [SwapKind; 2] = [SwapKind::Zram, SwapKind::File];

/// Number of bytes that a sort of `lines` lines of `line` bytes uses: the text, 32 bytes a line,
/// and half of that again for merging.
pub fn memory_of(lines: u64, line: u64) -> u64 {
    lines * (line + 48)
}

/// Estimated duration of a native sort here, in seconds.
pub fn seconds_of(lines: u64) -> f64 {
    lines as f64 * 0.5e-6
}

fn ours_key(share: u32, replacement: ReplacementKind) -> String {
    format!("sort {share} {}", replacement_name(replacement))
}

fn peer_key(share: u32, kind: SwapKind) -> String {
    format!("sort {share} {}", kind.name())
}

pub fn replacement_name(replacement: ReplacementKind) -> &'static str {
    match replacement {
        ReplacementKind::Lru => "LRU",
        ReplacementKind::Fifo => "FIFO",
    }
}

pub fn on_server(far: u64, local: Local) -> Ours {
    Ours::on(Store::Tcp { servers: 1, each: roomy(far), allocation: Allocation::Simple }, local)
}

/// FIFO as well where the paper has it and where it does not take all day.
fn replacements(share: u32) -> &'static [ReplacementKind] {
    if matches!(share, 60 | 30) {
        &[ReplacementKind::Lru, ReplacementKind::Fifo]
    } else {
        &[ReplacementKind::Lru]
    }
}

pub fn plan(params: &Params) -> Vec<Run> {
    let (far, seconds) = (memory_of(params.lines, 10), seconds_of(params.lines));
    let limit = TimeLimit::Times(params.patience, NATIVE);
    let run = |key: String, place: Place, slowness: f64| Run {
        key,
        place,
        work: Work::Sort(Text::Numbers),
        seconds: seconds * slowness,
        limit,
        once: false,
    };
    let mut native = run(NATIVE.into(), Place::Native, 1.0);
    native.limit = TimeLimit::Seconds(600.0);
    let mut runs = vec![native];
    for share in SHARES {
        let local = if share == 100 {
            Local::Everything(NATIVE)
        } else {
            Local::Percent(f64::from(share), NATIVE)
        };
        let slowness = match share {
            100 => 1.0,
            60 => 1.1,
            30 => 1.3,
            _ => 25.0,
        };
        for &replacement in replacements(share) {
            let ours = on_server(far, local).replacement(replacement);
            let slowness =
                if replacement == ReplacementKind::Fifo { slowness * 1.2 } else { slowness };
            let run = run(ours_key(share, replacement), Place::Ours(ours), slowness);
            // With less than the text it takes as long as its faults take, and should finish
            // anyway.
            let patient = Run {
                limit: TimeLimit::Times(SLOW_PATIENCE * params.patience, NATIVE),
                once: true,
                ..run.clone()
            };
            runs.push(if share == 15 { patient } else { run });
        }
        if share == 30 {
            let ours =
                Ours::on(Store::Compressed { capacity: roomy(far) }, Local::Percent(30.0, NATIVE));
            runs.push(run("sort 30 compressed".into(), Place::Ours(ours), 1.5));
        }
        if share < 100 {
            for kind in PEERS {
                let slowness =
                    if kind == SwapKind::Zram && share > 15 { 2.5 } else { params.patience / 3.0 };
                runs.push(run(peer_key(share, kind), Place::Swap(kind, local), slowness));
            }
        }
    }
    runs
}

/// One row for each share of the memory, with the time of each arm.
fn time_table(results: &Results) -> Table {
    let mut table = Table::new("GNU sort: time by local memory")
        .text("local")
        .number("LRU", "s")
        .number("FIFO", "s")
        .number("compressed", "s");
    table = table
        .number("zram", "s")
        .number("swap file", "s")
        .number("LRU / native", "")
        .number("paper: LRU / native", "");
    let native = results.spread(NATIVE, |outcome| outcome.seconds);
    table.row(["native (no limit)".to_owned(), results.time_cell(NATIVE)]);
    for share in SHARES {
        let lru = ours_key(share, ReplacementKind::Lru);
        let ratio = match (results.spread(&lru, |outcome| outcome.seconds), native) {
            (Some(ours), Some(native)) => format!("{:.2}", ours.median / native.median),
            _ => String::new(),
        };
        let compressed =
            if share == 30 { results.time_cell("sort 30 compressed") } else { String::new() };
        let peers = PEERS.map(|kind| {
            if share == 100 { String::new() } else { results.time_cell(&peer_key(share, kind)) }
        });
        let fifo = if replacements(share).len() == 1 {
            String::new()
        } else {
            results.time_cell(&ours_key(share, ReplacementKind::Fifo))
        };
        let paper = match share {
            60 => "≤ 1.10",
            30 => "≤ 1.10",
            15 => "collapsed",
            _ => "",
        };
        table.row(
            [
                vec![format!("{share} %"), results.time_cell(&lru), fifo, compressed],
                peers.into(),
                vec![ratio, paper.into()],
            ]
            .concat(),
        );
    }
    let peak = results.of(NATIVE).iter().map(|outcome| outcome.peak_bytes).max().unwrap_or(0);
    table.note(format!(
        "Local is a share of the {} MB that the sort uses; at 100 % there is a tenth and 64 MiB more, so that nothing has to leave.",
        peak / 1_000_000
    ));
    table.note("LRU and FIFO over TCP to a server on this machine. Every output is compared with the native one.");
    table.note("Paper: 3.3 GB used; 2 GB (60 %) and 1 GB (30 %) local at most 10 % slower than native, disk swap 12.5x and over 40x as long; 512 MB (15 %) collapsed, disk over 48 h.");
    table
}

fn traffic_table(results: &Results) -> Table {
    let mut table = Table::new("GNU sort: what moved")
        .text("run")
        .number("faults", "k")
        .number("fetched", "GB")
        .number("written", "GB")
        .number("clean", "GB")
        .number("prefetches", "k")
        .number("wasted", "k")
        .number("peak local", "MB");
    for share in SHARES {
        for &replacement in replacements(share) {
            let key = ours_key(share, replacement);
            let count = |name: &'static str, unit: f64| {
                let number = move |outcome: &TaskResult| {
                    outcome.counters.get(name).map_or(f64::NAN, |&value| value as f64 / unit)
                };
                results.spread(&key, number).map_or(String::new(), |spread| figures(spread.median))
            };
            if !results.of(&key).is_empty() {
                let cells = [
                    ("faults", 1e3),
                    ("fetched_bytes", 1e9),
                    ("written_bytes", 1e9),
                    ("clean_bytes", 1e9),
                    ("prefetches", 1e3),
                    ("prefetches_wasted", 1e3),
                    ("local_bytes_max", 1e6),
                ];
                table.row(
                    [format!("{share} % {}", replacement_name(replacement))]
                        .into_iter()
                        .chain(cells.map(|(name, unit)| count(name, unit))),
                );
            }
        }
    }
    table
}

pub fn report(params: &Params, results: &Results, report: &mut Report) {
    let lru = |share| ours_key(share, ReplacementKind::Lru);
    let goals = [
        ("sort_100", 100, 1.03, 1.00, None),
        ("sort_60", 60, 1.15, 1.05, Some("≤ 1.10")),
        ("sort_30", 30, 1.35, 1.10, Some("≤ 1.10")),
    ];
    for (name, share, must, aim, paper) in goals {
        let measure =
            lower(name, &format!("sort, {share} % local: of native time")).must(must).aim(aim);
        let measure = if let Some(paper) = paper { measure.paper(paper) } else { measure };
        report.measures.push(results.time_ratio(measure, &lru(share), NATIVE));
    }
    report.measures.push(results.time_ratio(
        lower("sort_15", "sort, 15 % local: of native time").aim(3.0).paper("collapsed"),
        &lru(15),
        NATIVE,
    ));
    for (kind, paper) in [(SwapKind::Zram, ""), (SwapKind::File, "0.02 or less (30 %)")] {
        let name = format!("sort_15_vs_{}", kind.name().replace(' ', "_"));
        let measure = lower(&name, &format!("sort, 15 % local: of {}'s time", kind.name()))
            .must(1.0)
            .paper(paper);
        report.measures.push(results.race(measure, &lru(15), &peer_key(15, kind)));
    }
    let measure = lower("sort_lru_vs_fifo_30", "sort, 30 % local: LRU of FIFO's time")
        .must(1.0)
        .aim(0.7)
        .paper("0.967, 0.972");
    report.measures.push(results.time_ratio(
        measure,
        &lru(30),
        &ours_key(30, ReplacementKind::Fifo),
    ));

    let series = |name: &str, key: &dyn Fn(u32) -> String| {
        let points: Vec<Point> = SHARES
            .iter()
            .enumerate()
            .filter_map(|(place, &share)| {
                results.point(place as f64, &key(share), |outcome| outcome.seconds)
            })
            .collect();
        Series::new(name, points)
    };
    let mut shown = vec![
        series("LRU", &lru),
        series("FIFO", &|share| ours_key(share, ReplacementKind::Fifo)),
        series("zram swap", &|share| peer_key(share, SwapKind::Zram)),
        series("swap file", &|share| peer_key(share, SwapKind::File)),
    ];
    shown.extend(
        results
            .spread(NATIVE, |outcome| outcome.seconds)
            .map(|native| Series::level("native", native.median, SHARES.len())),
    );
    let plot = Plot {
        title: "GNU sort by local memory".into(),
        kind: Kind::Bars,
        x: Axis::names("local memory, % of what it uses", SHARES.map(|share| share.to_string())),
        y: Axis::linear("time", "s"),
        series: shown,
    };
    let text = format!(
        "`sort --parallel=1` of {:.1} million random numbers of nine digits, one per line. A run that takes more than {} times as long as native (ours at 15 %, which is measured once: {} times) is given up; its bar is missing.",
        params.lines as f64 / 1e6,
        figures(params.patience),
        figures(SLOW_PATIENCE * params.patience)
    );
    report.sections.push(Section {
        title: "GNU sort by local memory".into(),
        text: vec![text],
        tables: vec![time_table(results), traffic_table(results)],
        plots: vec![plot],
    });
}
