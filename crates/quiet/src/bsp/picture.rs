//! A run as text, and as a report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Section, Series, Spread, Table, figures,
};

use super::{Rank, Recording};
use crate::meter::{Part, Source};
use crate::picture::sparkline;

const COLUMNS: usize = 60;
/// Points of a plot: of the steps at the same point, the longest is shown.
const POINTS: usize = 400;

fn ms(ns: u64) -> String {
    figures(ns as f64 / 1e6)
}

/// The run as text for a terminal.
pub fn to_text(recording: &Recording) -> String {
    let longest = thinned(recording, COLUMNS);
    let most = longest.iter().map(|&(_, ns)| ns).max().unwrap_or(0).max(1);
    let line = sparkline(longest.iter().map(|&(_, ns)| ns), most);
    let mut text =
        format!("longest step of each stretch; a full block is {} ms\n│{line}│\n", ms(most));
    for table in tables(recording) {
        let _ = write!(text, "\n{}", table.to_text());
    }
    let _ = write!(text, "\n{}\n", explanation(recording));
    text
}

/// The run as a section of a report.
pub fn section(recording: &Recording) -> Section {
    Section {
        title: "Steps".to_owned(),
        text: vec![
            "All ranks do the same work, then wait for the last one. A step takes as long as its slowest rank.".to_owned(),
            explanation(recording),
        ],
        tables: tables(recording),
        plots: plots(&[("this run", recording)]),
    }
}

