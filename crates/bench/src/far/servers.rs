//! Three servers, filled one after the other or in turn (the paper on remote swap, section 4 (2)).

use hiroma_far::config::{Allocation, BlockSize};
use hiroma_report::{Measure, Report, Section, Table};

use super::params::Params;
use super::plan::{Local, Ours, Place, Run, Store, block_name};
use super::results::{Results, higher};
use crate::job::{Task, TaskResult};

const SERVERS: usize = 3;
const BLOCKS: [BlockSize; 2] = [BlockSize::Fixed(1 << 20), BlockSize::Auto];
const WAYS: [Allocation; 2] = [Allocation::Simple, Allocation::RoundRobin];

fn key(block: BlockSize, way: Allocation) -> String {
    let way = if way == Allocation::Simple { "simple" } else { "round-robin" };
    format!("servers {} {way}", block_name(block))
}

pub fn plan(params: &Params) -> Vec<Run> {
    let bytes = params.region;
    // Each server has room for half of the memory: filled one after the other, at least two are
    // used.
    let store = |allocation| Store::Tcp {
        servers: SERVERS,
        each: bytes as u64 / 2 + (32 << 20),
        allocation,
    };
    let run = |block, way| {
        let ours = Ours::on(store(way), Local::Bytes(bytes as u64 / 4)).block(block);
        Run::task(
            key(block, way),
            Place::Ours(ours),
            Task::Sequential { bytes },
            1.5 * bytes as f64 / (1u64 << 30) as f64 + 0.2,
        )
    };
    BLOCKS.into_iter().flat_map(|block| WAYS.map(|way| run(block, way))).collect()
}

pub fn report(_params: &Params, results: &Results, report: &mut Report) {
    let speed = TaskResult::gb_per_s;
    let mut table = Table::new("Sequential read from three servers")
        .text("block")
        .number("simple", "GB/s")
        .number("round robin", "GB/s")
        .number("round robin / simple", "")
        .number("paper", "");
    for block in BLOCKS {
        let [simple, turns] = WAYS.map(|way| key(block, way));
        let ratio: Measure = results.ratio(higher("", ""), &turns, &simple, speed);
        table.row([
            block_name(block),
            results.cell(&simple, speed),
            results.cell(&turns, speed),
            ratio.value_text(),
            "0.95–1.07".to_owned(),
        ]);
    }
    table.note("All servers are on this machine and share its processors and its loopback.");
    let [simple, turns] = WAYS.map(|way| key(BlockSize::Auto, way));
    report.measures.push(results.ratio(
        higher("round_robin_vs_simple", "round robin: of simple's speed").paper("0.95–1.07"),
        &turns,
        &simple,
        speed,
    ));
    report.sections.push(Section {
        title: "Allocation over servers".into(),
        text: vec![],
        tables: vec![table],
        plots: vec![],
    });
}
