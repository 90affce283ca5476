//! The page of `--report`: describes a run with far memory for a reader who does not know how it
//! works.

use hiroma_command::machine;
use hiroma_command::show;
use hiroma_far::control::{Counter, RANGE_BYTES, Snapshot, Waited};
use hiroma_report::{Axis, Plot, Point, Section, Series as Line, Table};
use hiroma_units::{Bytes, Nanos};

use crate::loss;
use crate::series::{Sample, Series};
use crate::stats::Report;

/// Number of ranges that the page shows.
const RANGES_SHOWN: usize = 10;
const MIB: f64 = (1 << 20) as f64;

/// The page.
pub fn page(report: &Report, series: &Series) -> hiroma_report::Report {
    let words: Vec<_> = report.command.iter().map(|word| word.to_string_lossy()).collect();
    let mut page = hiroma_report::Report {
        title: format!("Far memory of {}", words[0].rsplit('/').next().unwrap_or_default()),
        command: std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" "),
        made_at: machine::now(),
        machine: machine::look(),
        preamble: vec![report.summary()],
        ..hiroma_report::Report::default()
    };
    let Some(total) = report.watch.total() else {
        page.preamble.push(
            "The program used no memory that far memory could manage, so there is nothing to show."
                .to_owned(),
        );
        return page;
    };
    page.preamble.push(
        "The program ran with less memory of this machine than it uses. What did not fit (far memory) was kept in compressed memory, on a disk or on \
         another machine, and was fetched when the program touched it; the thread that touched it waited meanwhile. Times waited are estimates: what \
         was measured inside, and what it costs here to wake a thread. All figures are of the program and of the programs that it started."
            .to_owned(),
    );
    page.sections = vec![
        memory(series),
        faults(series),
        curve(&total, report.watch.largest(Counter::LimitBytes), report),
        regions(report),
        waits(&total),
        totals(&total, report),
    ];
    page
}

