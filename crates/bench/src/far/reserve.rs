//! Reserves a terabyte and touches a few gigabytes of it, and measures the local memory that far
//! memory takes.

use hiroma_report::{Better, Measure, Report, Section, Spread, Table};

use super::params::Params;
use super::plan::{Local, Ours, Place, Run, Store, roomy, size_name};
use super::results::{Results, higher};
use crate::job::{Task, TaskResult};

/// Number of touched stretches, evenly spread over the reservation.
const STRETCHES: usize = 16;

pub fn plan(params: &Params) -> Vec<Run> {
    let ours = Ours::on(
        Store::Compressed { capacity: roomy(params.touched as u64) },
        Local::Bytes(params.reserve_local),
    );
    let run = |key: &str, reserved| {
        let task = Task::Reserve { reserved, touched: params.touched, stretches: STRETCHES };
        Run::task(key, Place::Ours(ours), task, params.touched as f64 / 7e8)
    };
    vec![run("reserve large", params.reserved), run("reserve small", params.touched)]
}

pub fn report(params: &Params, results: &Results, report: &mut Report) {
    let write = |outcome: &TaskResult| outcome.bytes as f64 / 1e9 / outcome.fill_seconds;
    let both = |outcome: &TaskResult| {
        2.0 * outcome.bytes as f64 / 1e9 / (outcome.fill_seconds + outcome.seconds)
    };
    let mut table = Table::new("Speed by size of the reservation")
        .text("reserved")
        .number("fill", "GB/s")
        .number("read", "GB/s");
    for (key, reserved) in [("reserve large", params.reserved), ("reserve small", params.touched)] {
        table.row([
            size_name(reserved),
            results.cell(key, write),
            results.cell(key, TaskResult::gb_per_s),
        ]);
    }
    let (touched, local) = (size_name(params.touched), size_name(params.reserve_local as usize));
    table.note(format!(
        "{touched} touched in {STRETCHES} stretches spread evenly over the reservation, {local} local, the rest in the compressed store."
    ));
    let measure = higher(
        "reserve",
        &format!("{} reserved: speed of {touched} reserved", size_name(params.reserved)),
    );
    // "The same" means within the differences between repetitions of the same run here.
    report.measures.push(results.ratio(
        measure.must(0.9).aim(1.0).paper("64 GB on 1 GB"),
        "reserve large",
        "reserve small",
        both,
    ));
    report.sections.push(Section {
        title: "A large reservation".into(),
        text: vec![],
        tables: vec![table],
        plots: vec![],
    });
}

/// Runs of the other experiments that show metadata: key of the run, store, and how its memory is
/// used.
const METADATA: [(&str, &str); 4] = [
    ("seq tcp auto", "over TCP, read in order"),
    ("random tcp", "over TCP, read at random"),
    ("random compressed", "compressed, read at random"),
    ("reserve small", "compressed, filled and read in order"),
];
/// A separate case: almost all of the address space that it has tables for was never touched.
const METADATA_LARGE: (&str, &str) = ("reserve large", "the same in a large reservation");

pub fn report_metadata(params: &Params, results: &Results, report: &mut Report) {
    let share = |outcome: &TaskResult| {
        outcome.far.map_or(f64::NAN, |far| 100.0 * far.metadata_bytes as f64 / far.far_bytes as f64)
    };
    let mut table = Table::new("Metadata of far memory")
        .text("run")
        .number("far", "MB")
        .number("metadata", "kB")
        .number("of far", "%");
    let mut shares: Vec<Spread> = Vec::new();
    for (key, name) in METADATA.into_iter().chain([METADATA_LARGE]) {
        let Some(spread) = results.spread(key, share) else { continue };
        let far = results
            .spread(key, |outcome| outcome.far.map_or(f64::NAN, |far| far.far_bytes as f64 / 1e6));
        let metadata = results.spread(key, |outcome| {
            outcome.far.map_or(f64::NAN, |far| far.metadata_bytes as f64 / 1e3)
        });
        let text = |spread: Option<Spread>| {
            spread.map_or(String::new(), |spread| hiroma_report::figures(spread.median))
        };
        table.row([
            name.to_owned(),
            text(far),
            text(metadata),
            hiroma_report::figures(spread.median),
        ]);
        if key == METADATA_LARGE.0 {
            let measure = Measure::new(
                "metadata_reserved",
                format!("metadata with {} reserved", size_name(params.reserved)),
                "%",
                Better::Lower,
            );
            report.measures.push(measure.spread(Some(spread)));
        } else {
            shares.push(spread);
        }
    }
    if table.is_empty() {
        return;
    }
    let worst = shares.into_iter().max_by(|one, other| one.median.total_cmp(&other.median));
    let measure = Measure::new("metadata", "resident metadata, worst case", "%", Better::Lower)
        .must(0.2)
        .aim(0.1);
    report.measures.push(measure.spread(worst));
    let text = "Tables of the pager and its stores, in local memory, against the bytes that are far at that moment.";
    report.sections.push(Section {
        title: "Metadata".into(),
        text: vec![text.into()],
        tables: vec![table],
        plots: vec![],
    });
}
