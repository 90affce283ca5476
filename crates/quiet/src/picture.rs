//! A recording as text with a time line, and as a report.

use std::fmt::Write as _;

use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Section, Series, Spread, Table, figures,
};
use hiroma_sys::quiet::tasks::TaskKind;

use crate::meter::work::STALL_NS_MAX;
use crate::meter::{CoreNoise, Detail, Method, Part, Recording, Source};
use crate::verdict::verdict;

const COLUMNS: usize = 60;
const PLOT_COLUMNS: usize = 200;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const BAR: usize = 40;

/// The recording as text for a terminal.
pub fn to_text(recording: &Recording) -> String {
    let mut text = timeline(recording);
    text.push('\n');
    text += &histogram(recording);
    for table in tables(recording) {
        let _ = write!(text, "\n{}", table.to_text());
    }
    let _ = write!(text, "\n{}\n\n{}\n", explanation(recording), verdict(recording));
    text
}

/// The recording as a section of a report.
pub fn section(recording: &Recording) -> Section {
    Section {
        title: "Time stolen from programs".to_owned(),
        text: vec![method(recording).to_owned(), explanation(recording), verdict(recording)],
        tables: tables(recording),
        plots: vec![timeline_plot(recording), histogram_plot(recording)],
    }
}

/// The measures of the recording.
pub fn measures(recording: &Recording) -> Vec<Measure> {
    let one = |name: &str, title: &str, unit: &str, better, value: f64| {
        Measure::new(name, title, unit, better).spread(Spread::of(&[value]))
    };
    let over_cores = |name: &str, title: &str, unit: &str, value: fn(&CoreNoise) -> f64| {
        let values: Vec<f64> = recording.cores.iter().map(value).collect();
        Measure::new(name, title, unit, Better::Lower)
            .spread(Spread::of(&values))
            .note("median, least and most of the processors")
    };
    let (stolen, explained) = recording.stolen_and_explained_ns();
    let share = if stolen == 0 { 1.0 } else { explained as f64 / stolen as f64 };
    vec![
        over_cores("noise_share", "time stolen", "%", |core| percent(core.stolen_ns, core.wall_ns)),
        over_cores("slowed_share", "time lost by running slower", "%", |core| {
            percent(core.slowed_ns, core.wall_ns)
        }),
        over_cores("quantum_p99", "99th percentile of a quantum against a good one", "", |core| {
            core.p99_permille as f64 / 1000.0
        }),
        over_cores("quantum_max", "longest quantum against a good one", "", |core| {
            core.max_permille as f64 / 1000.0
        }),
        one("explained_share", "stolen time that is explained", "%", Better::Higher, share * 100.0)
            .must(90.0)
            .aim(98.0),
    ]
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn method(recording: &Recording) -> &'static str {
    match recording.method {
        Method::Fwq => {
            "Fixed work quanta: the same work on each processor again and again; what it takes longer than in a good quantum is lost."
        }
        Method::Ftq => {
            "Fixed time quanta: work for the same time on each processor again and again; what is done less than in a good quantum is lost."
        }
    }
}

fn explanation(recording: &Recording) -> String {
    let (stolen, explained) = recording.stolen_and_explained_ns();
    let ms = |ns: u64| figures(ns as f64 / 1e6);
    let seconds = figures(recording.duration_ns() as f64 / 1e9);
    let source = match &recording.source {
        Source::Bpf => {
            "Who took it: the kernel's tracepoints, by BPF, for each gap in the work.".to_owned()
        }
        Source::Books(why) => {
            format!(
                "Who took it: /proc (schedstat, stat), over the whole measurement only, because there is no BPF: {why}."
            )
        }
    };
    format!(
        "{} ms stolen on {} processors within {seconds} s; {} ms of it ({} %) are attributed. {source} {} ms more were lost \
         because the work ran, but slower than in a good quantum (caches, clock frequency, another hardware thread), {} ms of it in stalls \
         of 3 to {} us in which the kernel ran nothing else: a hypervisor's own interrupts, firmware.",
        ms(stolen),
        recording.cores.len(),
        ms(explained),
        figures(percent(explained, stolen.max(1))),
        ms(recording.cores.iter().map(|core| core.slowed_ns).sum()),
        ms(recording.cores.iter().map(|core| core.stalled_ns).sum()),
        STALL_NS_MAX / 1000,
    )
}