fn line(name: &str, samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Line {
    Line::new(name, samples.iter().map(|sample| Point::at(sample.seconds, value(sample))).collect())
}

fn memory(series: &Series) -> Section {
    let samples = &series.samples;
    let mut limit =
        line("limit of local memory", samples, |sample| sample.limit_bytes as f64 / MIB);
    limit.reference = true;
    Section {
        title: "Memory over time".to_owned(),
        text: vec![
            "Local: in this machine's memory, which the limit bounds together with what compressed memory takes. Far: in compressed memory, on disk, or \
             on another machine. Part of the far memory can be an older copy of what is local. With several programs at a time, all figures are sums."
                .to_owned(),
        ],
        plots: vec![Plot {
            title: "Where the program's memory was".to_owned(),
            x: Axis::linear("time since the start", "s"),
            y: Axis::linear("memory", "MiB"),
            series: vec![
                line("local", samples, |sample| sample.local_bytes as f64 / MIB),
                line("far", samples, |sample| sample.far_bytes as f64 / MIB),
                limit,
            ],
            ..Plot::default()
        }],
        ..Section::default()
    }
}

/// A counter as a rate between samples.
fn rate(name: &str, samples: &[Sample], count: impl Fn(&Sample) -> u64) -> Line {
    let points = samples.windows(2).filter(|pair| pair[1].seconds > pair[0].seconds).map(|pair| {
        let seconds = pair[1].seconds - pair[0].seconds;
        Point::at(
            (pair[0].seconds + pair[1].seconds) / 2.0,
            count(&pair[1]).saturating_sub(count(&pair[0])) as f64 / seconds,
        )
    });
    Line::new(name, points.collect())
}

fn faults(series: &Series) -> Section {
    let mut samples = vec![Sample::default()];
    samples.extend(&series.samples);
    let mut waiting = rate("waiting", &samples, |sample| sample.waiting_ns);
    waiting
        .points
        .iter_mut()
        .for_each(|point| *point = Point::at(point.x, (point.y / 1e7).min(100.0)));
    Section {
        title: "Faults over time".to_owned(),
        text: vec![
            "A fault is a touch of memory that is not in place; the thread waits until it is. First touch: memory that was never used before. Staged back: \
             about to leave, and still here. Fetched: it had to be brought from far memory, which takes longest. Prefetched: it had been sent for ahead \
             of need."
                .to_owned(),
        ],
        plots: vec![
            Plot {
                title: "Faults by kind".to_owned(),
                x: Axis::linear("time since the start", "s"),
                y: Axis::linear("faults", "per second"),
                series: vec![
                    rate("first touch", &samples, |sample| sample.first_touches),
                    rate("fetched", &samples, |sample| sample.fetched),
                    rate("staged back", &samples, |sample| sample.staged),
                    rate("prefetched", &samples, |sample| sample.prefetched),
                ],
                ..Plot::default()
            },
            Plot {
                title: "Time in which a thread waited for far memory".to_owned(),
                x: Axis::linear("time since the start", "s"),
                y: Axis::linear("share of the time", "%"),
                series: vec![waiting],
                ..Plot::default()
            },
        ],
        ..Section::default()
    }
}

fn curve(total: &Snapshot, limit: u64, report: &Report) -> Section {
    let mut section = Section {
        title: "What more local memory would have changed".to_owned(),
        text: vec![
            "The curve (a miss-ratio curve) starts at the limit of this run, with all of its fetches. It shows which share of them, and of the time spent waiting \
             for them, would have remained with a larger limit. It is estimated from a sample of reuse distances: the number of other blocks that were evicted \
             between the eviction of a block and its fetch. It assumes that the program does the same again, under the same replacement policy. It cannot \
             extend to smaller limits, because the pager does not see accesses to resident memory."
                .to_owned(),
        ],
        ..Section::default()
    };
    let points = loss::points(total);
    if points.is_empty() {
        section.text.push("Nothing was fetched that more local memory would have kept.".to_owned());
        return section;
    }
    let mut table = Table::new("The same in numbers")
        .number("local memory", "")
        .number("fetches left", "%")
        .number("time waited left", "%");
    let percent = |ppm: u64| format!("{:.1}", ppm as f64 / 1e4);
    let row = |extra: u64, fetched: u64, waited: u64| {
        [Bytes(limit + extra).to_string(), percent(fetched), percent(waited)]
    };
    table.row(row(0, 1_000_000, 1_000_000));
    points.iter().for_each(|&(extra, fetched, waited)| table.row(row(extra, fetched, waited)));
    let at = |extra: u64| (limit + extra) as f64 / MIB;
    let curve = |name: &str, value: fn(&(u64, u64, u64)) -> u64| {
        let rest = points.iter().map(|point| Point::at(at(point.0), value(point) as f64 / 1e4));
        Line::new(name, std::iter::once(Point::at(at(0), 100.0)).chain(rest).collect())
    };
    section.plots.push(Plot {
        title: "Left with a larger limit".to_owned(),
        x: Axis::log("local memory (--local)", "MiB"),
        y: Axis::linear("left", "%"),
        series: vec![
            curve("fetches", |point| point.1),
            curve("time waited for far memory", |point| point.2),
        ],
        ..Plot::default()
    });
    section.tables.push(table);
    if let Some(advice) = report.loss().and_then(|loss| loss.advice) {
        section.text.push(format!(
            "With --local {} the program would have waited for about {} of its time.",
            advice.local,
            show::percent(advice.share_ppm)
        ));
    }
    section
}

fn regions(report: &Report) -> Section {
    let mut table = Table::new("Most faults")
        .number("process", "")
        .text("addresses")
        .text("part of the mapping at")
        .text("from there on")
        .number("faults", "")
        .number("share", "%");
    let of_one = |(pid, seen): (&u32, &crate::watch::Seen)| -> Vec<_> {
        seen.snapshot.ranges.iter().map(|&range| (*pid, range)).collect()
    };
    let mut ranges: Vec<_> = report.watch.seen().iter().flat_map(of_one).collect();
    let all: u64 = ranges.iter().map(|(_, range)| range.faults).sum();
    ranges.sort_by_key(|(_, range)| std::cmp::Reverse(range.faults));
    for (pid, range) in ranges.iter().take(RANGES_SHOWN) {
        let share = range.faults as f64 / all as f64 * 100.0;
        table.row([
            pid.to_string(),
            format!("{:#x}–{:#x}", range.start, range.start + RANGE_BYTES),
            format!("{:#x}", range.mapping),
            Bytes(range.start.saturating_sub(range.mapping)).to_string(),
            range.faults.to_string(),
            format!("{share:.1}"),
        ]);
    }
    table.note(
        "Each row is a stretch of 64 MiB. Mappings are stretches of address space that the program has asked for: anonymous mmap, blocks of malloc of 1 MiB \
         and more, and the heap that smaller blocks share. Stacks of threads are mappings too; the first thread's stack is never far.",
    );
    let text = if table.is_empty() {
        "No thread has waited for far memory."
    } else {
        "Where the program waited for far memory most often."
    };
    Section {
        title: "Regions that fault most".to_owned(),
        text: vec![text.to_owned()],
        tables: vec![table],
        ..Section::default()
    }
}

fn waits(total: &Snapshot) -> Section {
    let mut table = Table::new("How long a fault takes")
        .text("share of the faults")
        .number("estimated wait", "")
        .number("service time", "");
    let shown = |time: Option<Nanos>| time.map_or("–".to_owned(), show::latency);
    for (name, quantile) in
        [("50 %", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999), ("all", 1.0)]
    {
        table.row([
            format!("{name} take no longer than"),
            shown(total.wait_quantile(quantile)),
            shown(total.latency_quantile(quantile)),
        ]);
    }
    table.note("Estimated wait: from the touch until the thread goes on. Service time: the part of it that the pager measures, from reading the fault to waking the thread.");
    match total.costs {
        Some(costs) => table.note(format!(
            "Waking costs, measured before the program began: {} and {} to hear of a fault and to go on with both threads on one processor, {} and {} on two.",
            show::latency(Nanos(costs.together.until_read_ns)),
            show::latency(Nanos(costs.together.until_on_ns)),
            show::latency(Nanos(costs.apart.until_read_ns)),
            show::latency(Nanos(costs.apart.until_on_ns)),
        )),
        None => table.note("What it costs here to wake a thread could not be measured: waits are estimated too short."),
    }
    Section {
        title: "How long faults were waited for".to_owned(),
        text: vec![
            "Half of all faults take no longer than the first row says, and so on; within 19 %."
                .to_owned(),
        ],
        tables: vec![table],
        ..Section::default()
    }
}

fn totals(total: &Snapshot, report: &Report) -> Section {
    let mut table = Table::new("The whole run").text("what").number("value", "");
    let seconds = |kind| format!("{:.2} s", total.waited(kind).0 as f64 / 1e9);
    let bytes = |counter| Bytes(total.get(counter)).to_string();
    let count = |counter| total.get(counter).to_string();
    table.row(["elapsed".to_owned(), show::elapsed(report.elapsed)]);
    table.row([
        "time in which at least one thread waited for far memory".to_owned(),
        seconds(Waited::AnyFar),
    ]);
    table.row(["waited for fetches, over all threads".to_owned(), seconds(Waited::Fetched)]);
    table.row(["waited for staged blocks, over all threads".to_owned(), seconds(Waited::Staged)]);
    table.row(["waited for room, over all threads".to_owned(), seconds(Waited::Room)]);
    table.row([
        "waited for first touches, over all threads (not counted as far memory)".to_owned(),
        seconds(Waited::FirstTouch),
    ]);
    table.row(["most local memory".to_owned(), Bytes(report.watch.local_bytes_max()).to_string()]);
    table.row(["most far memory".to_owned(), Bytes(report.watch.far_bytes_max()).to_string()]);
    table.row(["fetched".to_owned(), bytes(Counter::FetchedBytes)]);
    table.row(["written".to_owned(), bytes(Counter::WrittenBytes)]);
    table.row(["faults".to_owned(), count(Counter::Faults)]);
    table.row(["first touches".to_owned(), count(Counter::FaultsFresh)]);
    table.row(["staged back".to_owned(), count(Counter::FaultsStaged)]);
    table.row(["fetched on demand".to_owned(), count(Counter::FaultsFetched)]);
    table.row(["found prefetched".to_owned(), count(Counter::FaultsPrefetched)]);
    let text = "All processes together. A fault is counted where it was first answered; waits that several threads had at the same time are added up.";
    Section {
        title: "Totals".to_owned(),
        text: vec![text.to_owned()],
        tables: vec![table],
        ..Section::default()
    }
}