/// The measures of the run.
pub fn measures(recording: &Recording) -> Vec<Measure> {
    let one = |name: &str, title: &str, value: f64| {
        Measure::new(name, title, "ms", Better::Lower)
            .spread(Spread::of(&[value]))
            .note(format!("{} steps", recording.steps.len()))
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    vec![
        one("step_p50_ms", "step, median", ms(recording.step_ns(500))),
        one("step_p99_ms", "step, 99th percentile", ms(recording.step_ns(990))),
        one("step_max_ms", "step, longest", ms(recording.step_ns(1000))),
        one("steps_ms", "all steps", ms(recording.total_ns())),
    ]
}

/// Times of single steps and their sum, as in the paper's figures 4 to 7; one line per run.
pub fn plots(runs: &[(&str, &Recording)]) -> Vec<Plot> {
    let series = |points: fn(&Recording) -> Vec<Point>| {
        let one = |&(name, recording): &(&str, &Recording)| Series::new(name, points(recording));
        runs.iter().map(one).collect()
    };
    let plot = |title: &str, y: Axis, series: Vec<Series>| Plot {
        title: title.to_owned(),
        kind: Kind::Lines,
        x: Axis::linear("step", ""),
        y,
        series,
    };
    let times = series(|recording| {
        thinned(recording, POINTS)
            .into_iter()
            .map(|(step, ns)| Point::at(step as f64, ns as f64 / 1e6))
            .collect()
    });
    let sums = series(|recording| {
        let mut sum = 0;
        let all = recording.steps.iter().enumerate().map(|(index, step)| {
            sum += step.ns;
            Point::at(index as f64, sum as f64 / 1e9)
        });
        let all: Vec<Point> = all.collect();
        let apart = all.len().div_ceil(POINTS).max(1);
        all.into_iter().step_by(apart).collect()
    });
    vec![
        plot("Time of a step (longest of neighbours)", Axis::linear("time", "ms"), times),
        plot("Time of all steps so far", Axis::linear("time", "s"), sums),
    ]
}

/// The longest step of each stretch, with its number.
fn thinned(recording: &Recording, columns: usize) -> Vec<(usize, u64)> {
    let steps: Vec<(usize, u64)> = recording.steps.iter().map(|step| step.ns).enumerate().collect();
    let stretches = steps.chunks(steps.len().div_ceil(columns).max(1));
    stretches.filter_map(|steps| steps.iter().max_by_key(|&&(_, ns)| ns).copied()).collect()
}

fn explanation(recording: &Recording) -> String {
    let (stolen, explained) = recording.stolen_and_explained_ns();
    let source = match &recording.source {
        Source::Bpf => "the kernel's tracepoints, by BPF".to_owned(),
        Source::Books(why) => format!("none, because there is no BPF: {why}"),
    };
    let permille = |at| ms(recording.step_ns(at));
    format!(
        "{} steps of {} ms work on {} ranks took {} s: median {} ms, 99th percentile {} ms, longest {} ms. Of the ranks of this process {} ms \
         were stolen, of which {} ms are attributed (source: {source}).",
        recording.steps.len(),
        ms(recording.step_work_ns),
        recording.ranks,
        figures(recording.total_ns() as f64 / 1e9),
        permille(500),
        permille(990),
        permille(1000),
        ms(stolen),
        ms(explained),
    )
}

/// How often a rank was last, what that cost, and why.
#[derive(Default)]
struct Last {
    steps: u64,
    /// Steps that took 10 % longer than the median.
    slow: u64,
    stolen_ns: u64,
    by: BTreeMap<Part, u64>,
}

fn tables(recording: &Recording) -> Vec<Table> {
    let slow_ns = recording.step_ns(500) * 11 / 10;
    let mut by_rank: BTreeMap<Rank, Last> = BTreeMap::new();
    for step in &recording.steps {
        let last = by_rank.entry(step.last).or_default();
        last.steps += 1;
        if step.ns > slow_ns {
            last.slow += 1;
            last.stolen_ns += step.stolen_ns;
            if let Some(part) = step.by {
                *last.by.entry(part).or_insert(0) += 1;
            }
        }
    }
    let mut who = Table::new("Who came last, and why")
        .text("rank")
        .number("last", "steps")
        .number("of these slow", "steps");
    who = who.number("stolen in slow ones", "ms").text("mostly by");
    for (rank, last) in &by_rank {
        let mut by: Vec<(&Part, &u64)> = last.by.iter().collect();
        by.sort_by_key(|&(_, steps)| std::cmp::Reverse(*steps));
        who.row([
            format!("{}.{}", rank.process, rank.thread),
            last.steps.to_string(),
            last.slow.to_string(),
            ms(last.stolen_ns),
            by.iter()
                .map(|(part, steps)| format!("{} ({steps})", part.name()))
                .collect::<Vec<_>>()
                .join(", "),
        ]);
    }
    who.note(format!(
        "A rank is process.thread; slow steps took more than {} ms, a tenth more than the median.",
        ms(slow_ns)
    ));
    let mut stolen = Table::new("Who stole time from the ranks of this process")
        .text("who")
        .number("time", "ms");
    let mut parts: BTreeMap<Part, u64> = BTreeMap::new();
    recording
        .losses
        .iter()
        .flat_map(|loss| &loss.parts)
        .for_each(|(&part, ns)| *parts.entry(part).or_insert(0) += ns);
    parts.iter().for_each(|(part, ns)| stolen.row([part.name().to_owned(), ms(*ns)]));
    [who, stolen].into_iter().filter(|table| !table.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bsp::Step;
    use crate::meter::work::Loss;
    use hiroma_sys::quiet::tasks::TaskKind;

    fn recording() -> Recording {
        let kswapd = Part::Task(TaskKind::Kswapd);
        let step = |ns: u64, thread: u32, by| Step {
            ns,
            last: Rank { process: 0, thread },
            stolen_ns: ns - 1_000_000,
            by,
        };
        let mut steps = vec![step(1_000_000, 0, None); 99];
        steps.push(step(5_000_000, 1, Some(kswapd)));
        let loss = Loss {
            stalled_ns: 0,
            stolen_ns: 4_000_000,
            parts: BTreeMap::from([(kswapd, 3_900_000), (Part::Unseen, 100_000)]),
        };
        Recording {
            steps,
            losses: vec![Loss::default(), loss],
            ranks: 2,
            step_work_ns: 1_000_000,
            chunk_turns: 1,
            source: Source::Bpf,
            memory: None,
        }
    }

    #[test]
    fn last_rank_and_cause_are_shown() {
        let text = to_text(&recording());
        assert!(
            text.contains("kswapd (1)")
                && text.contains("0.1")
                && text.contains("a full block is 5.00 ms"),
            "{text}"
        );
        assert!(
            text.contains("100 steps of 1.00 ms work on 2 ranks")
                && text.contains("of which 3.90 ms"),
            "{text}"
        );
    }

    #[test]
    fn times_are_ordered_and_thinning_keeps_longest_steps() {
        let recording = recording();
        let values: Vec<f64> =
            measures(&recording).iter().filter_map(|measure| measure.value).collect();
        assert_eq!(values, [1.0, 1.0, 5.0, 104.0]);
        assert_eq!(thinned(&recording, 10).last(), Some(&(99, 5_000_000)));
        assert_eq!(
            (
                section(&recording).plots.len(),
                plots(&[("a", &recording), ("b", &recording)])[0].series.len()
            ),
            (2, 2)
        );
    }
}