/// One block character per value, the highest at `most`.
pub(crate) fn sparkline(values: impl Iterator<Item = u64>, most: u64) -> String {
    values.map(|value| BLOCKS[(value.saturating_mul(8)).div_ceil(most).min(8) as usize]).collect()
}

/// One line for each processor, and one for each active reclaiming thread.
fn timeline(recording: &Recording) -> String {
    let lines = recording.timeline_ppm(COLUMNS);
    let most = lines.iter().flatten().copied().max().unwrap_or(0).max(1);
    let draw = |line: &[u64], most: u64| sparkline(line.iter().copied(), most);
    let column_ms = recording.duration_ns() / 1_000_000 / COLUMNS as u64;
    let mut text = format!(
        "time stolen; a column is {column_ms} ms, a full block {} %\n",
        figures(most as f64 / 1e4)
    );
    for (core, line) in recording.cores.iter().zip(&lines) {
        let (share, max) = (
            figures(percent(core.stolen_ns, core.wall_ns)),
            figures(core.max_permille as f64 / 1000.0),
        );
        let _ =
            writeln!(text, "cpu {:<8} │{}│ {share} %, longest {max} x", core.cpu, draw(line, most));
    }
    for (kind, ppm) in reclaimers(recording, COLUMNS) {
        let most = ppm.iter().copied().max().unwrap_or(0).max(1);
        let _ = writeln!(
            text,
            "{:<12} │{}│ up to {} % of a processor",
            kind.name(),
            draw(&ppm, most),
            figures(most as f64 / 1e4)
        );
    }
    text
}

/// Processor time of the active reclaiming threads, in millionths of a processor for each interval.
fn reclaimers(recording: &Recording, columns: usize) -> Vec<(TaskKind, Vec<u64>)> {
    let width = (recording.duration_ns() / columns as u64).max(1);
    let of = |kind: TaskKind| {
        let mut ran = vec![0u64; columns];
        for sample in &recording.samples {
            let column =
                ((sample.at_ns.saturating_sub(recording.began_ns)) / width).min(columns as u64 - 1);
            ran[column as usize] += sample.run_ns.get(&kind).copied().unwrap_or(0);
        }
        (kind, ran.into_iter().map(|ns| ns.saturating_mul(1_000_000) / width).collect::<Vec<_>>())
    };
    let kinds = [TaskKind::Kswapd, TaskKind::Kcompactd, TaskKind::Khugepaged];
    kinds.into_iter().map(of).filter(|(_, ran)| ran.iter().any(|&ppm| ppm > 1000)).collect()
}

fn bin_name(bin: usize) -> String {
    let us = 1u64 << bin;
    match us {
        0..1000 => format!("< {us} us"),
        1000..1_000_000 => format!("< {} ms", figures(us as f64 / 1e3)),
        _ => format!("< {} s", figures(us as f64 / 1e6)),
    }
}

fn histogram(recording: &Recording) -> String {
    let counts = recording.histogram();
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut text = "time stolen in a quantum, and how often (bars are logarithmic)\n".to_owned();
    for (bin, &count) in counts.iter().enumerate() {
        // One quantum among millions is still visible.
        let length = if count == 0 {
            0.0
        } else {
            ((count + 1) as f64).log2() / ((most + 1) as f64).log2() * BAR as f64
        };
        let _ = writeln!(
            text,
            "{:>9} │{:<BAR$}│ {count}",
            bin_name(bin),
            "█".repeat(length.ceil() as usize)
        );
    }
    text
}

