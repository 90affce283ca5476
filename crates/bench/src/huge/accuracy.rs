//! Accuracy of the tracker: whether pages that it reports as hot are hot.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use hiroma_hot::layout::Layout;
use hiroma_hot::tracker;
use hiroma_hot::{Engine, Options};
use hiroma_memload::ballast::Ballast;
use hiroma_report::{Axis, Better, Measure, Plot, Point, Report, Section, Series, Spread, Table};
use hiroma_sys::hot::maps;
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

use super::Params;
use super::load::{Load, Loaded, Pages, Pattern};
use super::tracker::ranges_of;
use crate::progress::Progress;

/// Time for which each phase of a moving hot set is watched.
const WATCH: Duration = Duration::from_secs(3);
/// Time for which zipf is watched: there is a score every second, and the goal applies to the last
/// one.
const WATCH_ZIPF: Duration = Duration::from_secs(12);
/// An earlier score that is reported as well, in seconds.
const EARLY_SECONDS: usize = 3;
/// Maximum number of repetitions.
const ZIPF_REPETITIONS: usize = 3;

/// Uses a tenth of a processor and ignores the cost for the program: this experiment is about what
/// can be seen.
fn watching() -> Options {
    Options {
        watch_only: true,
        ledger: None,
        cpu_ppm: 100_000,
        slowdown_ppm: 1_000_000,
        ..Options::default()
    }
}

/// Share of the found pages that are right, and share of the right pages that are found.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score {
    precision: f64,
    recall: f64,
}

fn score(found: &BTreeSet<u32>, right: &BTreeSet<u32>) -> Score {
    let both = found.intersection(right).count() as f64;
    Score { precision: both / found.len().max(1) as f64, recall: both / right.len().max(1) as f64 }
}

/// One window that is as long as a set: every hot page is touched in it, and no other.
fn scattered(params: &Params, ballast: &Ballast) -> Result<Vec<Score>> {
    let load = Load::new(params.bytes, Pattern::Scattered, Pages::Small);
    let mut loaded = Loaded::start(load, ballast)?;
    let mut tracker = tracker::open(loaded.pid(), None)?;
    let layout = Layout::of(&maps::of(loaded.pid())?);
    let ranges = ranges_of(&loaded);
    let right: BTreeSet<u32> =
        (0..load.bytes / PAGE).filter(|&page| load.is_hot(page)).map(|page| page as u32).collect();
    let mut scores = Vec::new();
    for _ in 0..params.repetitions {
        tracker.clear(&layout, &ranges)?;
        loaded.run(1)?;
        let mut views = Vec::new();
        tracker.scan(&layout, &ranges, &mut views)?;
        let mut found = BTreeSet::new();
        for view in &views {
            let first = ((view.range - ranges[0]) as usize * PAGES_PER_EXTENT) as u32;
            let touched = (0..PAGES_PER_EXTENT)
                .filter(|page| view.touched[page / 64] >> (page % 64) & 1 == 1);
            found.extend(touched.map(|page| first + page as u32));
        }
        scores.push(score(&found, &right));
    }
    loaded.end()?;
    Ok(scores)
}

/// The tenth of the pages with the highest counts.
fn top_tenth(engine: &Engine, loaded: &Loaded) -> BTreeSet<u32> {
    let pages = loaded.load.bytes / PAGE;
    let mut counts: Vec<(std::cmp::Reverse<u64>, u32)> = Vec::with_capacity(pages);
    for (range, heat) in engine.heat().ranges() {
        let Some(at) = range
            .checked_sub(loaded.base / EXTENT as u64)
            .filter(|&at| (at as usize) < loaded.load.bytes / EXTENT)
        else {
            continue;
        };
        let windows = u64::from(heat.windows.max(1));
        for (page, count) in heat.counts.iter().enumerate() {
            // Shares of windows, because not all ranges had the same number of windows.
            counts.push((
                std::cmp::Reverse(u64::from(count) * 1_000_000 / windows),
                at as u32 * PAGES_PER_EXTENT as u32 + page as u32,
            ));
        }
    }
    counts.sort_unstable();
    counts.iter().take(pages / 10).map(|&(_, page)| page).collect()
}

/// Accuracy of the ranking of zipf, for each second.
struct Ranking {
    /// The score after each second, for each repetition.
    runs: Vec<Vec<Score>>,
    window_ms: f64,
}

impl Ranking {
    /// The scores after `seconds` seconds.
    fn after(&self, seconds: usize) -> Vec<Score> {
        self.runs.iter().filter_map(|run| run.get(seconds - 1).copied()).collect()
    }
}

