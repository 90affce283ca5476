//! Cost of a round by size of the process (the paper's figure 10).

use anyhow::{Result, bail, ensure};
use hiroma_hot::layout::Layout;
use hiroma_hot::tracker;
use hiroma_hot::{Heat, RangeView};
use hiroma_hot::{bits, heat};
use hiroma_memload::ballast::Ballast;
use hiroma_report::{Axis, Better, Measure, Plot, Point, Report, Section, Series, Spread, Table};
use hiroma_sys::cpu::thread_ns;
use hiroma_sys::hot::maps;
use hiroma_units::{Bytes, EXTENT, PAGE};

use super::Params;
use super::load::{Load, Loaded, Pages, Pattern};
use crate::progress::Progress;

/// Number of rounds after which the tracker learns the usual state again.
const LEARNING_EVERY: usize = heat::USUAL_EVERY as usize;

/// Processor times, in milliseconds.
#[derive(Default)]
struct Times {
    clear: Vec<f64>,
    scan: Vec<f64>,
    count: Vec<f64>,
    /// Clearing a sixteenth of the ranges.
    part: Vec<f64>,
    /// Number of rounds that were repeated, because accessed bits had been cleared by others too.
    spoiled: usize,
}

impl Times {
    fn sum(&self, of: &[&[f64]]) -> Option<Spread> {
        let sums: Vec<f64> =
            (0..self.scan.len()).map(|at| of.iter().map(|times| times[at]).sum()).collect();
        Spread::of(&sums)
    }

    /// Means of as many consecutive rounds as there are between two learning rounds, so that each
    /// includes one learning round.
    fn read_means(&self) -> Option<Spread> {
        let read: Vec<f64> =
            self.scan.iter().zip(&self.count).map(|(scan, count)| scan + count).collect();
        let means: Vec<f64> = read
            .chunks_exact(LEARNING_EVERY)
            .map(|rounds| rounds.iter().sum::<f64>() / rounds.len() as f64)
            .collect();
        Spread::of(&means)
    }
}

/// The ranges of a load's memory.
pub fn ranges_of(loaded: &Loaded) -> Vec<u64> {
    let first = loaded.base / EXTENT as u64;
    (first..first + (loaded.load.bytes / EXTENT) as u64).collect()
}

fn ms(since: u64) -> f64 {
    (thread_ns() - since) as f64 / 1e6
}

fn measure(params: &Params, ballast: &Ballast, bytes: usize, pages: Pages) -> Result<Times> {
    let mut loaded = Loaded::start(Load::new(bytes, Pattern::Random, pages), ballast)?;
    let mut tracker = tracker::open(loaded.pid(), None)?;
    let layout = Layout::of(&maps::of(loaded.pid())?);
    let ranges = ranges_of(&loaded);
    let mut times = Times::default();
    let mut heat = Heat::new();
    let mut views: Vec<RangeView> = Vec::new();
    // Large sizes take long, and vary little.
    let repetitions = match bytes {
        _ if bytes == params.bytes => {
            params.repetitions.next_multiple_of(LEARNING_EVERY) + LEARNING_EVERY
        }
        _ if bytes > 4 * params.bytes => params.repetitions.min(5),
        _ => params.repetitions,
    };
    // The first rounds have cold caches and fresh memory, and know too little to notice change.
    let warmup = LEARNING_EVERY;
    let wanted = repetitions + warmup;
    let mut round = 0;
    while round < wanted {
        let began = thread_ns();
        tracker.clear(&layout, &ranges)?;
        let clear = ms(began);
        loaded.run(1)?;
        views.clear();
        let began = thread_ns();
        tracker.scan(&layout, &ranges, &mut views)?;
        let scan = ms(began);
        let began = thread_ns();
        heat.add(&views);
        let count = ms(began);
        let touched: u64 = views.iter().map(|view| u64::from(bits::count(&view.touched))).sum();
        // Others that clear bits (DAMON, reclaim) do so without a TLB flush. The few translations
        // of huge pages stay in the TLB, so their bits are not set again: such a round does not
        // show the cost of a round.
        if touched * (PAGE as u64) < bytes as u64 * 99 / 100 {
            times.spoiled += 1;
            let seen = Bytes(touched * PAGE as u64);
            ensure!(
                times.spoiled <= wanted,
                "{} of {} rounds saw too little to be touched, {seen} the last",
                times.spoiled,
                times.spoiled + round
            );
            continue;
        }
        let began = thread_ns();
        tracker.clear(&layout, &ranges[..ranges.len().div_ceil(16)])?;
        let part = ms(began);
        if round >= warmup {
            times.clear.push(clear);
            times.scan.push(scan);
            times.count.push(count);
            times.part.push(part);
        }
        round += 1;
    }
    loaded.end()?;
    Ok(times)
}

/// The paper's figure 10, with the paper's values beside.
fn by_size(all: Vec<Point>, only_scan: Vec<Point>) -> Plot {
    let paper = [(1.0, 37.0), (2.0, 72.0), (128.0, 2000.0)].map(|(x, y)| Point::at(x, y)).to_vec();
    Plot {
        title: "Processor time of a round by size (figure 10)".into(),
        x: Axis::log("memory of the process", "GiB"),
        y: Axis::log("processor time", "ms"),
        series: vec![
            Series { reference: true, ..Series::new("paper, scan and clear", paper) },
            Series::new("scan, clear, count", all),
            Series::new("scan and count", only_scan),
        ],
        ..Plot::default()
    }
}

