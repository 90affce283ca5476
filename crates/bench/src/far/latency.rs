//! Latency of a single swap-in, as seen by the touching thread (the paper on remote swap, figure
//! 4).

use hiroma_far::config::BlockSize;
use hiroma_report::{Axis, Better, Kind, Measure, Plot, Report, Section, Series, Spread, Table};

use super::params::Params;
use super::plan::{Ours, Place, Run, block_name};
use super::results::Results;
use super::seq::{blocks, bytes_of};
use crate::job::{Latency, Task};

/// Number of touches in one repetition.
const TOUCHES: usize = 2000;

fn key(block: BlockSize) -> String {
    format!("latency {}", block_name(block))
}

fn fixed(params: &Params) -> impl Iterator<Item = BlockSize> {
    blocks(params).into_iter().filter(|&block| block != BlockSize::Auto)
}

pub fn plan(params: &Params) -> Vec<Run> {
    let run = |block| {
        let size = bytes_of(block);
        let bytes = (size * TOUCHES).min(params.region / 2).max(64 << 20).next_multiple_of(2 << 20);
        let ours = Ours::tcp(bytes as u64 / 4, bytes as u64).block(block).without_prefetch();
        Run::task(key(block), Place::Ours(ours), Task::Latency { bytes, block: size }, 0.5)
    };
    fixed(params).map(run).collect()
}

pub fn report(params: &Params, results: &Results, report: &mut Report) {
    let mut table = Table::new("Swap-in latency over TCP, one block at a time").text("block");
    for name in ["mean", "sd", "p50", "p99", "max"] {
        table = table.number(name, "µs");
    }
    let mut table = table.number("touches", "").number("paper: mean", "µs");
    type Number = fn(&Latency) -> f64;
    let columns: [Number; 5] =
        [|l| l.mean_us, |l| l.deviation_us, |l| l.p50_us, |l| l.p99_us, |l| l.max_us];
    let of = |key: &str, number: Number| {
        results.spread(key, |outcome| outcome.latency.as_ref().map_or(f64::NAN, number))
    };
    for block in fixed(params) {
        let key = key(block);
        let cells = columns.iter().map(|&number| {
            of(&key, number).map_or_else(|| results.cell(&key, |_| f64::NAN), Spread::to_text)
        });
        let touches =
            results.of(&key).first().map_or(String::new(), |outcome| outcome.count.to_string());
        let paper = if bytes_of(block) == 1 << 20 { "1200" } else { "" };
        table.row([block_name(block)].into_iter().chain(cells).chain([touches, paper.to_owned()]));
    }
    table.note("No prefetching. Paper: about 1.2 ms at 1M, standard deviation some tens of µs at every size; figure 4.");
    let series = |name: &str, number: Number| {
        let spreads = fixed(params).enumerate().filter_map(|(place, block)| {
            Some(hiroma_report::Point::of(place as f64, of(&key(block), number)?))
        });
        Series::new(name, spreads.collect())
    };
    let names: Vec<String> = fixed(params).map(block_name).collect();
    let paper = Series::level("paper, 1M", 1200.0, names.len());
    let plot = Plot {
        title: "Swap-in latency by block size".into(),
        kind: Kind::Lines,
        x: Axis::names("block size", names),
        y: Axis::log("latency", "µs"),
        series: vec![
            series("p50", columns[2]),
            series("p99", columns[3]),
            series("max", columns[4]),
            paper,
        ],
    };
    let at_1m = key(BlockSize::Fixed(1 << 20));
    for (name, title, number, paper) in [
        ("latency_1m_p50", "swap-in of 1M, p50", columns[2], "1200 (mean)"),
        ("latency_1m_p99", "swap-in of 1M, p99", columns[3], "sd: some tens"),
    ] {
        report.measures.push(
            Measure::new(name, title, "µs", Better::Lower).paper(paper).spread(of(&at_1m, number)),
        );
    }
    report.sections.push(Section {
        title: "Swap-in latency".into(),
        text: vec![
            "Everything is far; the first word of each block is read in order and timed, then the rest of the block is read.".into(),
        ],
        tables: vec![table],
        plots: vec![plot],
    });
}