fn tables(recording: &Recording) -> Vec<Table> {
    let mut parts: Vec<Part> =
        recording.cores.iter().flat_map(|core| core.parts.keys().copied()).collect();
    parts.sort_unstable();
    parts.dedup();
    let mut stolen = Table::new("Who stole the time").text("who");
    for core in &recording.cores {
        stolen = stolen.number(format!("cpu {}", core.cpu), "ms");
    }
    for part in parts {
        let of =
            |core: &CoreNoise| figures(core.parts.get(&part).copied().unwrap_or(0) as f64 / 1e6);
        stolen.row([part.name().to_owned()].into_iter().chain(recording.cores.iter().map(of)));
    }
    stolen.row(
        ["all".to_owned()]
            .into_iter()
            .chain(recording.cores.iter().map(|core| figures(core.stolen_ns as f64 / 1e6))),
    );
    for core in recording.cores.iter().filter(|core| !core.longest.is_empty()) {
        let named = core
            .longest
            .iter()
            .map(|(name, _, ns)| format!("{name} {} ms", figures(*ns as f64 / 1e6)));
        stolen.note(format!(
            "most processor time on cpu {}: {}",
            core.cpu,
            named.collect::<Vec<_>>().join(", ")
        ));
    }
    let mut quanta = Table::new("Quanta")
        .text("processor")
        .number("quanta", "")
        .number("good", "us")
        .number("median", "x good");
    quanta = quanta
        .number("p99", "x good")
        .number("longest", "x good")
        .number("stolen", "%")
        .number("slowed", "%");
    for core in &recording.cores {
        let times = |permille: u64| figures(permille as f64 / 1000.0);
        quanta.row([
            format!("cpu {}", core.cpu),
            core.quanta.to_string(),
            figures(core.best_ns as f64 / 1e3),
            times(core.p50_permille),
            times(core.p99_permille),
            times(core.max_permille),
            figures(percent(core.stolen_ns, core.wall_ns)),
            figures(percent(core.slowed_ns, core.wall_ns)),
        ]);
    }
    let mut events = Table::new("What the kernel did meanwhile").text("what").number("count", "");
    recording
        .events
        .iter()
        .filter(|(_, count)| *count > 0)
        .for_each(|(what, count)| events.row([(*what).to_owned(), count.to_string()]));
    [quanta, stolen, longest(recording), orders(recording), events]
        .into_iter()
        .filter(|table| !table.is_empty())
        .collect()
}

/// Number of quanta that are listed.
const LONGEST: usize = 10;

/// The quanta that lost most, and what took the time.
fn longest(recording: &Recording) -> Table {
    let mut table = Table::new("Quanta that lost most")
        .number("at", "s")
        .text("processor")
        .number("took", "ms")
        .number("stolen", "ms");
    table = table.text("by").text("longest at a stretch");
    let of_core = |(core, details): (&CoreNoise, &Vec<Detail>)| {
        details.iter().map(|detail| (core.cpu, detail.clone())).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, Detail)> =
        recording.cores.iter().zip(&recording.details).flat_map(of_core).collect();
    all.sort_by_key(|(_, detail)| std::cmp::Reverse(detail.loss.stolen_ns));
    let ms = |ns: u64| figures(ns as f64 / 1e6);
    for (cpu, detail) in all.iter().take(LONGEST) {
        let by = detail
            .loss
            .parts
            .iter()
            .map(|(part, ns)| format!("{} {}", part.name(), ms(*ns)))
            .collect::<Vec<_>>()
            .join(", ");
        table.row([
            figures(detail.quantum.start_ns.saturating_sub(recording.began_ns) as f64 / 1e9),
            format!("cpu {cpu}"),
            ms(detail.quantum.wall_ns),
            ms(detail.loss.stolen_ns),
            if recording.source == Source::Bpf { by } else { "not known without BPF".to_owned() },
            detail
                .longest
                .as_ref()
                .map_or(String::new(), |(name, ns)| format!("{name} {} ms", ms(*ns))),
        ]);
    }
    table
}

/// By block order: how often kswapd was woken, and programs reclaimed directly.
fn orders(recording: &Recording) -> Table {
    let mut table = Table::new("Reclaim by the order of the blocks that were wanted")
        .text("order")
        .number("kswapd woken", "");
    table = table.number("kswapd went to work", "").number("direct reclaims", "");
    let Some(memory) = &recording.memory else { return table };
    let rows =
        memory.kswapd_woken.iter().zip(&memory.kswapd_ran).zip(&memory.direct_reclaims).enumerate();
    for (order, ((woken, ran), direct)) in
        rows.filter(|(_, ((woken, ran), direct))| *woken + *ran + *direct > 0)
    {
        table.row([order.to_string(), woken.to_string(), ran.to_string(), direct.to_string()]);
    }
    table
}

fn timeline_plot(recording: &Recording) -> Plot {
    let seconds = recording.duration_ns() as f64 / 1e9;
    let points = |ppm: &[u64]| {
        let at = |(column, &ppm): (usize, &u64)| {
            Point::at((column as f64 + 0.5) * seconds / PLOT_COLUMNS as f64, ppm as f64 / 1e4)
        };
        ppm.iter().enumerate().map(at).collect()
    };
    let cores = recording.cores.iter().zip(recording.timeline_ppm(PLOT_COLUMNS));
    let mut series: Vec<Series> =
        cores.map(|(core, ppm)| Series::new(format!("cpu {}", core.cpu), points(&ppm))).collect();
    series.extend(
        reclaimers(recording, PLOT_COLUMNS)
            .into_iter()
            .map(|(kind, ppm)| Series::new(kind.name(), points(&ppm))),
    );
    Plot {
        title: "Time stolen, and what reclaiming threads used".to_owned(),
        kind: Kind::Lines,
        x: Axis::linear("time", "s"),
        y: Axis::linear("share of a processor", "%"),
        series,
    }
}

