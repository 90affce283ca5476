//! The paper's microbenchmark: throughput and memory without huge pages, with huge pages
//! everywhere, and with huge pages where the process is hot (figures 11 to 18).

use std::time::{Duration, Instant};

use anyhow::Result;
use hiroma_hot::{Engine, Options, State};
use hiroma_memload::ballast::Ballast;
use hiroma_memload::server;
use hiroma_report::{
    Axis, Better, Bound, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table,
};
use hiroma_units::{Bytes, EXTENT, PAGES_PER_EXTENT};

use super::load::{Load, Loaded, Pages, Pattern};
use super::timeline::{self, Sample};
use super::{Params, interval, thp};
use crate::progress::Progress;
use crate::undo::Guard;

/// Number of sets of one measurement, as in the paper; multiplied so that it takes at least …
const SETS: u64 = 16;
/// … this long: other users of the machine take milliseconds at a time.
const TURN: Duration = Duration::from_millis(60);
/// Where figures with a goal come from separate processes, these are started anew this many times:
/// the addresses of their memory differ from start to start, and so does their speed.
const STARTS: usize = 5;
/// Time limit of the engine, and of khugepaged.
const PATIENCE: Duration = Duration::from_secs(20);
/// khugepaged has finished if it made nothing huge for this time.
const IDLE: Duration = Duration::from_secs(1);
const ARMS: [&str; 4] = ["small pages", "THP always", "THP always, max_ptes_none=0", "hiroma"];
const SMALL: usize = 0;
const ALWAYS: usize = 1;
const LATER: usize = 2;
const OURS: usize = 3;