/// The engine watches with its defaults; the tenth with the highest counts should be the tenth that
/// is drawn most.
fn zipf(params: &Params, ballast: &Ballast) -> Result<Ranking> {
    let load = Load::new(params.bytes, Pattern::Zipf, Pages::Small);
    let mut loaded = Loaded::start(load, ballast)?;
    let right = load.hottest_tenth();
    loaded.go()?;
    let mut ranking = Ranking { runs: Vec::new(), window_ms: 0.0 };
    for _ in 0..params.repetitions.min(ZIPF_REPETITIONS) {
        let began = Instant::now();
        let now = || began.elapsed().as_nanos() as u64;
        let mut engine = Engine::new(loaded.pid(), watching(), now())?;
        let mut scores = Vec::new();
        while began.elapsed() < WATCH_ZIPF {
            let step = engine.step(now())?;
            if began.elapsed().as_secs() as usize > scores.len() {
                scores.push(score(&top_tenth(&engine, &loaded), &right));
            }
            std::thread::sleep(Duration::from_nanos(step.next_ns.saturating_sub(now())));
        }
        scores.push(score(&top_tenth(&engine, &loaded), &right));
        ranking.window_ms = engine.window_ns() as f64 / 1e6;
        ranking.runs.push(scores);
    }
    loaded.stop()?;
    loaded.end()?;
    Ok(ranking)
}

fn zipf_plot(ranking: &Ranking) -> Plot {
    let points = |part: fn(&Score) -> f64| {
        let spread = |seconds: usize| {
            Spread::of(&ranking.after(seconds).iter().map(part).collect::<Vec<_>>())
        };
        (1..=WATCH_ZIPF.as_secs() as usize)
            .filter_map(|seconds| Some(Point::of(seconds as f64, spread(seconds)?)))
            .collect()
    };
    Plot {
        title: "Zipf .99: the top tenth, by how long it was watched".into(),
        x: Axis::linear("time", "s"),
        y: Axis::linear("precision and recall (both sets have as many pages)", ""),
        series: vec![Series::new("1 GiB, 10 % of a processor", points(|score| score.precision))],
        ..Plot::default()
    }
}

/// Accuracy for a moving hot set: precision and recall after each pass.
struct Moving {
    /// Seconds since the set moved, and the score; for the first phase and for the second.
    phases: [Vec<(f64, Score)>; 2],
}

impl Moving {
    /// The last score of a phase.
    fn end(&self, phase: usize) -> Option<Score> {
        self.phases[phase].last().map(|&(_, score)| score)
    }

    /// Seconds from the move until precision and recall reached `least` for the rest of the phase.
    fn found_again(&self, least: f64) -> Option<f64> {
        let good = |&&(_, score): &&(f64, Score)| score.precision >= least && score.recall >= least;
        self.phases[1].iter().rev().take_while(good).last().map(|&(seconds, _)| seconds)
    }
}

/// The pages that the engine reports as hot, pass by pass, while another third becomes hot.
fn moving(params: &Params, ballast: &Ballast) -> Result<Moving> {
    let mut loaded =
        Loaded::start(Load::new(params.bytes, Pattern::Moving, Pages::Small), ballast)?;
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let mut engine = Engine::new(loaded.pid(), watching(), now())?;
    let mut moving = Moving { phases: Default::default() };
    let first = loaded.base / PAGE as u64;
    for phase in 0..2 {
        loaded.change_phase(phase)?;
        let load = loaded.load;
        let right: BTreeSet<u32> = (0..load.bytes / PAGE)
            .filter(|&page| load.is_hot(page))
            .map(|page| page as u32)
            .collect();
        loaded.go()?;
        let moved = Instant::now();
        while moved.elapsed() < WATCH {
            let step = engine.step(now())?;
            if step.pass_over {
                let mut active = Vec::new();
                engine.active_pages(&mut active);
                let pages = active
                    .iter()
                    .filter_map(|page| (page.address / PAGE as u64).checked_sub(first));
                let found: BTreeSet<u32> = pages
                    .filter(|&page| page < (load.bytes / PAGE) as u64)
                    .map(|page| page as u32)
                    .collect();
                moving.phases[phase as usize]
                    .push((moved.elapsed().as_secs_f64(), score(&found, &right)));
            }
            std::thread::sleep(
                Duration::from_nanos(step.next_ns.saturating_sub(now()))
                    .min(Duration::from_millis(50)),
            );
        }
        loaded.stop()?;
    }
    loaded.end()?;
    Ok(moving)
}