fn histogram_plot(recording: &Recording) -> Plot {
    let counts = recording.histogram();
    let points = counts
        .iter()
        .enumerate()
        .map(|(bin, &count)| Point::at(bin as f64, ((count + 1) as f64).log10()));
    Plot {
        title: "Time stolen in a quantum".to_owned(),
        kind: Kind::Bars,
        x: Axis::names("stolen", (0..counts.len()).map(bin_name)),
        y: Axis::linear("quanta", "log10 of count + 1"),
        series: vec![Series::new("quanta", points.collect())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Quantum;
    use crate::meter::work::Loss;
    use hiroma_sys::quiet::noise::MemoryEvents;
    use std::collections::BTreeMap;

    fn recording() -> Recording {
        let quantum = |at: u64, wall: u64| Quantum {
            start_ns: at * 1_000_000,
            wall_ns: wall * 1000,
            stolen_ns: (wall - 1000) * 1000,
            units: 1,
        };
        let quanta = vec![quantum(0, 1000), quantum(1, 1000), quantum(2, 5000), quantum(7, 1003)];
        let parts =
            BTreeMap::from([(Part::Task(TaskKind::Kswapd), 4_000_000), (Part::GoneTask, 3000)]);
        let core = CoreNoise {
            cpu: 3,
            quanta: 4,
            best_ns: 1_000_000,
            wall_ns: 8_003_000,
            stolen_ns: 4_003_000,
            slowed_ns: 0,
            stalled_ns: 0,
            p50_permille: 1000,
            p99_permille: 5000,
            max_permille: 5000,
            parts,
            longest: vec![("kswapd0".to_owned(), TaskKind::Kswapd, 4_000_000)],
        };
        let loss = Loss {
            stalled_ns: 0,
            stolen_ns: 4_000_000,
            parts: BTreeMap::from([(Part::Task(TaskKind::Kswapd), 4_000_000)]),
        };
        let detail =
            Detail { quantum: quanta[2], loss, longest: Some(("kswapd0".to_owned(), 3_900_000)) };
        let mut memory = MemoryEvents::default();
        (memory.kswapd_woken[9], memory.direct_reclaims[0]) = (859, 3);
        Recording {
            details: vec![vec![detail]],
            source: Source::Bpf,
            memory: Some(memory),
            method: Method::Fwq,
            began_ns: 0,
            ended_ns: 8_000_000,
            cores: vec![core],
            quanta: vec![quanta],
            samples: Vec::new(),
            events: vec![("kswapd ran", 7), ("silence", 0)],
            groups: Vec::new(),
        }
    }

    #[test]
    fn picture_shows_time_amount_and_source() {
        let text = to_text(&recording());
        assert!(text.contains("cpu 3        │               █"), "{text}");
        assert!(
            text.contains("longest 5.00 x")
                && text.contains("kswapd ran")
                && !text.contains("silence"),
            "{text}"
        );
        assert!(
            text.contains("< 4 us │")
                && text.contains("most processor time on cpu 3: kswapd0 4.00 ms"),
            "{text}"
        );
        assert!(text.contains("are attributed") && text.contains("by BPF"), "{text}");
        assert!(text.contains("kswapd0 3.90 ms") && text.contains("859"), "{text}");
    }

    #[test]
    fn quanta_are_counted_by_loss() {
        let histogram = recording().histogram();
        assert_eq!((histogram[0], histogram[2], histogram[12]), (2, 1, 1));
        assert_eq!(histogram.iter().sum::<u64>(), 4);
    }

    #[test]
    fn page_and_figures_agree() {
        let section = section(&recording());
        assert_eq!((section.plots.len(), section.tables.len()), (2, 5));
        let measures = measures(&recording());
        let explained = measures.iter().find(|measure| measure.name == "explained_share").unwrap();
        assert!(explained.met == Some(true) && explained.value > Some(99.0));
    }
}
