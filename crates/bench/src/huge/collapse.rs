//! Time that a process waits while one of its ranges is collapsed, with and without making the
//! memory ready before.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hiroma_hot::Readiness;
use hiroma_memload::ballast::Ballast;
use hiroma_report::{Better, Measure, Report, Section, Spread, Table};
use hiroma_sys::hot::target::{Advice, Span, Target};
use hiroma_units::EXTENT;

use super::Params;
use super::load::{Load, Loaded, Pages, Pattern};
use crate::progress::Progress;

/// Number of processes, one after the other.
const STARTS: usize = 3;
/// Time after which a hypervisor has reclaimed free memory (free page reporting waits for two
/// seconds).
const COOLING: Duration = Duration::from_secs(5);
/// Minimum number of collapses for a meaningful 99th percentile.
const ENOUGH: usize = 50;

/// Durations in milliseconds.
#[derive(Default)]
struct Durations {
    ready: Vec<f64>,
    plain: Vec<f64>,
    making_ready: Vec<f64>,
}

fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .get((sorted.len() * percent).div_ceil(100).saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Collapses all of a process; every second range as in managing, with the memory made ready. The
/// memory that collapses take was free for a while.
fn collapse_all(params: &Params, ballast: &Ballast) -> Result<Durations> {
    let loaded =
        Loaded::start(Load::new(params.bytes, Pattern::Sequential, Pages::Default), ballast)?;
    let target = Target::open(loaded.pid()).context("opening the load")?;
    thread::sleep(COOLING);
    let mut readiness = Readiness::new();
    let mut durations = Durations::default();
    let ms = |ns: u64| ns as f64 / 1e6;
    for range in 0..params.bytes / EXTENT {
        let span = Span { start: loaded.base + (range * EXTENT) as u64, len: EXTENT as u64 };
        let with = range % 2 == 0;
        let made_ready_ns = if with { readiness.before() } else { None };
        let began = Instant::now();
        // A page that moves between the kernel's lists is not a reason to fail.
        if target.advise(&[span], Advice::Collapse).is_err() {
            continue;
        }
        let took_ns = began.elapsed().as_nanos() as u64;
        if with {
            readiness.note(made_ready_ns, took_ns);
            durations.ready.push(ms(took_ns));
            durations.making_ready.push(ms(made_ready_ns.unwrap_or(0)));
        } else {
            durations.plain.push(ms(took_ns));
        }
    }
    loaded.end()?;
    ensure!(
        durations.ready.len().min(durations.plain.len()) >= ENOUGH,
        "of {} ranges too few could be collapsed",
        params.bytes / EXTENT
    );
    Ok(durations)
}

/// Measures and reports.
pub fn run(
    params: &Params,
    ballast: &Ballast,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let mut starts = Vec::new();
    for start in 0..STARTS {
        progress.starts(&format!("collapse, start {} of {STARTS}", start + 1));
        starts.push(collapse_all(params, ballast)?);
    }
    let of = |values: fn(&Durations) -> &Vec<f64>, percent: usize| {
        Spread::of(
            &starts
                .iter()
                .map(|durations| percentile(values(durations), percent))
                .collect::<Vec<f64>>(),
        )
    };
    let mut table = Table::new("Collapsing a range")
        .text("memory")
        .number("median", "ms")
        .number("99th percentile", "ms");
    let mut row = |name: &str, values: fn(&Durations) -> &Vec<f64>| {
        let text = |percent| of(values, percent).map_or("–".to_owned(), Spread::to_text);
        table.row([name.to_owned(), text(50), text(99)]);
    };
    row("made ready before, as by default", |durations| &durations.ready);
    row("as it comes", |durations| &durations.plain);
    row("making it ready (the manager's own time)", |durations| &durations.making_ready);
    let mut add = |name: &str, what: &str, values: fn(&Durations) -> &Vec<f64>, percent| {
        let title = format!("The process waits while a range is collapsed, {what}");
        report
            .measures
            .push(Measure::new(name, title, "ms", Better::Lower).spread(of(values, percent)));
    };
    add("collapse_ms_p50", "median", |durations| &durations.ready, 50);
    add("collapse_ms_p99", "99th percentile", |durations| &durations.ready, 99);
    add("collapse_plain_ms_p50", "median, memory not made ready", |durations| &durations.plain, 50);
    add(
        "collapse_plain_ms_p99",
        "99th percentile, memory not made ready",
        |durations| &durations.plain,
        99,
    );
    report.sections.push(Section {
        title: "What collapsing costs the program".into(),
        text: vec![format!(
            "Processes of small pages are collapsed range by range, {STARTS} processes; every second range with the memory made ready before, as managing does it. Memory lay free for {} s before, \
             so that a hypervisor that takes back what its guest leaves free has done so. Where none does, both are alike, and making ready soon ends by itself.",
            COOLING.as_secs()
        )],
        tables: vec![table],
        plots: vec![],
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(
            (percentile(&values, 50), percentile(&values, 99), percentile(&[3.0], 99)),
            (100.0, 198.0, 3.0)
        );
        assert!(percentile(&[], 50).is_nan());
    }
}
