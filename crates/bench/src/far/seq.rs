//! Sequential reading with everything far at the start (the paper on remote swap, figure 3).

use hiroma_far::config::BlockSize;
use hiroma_report::{Axis, Better, Kind, Measure, Plot, Report, Section, Series, Table};

use super::params::Params;
use super::plan::{Local, Ours, Place, Run, TimeLimit, Work, block_name};
use super::results::{Results, higher};
use crate::job::{Task, TaskResult};

pub fn blocks(params: &Params) -> Vec<BlockSize> {
    let sizes: &[u32] = if params.quick {
        &[4 << 10, 64 << 10, 1 << 20, 2 << 20]
    } else {
        &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20]
    };
    sizes.iter().map(|&bytes| BlockSize::Fixed(bytes)).chain([BlockSize::Auto]).collect()
}

pub fn bytes_of(block: BlockSize) -> usize {
    match block {
        BlockSize::Auto => 2 << 20,
        BlockSize::Fixed(bytes) => bytes as usize,
    }
}

fn key(block: BlockSize) -> String {
    format!("seq tcp {}", block_name(block))
}

pub fn plan(params: &Params) -> Vec<Run> {
    let gib = params.region as f64 / (1u64 << 30) as f64;
    let mut runs = vec![Run {
        key: "seq raw".into(),
        place: Place::Native,
        work: Work::Stream(2 * params.region as u64),
        seconds: 0.8 * gib,
        limit: TimeLimit::Seconds(60.0),
        once: false,
    }];
    for block in blocks(params) {
        let bytes = params.region_for(bytes_of(block));
        let ours = Ours::tcp(bytes as u64 / 4, bytes as u64).block(block);
        runs.push(Run::task(
            key(block),
            Place::Ours(ours),
            Task::Sequential { bytes },
            1.5 * gib + 0.2,
        ));
    }
    let task = Task::Sequential { bytes: params.peer_region };
    runs.extend(Run::peers(
        "seq",
        Local::Bytes(params.peer_region as u64 / 4),
        &task,
        params.peer_region as f64 / 120e6,
    ));
    runs
}

pub fn report(params: &Params, results: &Results, report: &mut Report) {
    let speed = TaskResult::gb_per_s;
    let mut table = Table::new("Sequential read, everything far")
        .text("what")
        .number("this machine", "GB/s")
        .number("of raw TCP", "")
        .number("paper", "GB/s");
    let raw = results.spread("seq raw", speed);
    let share = |key: &str| match (results.spread(key, speed), raw) {
        (Some(ours), Some(raw)) => format!("{:.2}", ours.median / raw.median),
        _ => String::new(),
    };
    for block in blocks(params) {
        let paper = if bytes_of(block) == 1 << 20 { "0.603" } else { "" };
        table.row([
            format!("far memory over TCP, {} blocks", block_name(block)),
            results.cell(&key(block), speed),
            share(&key(block)),
            paper.into(),
        ]);
    }
    table.row([
        "raw TCP stream, 2M".into(),
        results.cell("seq raw", speed),
        share("seq raw"),
        String::new(),
    ]);
    for (peer, paper) in [("zram", ""), ("swap file", "0.0589 (disk)")] {
        let key = format!("seq {peer}");
        table.row([format!("{peer} swap"), results.cell(&key, speed), share(&key), paper.into()]);
    }
    table.note("Paper: Myrinet 10G, 64 GB with 1 GB local; figure 3.");

    let names: Vec<String> = blocks(params).into_iter().map(block_name).collect();
    let places = names.len();
    let points = blocks(params)
        .into_iter()
        .enumerate()
        .filter_map(|(place, block)| results.point(place as f64, &key(block), speed))
        .collect();
    let mut series = vec![Series::new("far memory over TCP", points)];
    for (name, key) in
        [("raw TCP", "seq raw"), ("zram swap", "seq zram"), ("swap file", "seq swap file")]
    {
        series.extend(
            results.spread(key, speed).map(|spread| Series::level(name, spread.median, places)),
        );
    }
    series.push(Series::level("paper, 1M", 0.603, places));
    let plot = Plot {
        title: "Sequential read by block size".into(),
        kind: Kind::Lines,
        x: Axis::names("block size", names),
        y: Axis::log("bandwidth", "GB/s"),
        series,
    };

    let auto = key(BlockSize::Auto);
    let absolute = Measure::new("seq_gb_per_s", "sequential read over TCP", "GB/s", Better::Higher)
        .paper("0.603 at 1M");
    report.measures.push(absolute.spread(results.spread(&auto, speed)));
    report.measures.push(results.ratio(
        higher("seq_vs_raw_tcp", "sequential read: of raw TCP").must(0.9).aim(1.0),
        &auto,
        "seq raw",
        speed,
    ));
    report.measures.push(results.ratio(
        higher("seq_vs_zram", "sequential read: times zram").must(15.0).aim(25.0),
        &auto,
        "seq zram",
        speed,
    ));
    let disk = higher("seq_vs_swap_file", "sequential read: times swap file")
        .must(15.0)
        .aim(25.0)
        .paper_number(10.2);
    report.measures.push(results.ratio(disk, &auto, "seq swap file", speed));
    report.sections.push(Section {
        title: "Sequential read".into(),
        text: vec!["Memory is filled, pushed out as a whole, and read from start to end, adding up every word. The program's sum is compared with what was written.".into()],
        tables: vec![table],
        plots: vec![plot],
    });
}