fn moving_plot(moving: &Moving) -> Plot {
    let points = |phase: usize, part: fn(&Score) -> f64| {
        moving.phases[phase].iter().map(|(x, score)| Point::at(*x, part(score))).collect()
    };
    Plot {
        title: "Finding a hot set, and finding it again after it moved".into(),
        x: Axis::linear("time since it began, or moved", "s"),
        y: Axis::linear("share of pages", ""),
        series: vec![
            Series::new("precision at the beginning", points(0, |score| score.precision)),
            Series::new("recall at the beginning", points(0, |score| score.recall)),
            Series::new("precision after it moved", points(1, |score| score.precision)),
            Series::new("recall after it moved", points(1, |score| score.recall)),
        ],
        ..Plot::default()
    }
}

fn moving_measures(moving: &Moving, report: &mut Report) {
    let seconds = moving.found_again(0.9);
    let again = Measure::new(
        "moving_found_again_seconds",
        "Hot third that moves: until 90 % is right again",
        "s",
        Better::Lower,
    )
    .spread(seconds.and_then(|seconds| Spread::of(&[seconds])));
    report.measures.push(if seconds.is_none() {
        again.note(format!("not within {} s", WATCH.as_secs()))
    } else {
        again
    });
    let of = |part: fn(&Score) -> f64| moving.end(1).and_then(|score| Spread::of(&[part(&score)]));
    let title = |what: &str| format!("{what}, hot third {} s after it moved", WATCH.as_secs());
    report.measures.extend([
        Measure::new("moving_precision", title("Precision"), "", Better::Higher)
            .spread(of(|score| score.precision)),
        Measure::new("moving_recall", title("Recall"), "", Better::Higher)
            .spread(of(|score| score.recall)),
    ]);
}

/// Measures and reports.
pub fn run(
    params: &Params,
    ballast: &Ballast,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    progress.starts("accuracy, scattered third");
    let third = scattered(params, ballast)?;
    progress.starts("accuracy, zipf");
    let ranking = zipf(params, ballast)?;
    let (zipf, window_ms) = (ranking.after(WATCH_ZIPF.as_secs() as usize), ranking.window_ms);
    progress.starts("accuracy, hot set that moves");
    let moving = moving(params, ballast)?;
    let of = |scores: &[Score], part: fn(&Score) -> f64| {
        Spread::of(&scores.iter().map(part).collect::<Vec<_>>())
    };
    let mut table =
        Table::new("Pages called hot").text("load").number("precision", "").number("recall", "");
    for (name, scores) in [("a scattered third", &third), ("zipf .99, the top tenth", &zipf)] {
        let text = |part| of(scores, part).map_or("–".to_owned(), Spread::to_text);
        table.row([name.to_owned(), text(|score| score.precision), text(|score| score.recall)]);
    }
    for (name, score) in [
        ("a third of the ranges, from the beginning", moving.end(0)),
        ("the same, after it moved", moving.end(1)),
    ] {
        let text = |part: fn(&Score) -> f64| {
            score.map_or("–".to_owned(), |score| format!("{:.3}", part(&score)))
        };
        table.row([name.to_owned(), text(|score| score.precision), text(|score| score.recall)]);
    }
    let mut add = |name: &str,
                   title: &str,
                   scores: &[Score],
                   part: fn(&Score) -> f64,
                   must: f64,
                   aim: f64| {
        report.measures.push(
            Measure::new(name, title, "", Better::Higher)
                .must(must)
                .aim(aim)
                .spread(of(scores, part)),
        );
    };
    add(
        "third_precision",
        "Precision, scattered third",
        &third,
        |score| score.precision,
        0.99,
        1.0,
    );
    add("third_recall", "Recall, scattered third", &third, |score| score.recall, 0.99, 1.0);
    add(
        "zipf_precision",
        "Precision, zipf .99, top tenth after 12 s",
        &zipf,
        |score| score.precision,
        0.7,
        0.9,
    );
    add(
        "zipf_recall",
        "Recall, zipf .99, top tenth after 12 s",
        &zipf,
        |score| score.recall,
        0.7,
        0.8,
    );
    let early = of(&ranking.after(EARLY_SECONDS), |score| score.recall);
    let title = format!("Precision and recall, zipf .99, after {EARLY_SECONDS} s already");
    report.measures.push(Measure::new("zipf_early", title, "", Better::Higher).spread(early));
    moving_measures(&moving, report);
    report.sections.push(Section {
        title: "How right the tracker is".into(),
        text: vec![format!(
            "A third of the pages at random places, watched for one window in which each is touched once. Zipf: watched for {} s with 10 % of a processor, windows of {window_ms:.1} ms at the end; the tenth of the pages with the highest counts against the tenth that is drawn most. A hot set that moves: a third of the 2 MiB ranges, for {} s, and then another third; those pages are called hot that the engine acts on.",
            WATCH_ZIPF.as_secs(),
            WATCH.as_secs()
        )],
        tables: vec![table],
        plots: vec![zipf_plot(&ranking), moving_plot(&moving)],
    });
    Ok(())
}
