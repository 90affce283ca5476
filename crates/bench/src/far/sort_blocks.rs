//! GNU sort by block size with 18 % of its memory local (the paper on remote swap, figure 7), and
//! long lines, which are too slow for all arms.

use hiroma_far::config::{BlockSize, ReplacementKind};
use hiroma_report::{Axis, Kind, Plot, Point, Report, Section, Series, Table};

use super::params::Params;
use super::plan::{Local, Place, Run, Text, TimeLimit, Work, block_name};
use super::results::{Results, lower};
use super::sort::{memory_of, on_server, replacement_name, seconds_of};
use crate::peers::SwapKind;

const NATIVE: &str = "sort-blocks native";
const KINDS: [ReplacementKind; 2] = [ReplacementKind::Lru, ReplacementKind::Fifo];
const LONG_NATIVE: &str = "long-lines native";

/// Number of lines of the smaller text of numbers.
pub fn few_lines(params: &Params) -> u64 {
    // 18 % of its memory must be more than the minimum for a program.
    (params.lines / 4).max(2_200_000)
}

/// Number of lines of 70 letters.
pub fn long_lines(params: &Params) -> u64 {
    (params.lines / 7).max(700_000)
}

fn blocks(params: &Params) -> Vec<BlockSize> {
    let kib: &[u32] = if params.quick { &[] } else { &[256, 512, 1024, 2048] };
    kib.iter().map(|&kib| BlockSize::Fixed(kib << 10)).chain([BlockSize::Auto]).collect()
}

fn key(block: BlockSize, replacement: ReplacementKind) -> String {
    format!("sort-blocks {} {}", block_name(block), replacement_name(replacement))
}

pub fn plan(params: &Params) -> Vec<Run> {
    let lines = few_lines(params);
    let run = |key: String, place: Place, slowness: f64, limit| Run {
        key,
        place,
        work: Work::Sort(Text::FewNumbers),
        seconds: seconds_of(lines) * slowness,
        limit,
        once: false,
    };
    let mut runs = vec![run(NATIVE.into(), Place::Native, 1.0, TimeLimit::Seconds(300.0))];
    for block in blocks(params) {
        for replacement in KINDS {
            let ours = on_server(memory_of(lines, 10), Local::Percent(18.0, NATIVE))
                .block(block)
                .replacement(replacement);
            runs.push(run(
                key(block, replacement),
                Place::Ours(ours),
                2.5,
                TimeLimit::Times(1.5 * params.patience, NATIVE),
            ));
        }
    }
    runs
}

pub fn report(params: &Params, results: &Results, report: &mut Report) {
    let mut table = Table::new("GNU sort by block size, 18 % local")
        .text("block")
        .number("LRU", "s")
        .number("FIFO", "s")
        .number("LRU / FIFO", "")
        .number("paper: LRU / FIFO", "");
    let (mut best, mut best_time) = ("–".to_owned(), f64::INFINITY);
    for block in blocks(params) {
        let [lru, fifo] = KINDS.map(|replacement| key(block, replacement));
        let ratio = results.time_ratio(lower("", ""), &lru, &fifo);
        table.row([
            block_name(block),
            results.time_cell(&lru),
            results.time_cell(&fifo),
            ratio.value_text(),
            "0.59–0.73".to_owned(),
        ]);
        if let Some(time) =
            results.spread(&lru, |outcome| outcome.seconds).filter(|time| time.median < best_time)
        {
            (best, best_time) = (block_name(block), time.median);
        }
    }
    table.note(format!(
        "{:.1} million lines; native {} s. Best with LRU: {best} (paper: 512K).",
        few_lines(params) as f64 / 1e6,
        results.time_cell(NATIVE)
    ));
    table.note("Paper: 5.6 GB used, 1 GB local; figure 7.");
    let auto = KINDS.map(|replacement| key(BlockSize::Auto, replacement));
    report.measures.push(results.time_ratio(
        lower("sort_18_lru_vs_fifo", "sort, 18 % local: LRU of FIFO's time").paper("0.59–0.73"),
        &auto[0],
        &auto[1],
    ));
    let series = KINDS.map(|replacement| {
        let points = blocks(params).into_iter().enumerate();
        let points: Vec<Point> = points
            .filter_map(|(place, block)| {
                results.point(place as f64, &key(block, replacement), |outcome| outcome.seconds)
            })
            .collect();
        Series::new(replacement_name(replacement), points)
    });
    let plot = Plot {
        title: "GNU sort by block size, 18 % local".into(),
        kind: Kind::Bars,
        x: Axis::names("block size", blocks(params).into_iter().map(block_name)),
        y: Axis::linear("time", "s"),
        series: series.into(),
    };
    report.sections.push(Section {
        title: "GNU sort by block size".into(),
        text: vec![],
        tables: vec![table],
        plots: vec![plot],
    });
}

pub fn plan_long(params: &Params) -> Vec<Run> {
    let lines = long_lines(params);
    let seconds = seconds_of(lines);
    let limit = TimeLimit::Times(params.patience, LONG_NATIVE);
    let run = |key: &str, place: Place, slowness: f64| Run {
        key: key.into(),
        place,
        work: Work::Sort(Text::LongLines),
        seconds: seconds * slowness,
        limit,
        once: false,
    };
    let mut runs = vec![
        Run { limit: TimeLimit::Seconds(300.0), ..run(LONG_NATIVE, Place::Native, 1.0) },
        run(
            "long-lines 30",
            Place::Ours(on_server(memory_of(lines, 71), Local::Percent(30.0, LONG_NATIVE))),
            params.patience / 2.0,
        ),
    ];
    for kind in [SwapKind::Zram, SwapKind::File] {
        runs.push(run(
            &format!("long-lines 30 {}", kind.name()),
            Place::Swap(kind, Local::Percent(30.0, LONG_NATIVE)),
            params.patience / 2.0,
        ));
    }
    runs
}

pub fn report_long(params: &Params, results: &Results, report: &mut Report) {
    let mut table =
        Table::new("GNU sort of long lines, 30 % local").text("what").number("time", "s");
    for (name, key) in [
        ("native", LONG_NATIVE),
        ("far memory", "long-lines 30"),
        ("zram swap", "long-lines 30 zram"),
        ("swap file", "long-lines 30 swap file"),
    ] {
        table.row([name.to_owned(), results.time_cell(key)]);
    }
    table.note(
        "The text alone is larger than local memory and is read at random, which is slow in all arms.",
    );
    let text = format!(
        "{:.1} million lines of 70 random letters; 30 % of the memory that the sort uses is local.",
        long_lines(params) as f64 / 1e6
    );
    report.measures.push(results.time_ratio(
        lower("long_lines_30", "sort of long lines, 30 % local: of native time"),
        "long-lines 30",
        LONG_NATIVE,
    ));
    report.sections.push(Section {
        title: "GNU sort of long lines".into(),
        text: vec![text],
        tables: vec![table],
        plots: vec![],
    });
}