/// An access pattern, and the paper's figures of throughput and of memory with it.
#[derive(Clone, Copy)]
struct Access {
    name: &'static str,
    pattern: Pattern,
    figures: [&'static str; 2],
}

const ACCESSES: [Access; 3] = [
    Access {
        name: "sequential",
        pattern: Pattern::Sequential,
        figures: ["figure 11", "figure 15"],
    },
    Access { name: "random", pattern: Pattern::Random, figures: ["figure 12", "figure 16"] },
    Access {
        name: "skewed",
        pattern: Pattern::Skewed,
        figures: ["figure 13", "figures 17 and 18"],
    },
];

/// Results of one pattern.
#[derive(Default)]
struct PatternResults {
    /// GB/s of each repetition and arm.
    speed: [Vec<f64>; 4],
    /// Touches per microsecond of processor time.
    cpu: [Vec<f64>; 4],
    /// Sums over the starts, like the fields below.
    resident: [u64; 4],
    /// Seconds until 95 % of the hot ranges were huge, for each start in which that happened.
    huge_seconds: Vec<f64>,
    starts: usize,
    settled_seconds: f64,
    /// Why the engine ended.
    end: String,
    /// Set if the engine stopped by itself: then the figures with goals do not show its full
    /// effect.
    stopped: Option<String>,
    collapses: u64,
    collapse_ms: f64,
    ready_ms: f64,
    /// Number of hot ranges that were huge at the end, and number of all hot ranges.
    huge_ranges: [usize; 2],
    /// Share of the hot ranges that are huge, over time.
    progress: Vec<Point>,
    /// The load's samples meanwhile: with khugepaged, and managed by us.
    samples: [Vec<Sample>; 2],
}

impl PatternResults {
    /// Adds the results of another start. Plots over time remain those of the first.
    fn join(&mut self, other: PatternResults) {
        for arm in 0..ARMS.len() {
            self.speed[arm].extend(&other.speed[arm]);
            self.cpu[arm].extend(&other.cpu[arm]);
            self.resident[arm] += other.resident[arm];
        }
        self.huge_seconds.extend(&other.huge_seconds);
        self.starts += other.starts;
        self.settled_seconds = self.settled_seconds.max(other.settled_seconds);
        self.collapses += other.collapses;
        self.collapse_ms += other.collapse_ms;
        self.ready_ms += other.ready_ms;
        for (sum, count) in self.huge_ranges.iter_mut().zip(other.huge_ranges) {
            *sum += count;
        }
        if self.stopped.is_none() {
            (self.stopped, self.end) = (other.stopped, other.end);
        }
    }
}

/// Runs the engine on a running load until it has settled.
fn manage(loaded: &mut Loaded, outcome: &mut PatternResults) -> Result<()> {
    let load = loaded.load;
    let first = loaded.base / EXTENT as u64;
    let hot: Vec<u64> = (0..(load.bytes / EXTENT) as u64)
        .filter(|&range| load.is_hot(range as usize * PAGES_PER_EXTENT))
        .map(|range| first + range)
        .collect();
    let ((), samples) = timeline::during(loaded, |pid| step_until_settled(pid, &hot, outcome))?;
    outcome.samples[1] = samples;
    Ok(())
}

fn step_until_settled(pid: u32, hot: &[u64], outcome: &mut PatternResults) -> Result<()> {
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    outcome.starts = 1;
    let mut engine = Engine::new(pid, Options { ledger: None, ..Options::default() }, now())?;
    loop {
        let step = engine.step(now())?;
        let huge = hot
            .iter()
            .filter(|&&range| engine.heat().range(range).is_some_and(|heat| heat.huge))
            .count();
        let seconds = began.elapsed().as_secs_f64();
        if step.pass_over {
            outcome.progress.push(Point::at(seconds, huge as f64 / hot.len().max(1) as f64));
        }
        if huge * 100 >= hot.len() * 95 && outcome.huge_seconds.is_empty() {
            outcome.huge_seconds.push(seconds);
        }
        if let State::Stopped(why) = &step.state {
            outcome.stopped = Some(why.clone());
        }
        if let Some(end) = end_of(&step.state, began.elapsed()) {
            (outcome.settled_seconds, outcome.end, outcome.huge_ranges) =
                (seconds, end, [huge, hot.len()]);
            break;
        }
        std::thread::sleep(Duration::from_nanos(step.next_ns.saturating_sub(now())));
    }
    let totals = *engine.ledger().totals();
    let ms = |ns: u64| ns as f64 / 1e6;
    (outcome.collapses, outcome.collapse_ms, outcome.ready_ms) =
        (totals.collapses, ms(totals.collapse_ns), ms(totals.ready_ns));
    Ok(())
}

/// Runs khugepaged on a running load until it finds no more ranges. It takes only full ranges, with
/// `max_ptes_none` at 0, and is faster than by default, with which it takes more than ten minutes
/// for a GiB.
fn wait_for_khugepaged(loaded: &mut Loaded, outcome: &mut PatternResults) -> Result<Guard> {
    let only_full = thp::set("khugepaged/max_ptes_none", "0")?;
    let _pace = [
        thp::set("khugepaged/scan_sleep_millisecs", "10")?,
        thp::set("khugepaged/pages_to_scan", "65536")?,
    ];
    let ((), samples) = timeline::during(loaded, |pid| {
        let (began, mut last, mut changed) = (Instant::now(), 0, Instant::now());
        while began.elapsed() < PATIENCE && changed.elapsed() < IDLE {
            std::thread::sleep(Duration::from_millis(100));
            let huge = server::memory(pid)?.huge_bytes;
            if huge != last {
                (last, changed) = (huge, Instant::now());
            }
        }
        Ok(())
    })?;
    outcome.samples[0] = samples;
    Ok(only_full)
}

/// Why the engine ends; none while it continues.
fn end_of(state: &State, elapsed: Duration) -> Option<String> {
    match state {
        State::Tracking if elapsed <= PATIENCE => None,
        State::Tracking => Some(format!("cut off after {} s", PATIENCE.as_secs())),
        State::Settled => Some("nothing more to do".to_owned()),
        State::Stopped(why) => Some(format!("stopped by itself: {why}")),
        State::Gone => Some("the process ended".to_owned()),
    }
}

fn measure(params: &Params, ballast: &Ballast, pattern: Pattern) -> Result<PatternResults> {
    let (starts, repetitions) = match pattern {
        Pattern::Skewed if !params.quick => (STARTS, 2 * params.repetitions),
        _ => (1, params.repetitions),
    };
    let mut all = measure_once(params, ballast, pattern, repetitions)?;
    for _ in 1..starts {
        all.join(measure_once(params, ballast, pattern, repetitions)?);
    }
    Ok(all)
}

fn measure_once(
    params: &Params,
    ballast: &Ballast,
    pattern: Pattern,
    repetitions: usize,
) -> Result<PatternResults> {
    let start = |pages| Loaded::start(Load::new(params.bytes, pattern, pages), ballast);
    // All run at the same time, in alternating turns of some hundredths of a second.
    let mut arms =
        [start(Pages::Small)?, start(Pages::Huge)?, start(Pages::Later)?, start(Pages::Default)?];
    let mut outcome = PatternResults::default();
    // The memory that collapsing takes should be backed too.
    ballast.load()?;
    let _only_full = wait_for_khugepaged(&mut arms[LATER], &mut outcome)?;
    ballast.load()?;
    manage(&mut arms[OURS], &mut outcome)?;
    let mut sets = SETS;
    for arm in &mut arms {
        let done = arm.run(SETS)?;
        sets = sets.max(SETS * (TURN.as_secs_f64() / done.seconds).ceil() as u64);
    }
    for repetition in 0..repetitions {
        for turn in 0..ARMS.len() {
            let arm = (turn + repetition) % ARMS.len();
            let done = arms[arm].run(sets)?;
            outcome.speed[arm].push(done.gb_per_s());
            outcome.cpu[arm].push(done.touches_per_cpu_us());
        }
    }
    for (resident, arm) in outcome.resident.iter_mut().zip(&arms) {
        *resident = arm.resident_bytes()?;
    }
    for arm in arms {
        arm.end()?;
    }
    Ok(outcome)
}

/// Throughput and memory over time: the arms that change while khugepaged and we work, and the
/// constant ones.
fn over_time(access: &Access, outcome: &PatternResults) -> [Plot; 2] {
    let end = outcome.samples.iter().flatten().map(|sample| sample.seconds).fold(0.0, f64::max);
    let flat = |y: f64| vec![Point::at(0.0, y), Point::at(end, y)];
    let median = |arm: usize| Spread::of(&outcome.speed[arm]).map_or(0.0, |spread| spread.median);
    let mib = |arm: usize| outcome.resident[arm] as f64 / f64::from(1 << 20);
    let plot = |what: &str,
                unit: &str,
                figures: &str,
                of: &dyn Fn(usize) -> f64,
                moving: fn(&[Sample]) -> Vec<Point>| Plot {
        title: format!("{what} over time, {} access ({figures})", access.name),
        x: Axis::linear("time since huge pages are made", "s"),
        y: Axis::linear(what, unit),
        series: vec![
            Series { reference: true, ..Series::new(ARMS[SMALL], flat(of(SMALL))) },
            Series { reference: true, ..Series::new(ARMS[ALWAYS], flat(of(ALWAYS))) },
            Series::new(ARMS[LATER], moving(&outcome.samples[0])),
            Series::new(ARMS[OURS], moving(&outcome.samples[1])),
        ],
        ..Plot::default()
    };
    let [speed, memory] = access.figures;
    [
        plot("Throughput", "GB/s", speed, &median, timeline::throughput),
        plot("Memory", "MiB", memory, &mib, timeline::resident_mib),
    ]
}

/// Throughput at the end, compared with small pages.
fn compared(outcomes: &[PatternResults]) -> Plot {
    let of = |arm: usize| {
        let ratio = |(place, outcome): (usize, &PatternResults)| {
            Spread::of_ratio(&outcome.speed[arm], &outcome.speed[SMALL])
                .map(|spread| Point::of(place as f64, percent(spread)))
        };
        Series::new(ARMS[arm], outcomes.iter().enumerate().filter_map(ratio).collect())
    };
    Plot {
        title: "Throughput compared (figure 14)".into(),
        kind: Kind::Bars,
        x: Axis::names("access", ACCESSES.map(|access| access.name)),
        y: Axis::linear("of the throughput with small pages", "%"),
        series: [ALWAYS, LATER, OURS].map(of).into(),
    }
}

fn growth(outcome: &PatternResults, arm: usize) -> f64 {
    100.0 * (outcome.resident[arm] as f64 / outcome.resident[SMALL] as f64 - 1.0)
}

/// Measures and reports.
pub fn run(
    params: &Params,
    ballast: &Ballast,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let mut table = Table::new("Throughput and memory")
        .text("access")
        .text("pages")
        .number("throughput", "GB/s")
        .number("touches per us of processor", "")
        .number("of THP always", "")
        .number("resident", "")
        .number("growth", "%");
    let mut plots = Vec::new();
    let mut reached = Plot {
        title: "Hot ranges that are huge, over time".into(),
        x: Axis::linear("time since managing began", "s"),
        y: Axis::linear("share", ""),
        ..Plot::default()
    };
    let mut outcomes = Vec::new();
    for access in ACCESSES {
        let Access { name, pattern, .. } = access;
        progress.starts(&format!("micro, {name}"));
        let outcome = measure(params, ballast, pattern)?;
        for (arm, label) in ARMS.iter().enumerate() {
            let text = |values: &[f64]| Spread::of(values).map_or("–".to_owned(), Spread::to_text);
            let ratio = Spread::of_ratio(&outcome.cpu[arm], &outcome.cpu[ALWAYS])
                .map_or("–".to_owned(), Spread::to_text);
            table.row([
                name.to_owned(),
                (*label).to_owned(),
                text(&outcome.speed[arm]),
                text(&outcome.cpu[arm]),
                ratio,
                Bytes(outcome.resident[arm]).to_string(),
                format!("{:+.3}", growth(&outcome, arm)),
            ]);
        }
        plots.extend(over_time(&access, &outcome));
        reached.series.push(Series::new(name, outcome.progress.clone()));
        let [huge, hot] = outcome.huge_ranges;
        table.note(format!(
            "{name}: {huge} of {hot} hot ranges huge in {} starts; {} collapses in {:.0} ms together, after {:.0} ms of making memory ready; over after {:.2} s at most: {}",
            outcome.starts, outcome.collapses, outcome.collapse_ms, outcome.ready_ms, outcome.settled_seconds, outcome.end
        ));
        measures(name, pattern, &outcome, report);
        outcomes.push(outcome);
    }
    plots.extend([compared(&outcomes), reached]);
    report.sections.push(Section {
        title: "Microbenchmark (figures 11 to 18)".into(),
        text: vec![
            "Each access touches one line of a page; a measurement is 16 sets of all pages that are in use, as in the paper, or a multiple that takes 60 ms at least. Skewed is measured with five starts of all processes, since where their memory lies makes a difference. Skewed: a third of the 2 MiB ranges at random places is touched over and over, and of the rest every tenth page was touched once, so that small pages use 40 % of the memory. The processes live side by side and take turns. `THP always` is MADV_HUGEPAGE before the first touch: with max_ptes_none at 0 that would be the same, since it binds khugepaged only. So the arm with it has small pages at first, and khugepaged, which takes full ranges only then, and works faster here than by default (10 ms between scans of 65536 pages). In the plots over time the arms in which nothing changes are drawn with their medians.".into(),
            "The paper's figures: sequential and random, at most 0.5 % faster than small pages after 80 rounds, as fast as THP after 300; skewed 1.8 % faster, 99 % of THP after 80 rounds. Memory over small pages: THP +0.017 %, +0.017 %, +147 %; HPS +0.002 %, +0.002 %, +0.031 %.".into(),
        ],
        tables: vec![table],
        plots,
    });
    Ok(())
}

fn measures(name: &str, pattern: Pattern, outcome: &PatternResults, report: &mut Report) {
    let skewed = pattern == Pattern::Skewed;
    let title = titled(format!("{name} access, of the speed of THP always"), outcome);
    let speed = Measure::new(format!("{name}_of_thp_percent"), title, "%", Better::Higher)
        .spread(Spread::of_ratio(&outcome.cpu[OURS], &outcome.cpu[ALWAYS]).map(percent))
        .note(told(&outcome.cpu, outcome.starts));
    let speed = if skewed { speed.paper_number(99.0).must(98.0).aim(105.0) } else { speed };
    let wall = Measure::new(
        format!("{name}_of_thp_wall_percent"),
        format!("{name} access, of THP always, by the clock"),
        "%",
        Better::Higher,
    )
    .spread(Spread::of_ratio(&outcome.speed[OURS], &outcome.speed[ALWAYS]).map(percent));
    let gain = Measure::new(
        format!("{name}_of_small_percent"),
        format!("{name} access, of the speed of small pages"),
        "%",
        Better::Higher,
    )
    .spread(Spread::of_ratio(&outcome.cpu[OURS], &outcome.cpu[SMALL]).map(percent));
    let grown = Measure::new(
        format!("{name}_growth_percent"),
        format!("Memory growth over small pages, {name}"),
        "%",
        Better::Lower,
    )
    .spread(Spread::of(&[growth(outcome, OURS)]))
    .note(format!("THP always: {:+.3} %", growth(outcome, ALWAYS)));
    let grown = match pattern {
        Pattern::Skewed => grown.paper("+0.031 % (THP +147 %)").must(0.5).aim(0.03),
        _ => grown.paper("+0.002 % (THP +0.017 %)"),
    };
    let later = Measure::new(
        format!("{name}_of_max_ptes_none_percent"),
        format!("{name} access, of the speed of THP always with max_ptes_none=0"),
        "%",
        Better::Higher,
    )
    .spread(Spread::of_ratio(&outcome.cpu[OURS], &outcome.cpu[LATER]).map(percent))
    .note(format!("its memory growth: {:+.3} %", growth(outcome, LATER)));
    let [huge, hot] = outcome.huge_ranges;
    let title = titled(format!("Hot ranges that are huge, {name}"), outcome);
    let reached = Measure::new(format!("{name}_hot_huge_percent"), title, "%", Better::Higher)
        .spread(Spread::of(&[100.0 * huge as f64 / hot.max(1) as f64]))
        .note(outcome.end.clone());
    report.measures.extend([speed, wall, gain, later, grown, reached]);
    if skewed {
        let (seconds, bound) = match outcome.huge_seconds.len() == outcome.starts {
            true => (outcome.huge_seconds.clone(), None),
            false => (vec![outcome.settled_seconds], Some(Bound::AtLeast)),
        };
        report.measures.push(
            Measure::new(
                "hot_third_huge_seconds",
                titled("Time until the hot third of 1 GiB is huge".to_owned(), outcome),
                "s",
                Better::Lower,
            )
            .paper("80 rounds of the benchmark")
            .must(2.0)
            .aim(0.5)
            .spread(Spread::of(&seconds))
            .bound(bound),
        );
    }
}

/// The confidence interval of the median of the ratio.
fn told(cpu: &[Vec<f64>; 4], starts: usize) -> String {
    let ratios: Vec<f64> =
        cpu[OURS].iter().zip(&cpu[ALWAYS]).map(|(ours, always)| 100.0 * ours / always).collect();
    match interval::of_median(&ratios) {
        Some(Spread { min, max, n, .. }) => {
            format!(
                "touches per processor time, {n} pairs in {starts} starts; the median lies between {min:.1} and {max:.1} % (95 %)"
            )
        }
        None => "touches per processor time".to_owned(),
    }
}

/// A title, with a remark if the manager stopped by itself.
fn titled(title: String, outcome: &PatternResults) -> String {
    match &outcome.stopped {
        // The text after the colon is the detailed reason.
        Some(why) => {
            format!("{title} (manager stopped itself: {})", why.split(": ").next().unwrap_or(why))
        }
        None => title,
    }
}

fn percent(ratio: Spread) -> Spread {
    Spread {
        median: 100.0 * ratio.median,
        min: 100.0 * ratio.min,
        max: 100.0 * ratio.max,
        n: ratio.n,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All plots, from made-up results.
    pub fn plots() -> Vec<Plot> {
        let outcome = || {
            let sample = |at: u8| Sample {
                seconds: f64::from(at),
                gb_per_s: 1.0 + f64::from(at),
                resident_bytes: 1 << 30,
            };
            PatternResults {
                speed: [1.0, 1.4, 1.2, 1.5].map(|speed| vec![speed; 3]),
                resident: [1 << 30; 4],
                samples: [vec![sample(0), sample(1)], vec![sample(0), sample(2)]],
                ..PatternResults::default()
            }
        };
        let mut plots: Vec<Plot> =
            ACCESSES.iter().flat_map(|access| over_time(access, &outcome())).collect();
        plots.push(compared(&ACCESSES.map(|_| outcome())));
        plots
    }

    #[test]
    fn self_stopped_manager_is_noted_in_affected_rows() {
        let why = "collapsing stalls".to_owned();
        let stopped = PatternResults {
            stopped: Some(why),
            huge_ranges: [1, 100],
            ..PatternResults::default()
        };
        for (outcome, expected) in [(stopped, true), (PatternResults::default(), false)] {
            let mut report = Report::default();
            measures("skewed", Pattern::Skewed, &outcome, &mut report);
            let told =
                report.summary().to_text().contains("(manager stopped itself: collapsing stalls)");
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn arms_are_compared_with_small_pages() {
        let plots = plots();
        let ours = plots.last().unwrap().series.last().unwrap();
        assert!(
            ours.name == ARMS[OURS]
                && ours.points.len() == 3
                && ours.points.iter().all(|point| (point.y - 150.0).abs() < 1e-9)
        );
        assert!(
            plots[..6].iter().all(|plot| plot.series.iter().all(|series| series.points.len() == 2))
        );
    }
}