/// Adds a row to the table.
fn add(table: &mut Table, what: &str, times: &Times) {
    let median = |times: &[f64]| Spread::of(times).map_or(f64::NAN, |spread| spread.median);
    let cells = [&times.clear, &times.part, &times.scan, &times.count]
        .map(|times| format!("{:.3}", median(times)));
    table.row(std::iter::once(what.to_owned()).chain(cells));
    if times.spoiled > 0 {
        table.note(format!(
            "{what}: {} rounds were repeated, since others had cleared accessed bits meanwhile",
            times.spoiled
        ));
    }
}

/// Adds the row of a size that could not be measured. Returns the final error message.
fn fail(table: &mut Table, what: &str, error: &anyhow::Error) -> String {
    table.row([what, "failed", "failed", "failed", "failed"]);
    table.note(format!("{what}: {error:#}"));
    format!("{what}: {error:#}")
}

/// The figures of the size that has goals.
fn add_measures(report: &mut Report, times: &Times, read: Option<Spread>, whole: Option<Spread>) {
    report.measures.push(
        Measure::new(
            "scan_1gib_ms",
            "Scan of 1 GiB of 4K pages, bits read and counted",
            "ms",
            Better::Lower,
        )
        .paper("37 ms with clearing")
        .must(0.5)
        .aim(0.25)
        .spread(read),
    );
    report.measures.push(
        Measure::new(
            "scan_1gib_mean_ms",
            "The same, mean: with what is usual learned anew in every eighth round",
            "ms",
            Better::Lower,
        )
        .spread(times.read_means()),
    );
    report.measures.push(
        Measure::new(
            "scan_clear_1gib_ms",
            "Scan and clear, all pages of 1 GiB",
            "ms",
            Better::Lower,
        )
        .paper_number(37.0)
        .must(30.0)
        .aim(15.0)
        .spread(whole),
    );
    report.measures.push(
        Measure::new("scan_clear_part_ms", "The same, a sixteenth in turn", "ms", Better::Lower)
            .aim(2.0)
            .spread(Spread::of(
                &times
                    .part
                    .iter()
                    .zip(&times.scan)
                    .map(|(part, scan)| part + scan / 16.0)
                    .collect::<Vec<_>>(),
            )),
    );
}

/// Measures and reports.
pub fn run(
    params: &Params,
    ballast: &Ballast,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let mut table = Table::new("Processor time of a round (median)")
        .text("memory")
        .number("clear", "ms")
        .number("clear 1/16", "ms")
        .number("scan", "ms")
        .number("count", "ms");
    let (mut all, mut only_scan) = (Vec::new(), Vec::new());
    let mut failed: Vec<String> = Vec::new();
    for &bytes in &params.sizes {
        let what = format!("{}, small pages", Bytes(bytes as u64));
        progress.starts(&format!("tracker, {what}"));
        let times = match measure(params, ballast, bytes, Pages::Small) {
            Ok(times) => times,
            Err(error) => {
                failed.push(fail(&mut table, &what, &error));
                continue;
            }
        };
        add(&mut table, &what, &times);
        let gib = bytes as f64 / (1u64 << 30) as f64;
        let read = times.sum(&[&times.scan, &times.count]);
        let whole = times.sum(&[&times.clear, &times.scan, &times.count]);
        only_scan.extend(read.map(|spread| Point::of(gib, spread)));
        all.extend(whole.map(|spread| Point::of(gib, spread)));
        if bytes == params.bytes {
            add_measures(report, &times, read, whole);
        }
    }
    progress.starts("tracker, huge pages");
    let what = format!("{}, huge pages", Bytes(params.bytes as u64));
    let huge = match measure(params, ballast, params.bytes, Pages::Huge) {
        Ok(times) => {
            add(&mut table, &what, &times);
            times
        }
        Err(error) => {
            failed.push(fail(&mut table, &what, &error));
            Times::default()
        }
    };
    report.measures.push(
        Measure::new(
            "scan_clear_huge_ms",
            "Scan and clear of 1 GiB of huge pages",
            "ms",
            Better::Lower,
        )
        .must(0.3)
        .spread(huge.sum(&[&huge.clear, &huge.scan, &huge.count])),
    );
    report.sections.push(Section {
        title: "What a round of the tracker costs (figure 10)".into(),
        text: vec![
            "All pages of a process are cleared, touched once in a random order by the process, read and counted. Processor time of the tracker's thread. Clearing includes a second look for pages that could not be cleared.".into(),
        ],
        tables: vec![table],
        plots: vec![by_size(all, only_scan)],
    });
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The plot, from made-up times.
    pub fn plot() -> Plot {
        by_size(
            vec![Point::at(1.0, 10.0), Point::at(2.0, 20.0)],
            vec![Point::at(1.0, 0.4), Point::at(2.0, 0.8)],
        )
    }
}
