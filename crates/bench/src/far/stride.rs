//! Reading one word per stride, by block size (the paper on remote swap, figure 5).

use hiroma_far::config::BlockSize;
use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table, figures,
};

use super::params::Params;
use super::plan::{Ours, Place, Run, block_name, size_name};
use super::results::Results;
use crate::job::Task;

const BLOCKS: [BlockSize; 4] = [
    BlockSize::Fixed(32 << 10),
    BlockSize::Fixed(128 << 10),
    BlockSize::Fixed(1 << 20),
    BlockSize::Auto,
];
const STRIDES: [usize; 9] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

fn key(block: BlockSize) -> String {
    format!("stride {}", block_name(block))
}

pub fn plan(params: &Params) -> Vec<Run> {
    let bytes = params.region / 4;
    let run = |block| {
        let ours = Ours::tcp(bytes as u64 / 4, bytes as u64).block(block);
        // As in the paper, a fixed block size runs without prefetching; `auto` is what a user gets.
        let ours = if block == BlockSize::Auto { ours } else { ours.without_prefetch() };
        Run::task(
            key(block),
            Place::Ours(ours),
            Task::Stride { bytes, strides: STRIDES.to_vec() },
            0.3 + 1.5 * params.region as f64 / (1u64 << 30) as f64,
        )
    };
    BLOCKS.into_iter().map(run).collect()
}

/// Time by block and stride, relative to (1M, 4K).
fn relative(results: &Results, block: BlockSize, stride: usize) -> Option<Spread> {
    let seconds = |outcome: &crate::job::TaskResult, stride: usize| {
        outcome.stride_seconds.get(stride).copied().unwrap_or(f64::NAN)
    };
    let unit =
        results.spread(&key(BlockSize::Fixed(1 << 20)), |outcome| seconds(outcome, 0))?.median;
    results.spread(&key(block), |outcome| seconds(outcome, stride) / unit)
}

/// The smallest stride from which on blocks of `small` are faster than blocks of `large`.
fn crossing(results: &Results, small: BlockSize, large: BlockSize) -> String {
    let faster = |stride: usize| {
        Some(relative(results, small, stride)?.median < relative(results, large, stride)?.median)
    };
    let slower = (0..STRIDES.len()).rev().find(|&stride| faster(stride) == Some(false));
    match slower {
        Some(last) if last + 1 < STRIDES.len() => size_name(STRIDES[last + 1]),
        Some(_) => "beyond 1M".to_owned(),
        None if faster(0).is_some() => "4K".to_owned(),
        None => "–".to_owned(),
    }
}

pub fn report(_params: &Params, results: &Results, report: &mut Report) {
    let mut table =
        Table::new("Stride access over TCP: time relative to 1M blocks at a stride of 4K")
            .text("stride");
    for block in BLOCKS {
        table = table.number(block_name(block), "");
    }
    for (index, &stride) in STRIDES.iter().enumerate() {
        let cells = BLOCKS.map(|block| {
            relative(results, block, index)
                .map_or("–".to_owned(), |spread| figures(spread.median))
        });
        table.row([size_name(stride)].into_iter().chain(cells));
    }
    let [small, middle, large, _] = BLOCKS;
    let crossings = [(small, large, "256K"), (small, middle, "128K")];
    for (one, other, paper) in crossings {
        let here = crossing(results, one, other);
        table.note(format!(
            "{} blocks are faster than {} from a stride of {here} on (paper: {paper}).",
            block_name(one),
            block_name(other)
        ));
    }
    table.note("Paper: at a stride of 4K, 32K and 128K blocks take 4.2 and 1.8 times as long as 1M; figure 5. `auto` prefetches, the others do not.");
    for (name, block, paper) in [("stride_4k_32k", small, 4.2), ("stride_4k_128k", middle, 1.8)] {
        let title = format!("stride 4K: {} blocks against 1M", block_name(block));
        report.measures.push(
            Measure::new(name, title, "", Better::Lower)
                .paper_number(paper)
                .spread(relative(results, block, 0)),
        );
    }
    let series = BLOCKS.map(|block| {
        let points = (0..STRIDES.len())
            .filter_map(|stride| Some(Point::of(stride as f64, relative(results, block, stride)?)));
        Series::new(block_name(block), points.collect())
    });
    let plot = Plot {
        title: "Stride access by block size".into(),
        kind: Kind::Lines,
        x: Axis::names("stride", STRIDES.map(size_name)),
        y: Axis::log("time, relative to 1M blocks at a stride of 4K", ""),
        series: series.into(),
    };
    let text = "Everything is far; one word per stride is read through the whole region.";
    report.sections.push(Section {
        title: "Stride access".into(),
        text: vec![text.into()],
        tables: vec![table],
        plots: vec![plot],
    });
}
