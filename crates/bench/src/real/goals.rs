//! The figures of the report, each with its goal.

use hiroma_report::{Better, Measure, Spread};

use super::cells::{Cell, End, Faults, mean};
use super::results::{Results, p50, p99, per_access, per_second};

const ZRAM: &str = "zram";
/// Our arms whose memory is comparable with zram's: all of it is in this machine.
const OURS: [&str; 4] = ["compressed", "no-disk", "file", "default"];
/// The arm whose memory is elsewhere.
const TCP: &str = "tcp";

/// All figures.
pub fn measures(results: &Results) -> Vec<Measure> {
    let mut measures = programs(results);
    measures.extend(servers(results));
    measures.extend(threads(results));
    measures.extend(bad(results));
    measures.extend(fits(results));
    measures.extend(blocks(results));
    measures
}

fn key(name: &str) -> String {
    name.replace('-', "_")
}

/// The ratio of two cells, with remarks on their failures.
fn compared(
    results: &Results,
    measure: Measure,
    ours: Option<&Cell>,
    other: Option<&Cell>,
) -> Measure {
    let (Some(ours), Some(other)) = (ours, other) else { return measure.note("not run") };
    if let (Some(End::DoesNotFit(_)), Some(End::DoesNotFit(_))) = (&ours.end, &other.end) {
        return measure.note("neither of them fits");
    }
    let failures = [ours, other]
        .into_iter()
        .filter_map(|cell| Some(format!("{}: {}", cell.arm, cell.end.as_ref()?.reason())));
    let note = failures.collect::<Vec<_>>().join("; ");
    measure.spread(results.cells.ratio(ours, other, results.patience)).note(note)
}

fn geometric(values: &[f64]) -> Option<Spread> {
    mean(values).map(|mean| Spread { median: mean, min: mean, max: mean, n: 1 })
}

/// Compared with zram: each program, and the geometric mean of all.
fn programs(results: &Results) -> Vec<Measure> {
    let group = "programs";
    let mut measures = Vec::new();
    let is_ours = |arm: &&str| OURS.contains(arm) || *arm == TCP;
    let arms: Vec<&str> = results.arms(group).into_iter().filter(is_ours).collect();
    if !results.arms(group).contains(&ZRAM) {
        return measures;
    }
    for size in results.sizes(group) {
        let percent = size.trim_end_matches('%');
        for arm in &arms {
            let mut ratios = Vec::new();
            for item in results.items(group) {
                let (ours, zram) =
                    (results.cell(group, item, size, arm), results.cell(group, item, size, ZRAM));
                if ours.is_none() && zram.is_none() {
                    continue;
                }
                let measure = Measure::new(
                    format!("real_{percent}_{}_{}", key(arm), key(item)),
                    format!("{item} with {percent} %, {arm}, against zram"),
                    "",
                    Better::Lower,
                );
                let (must, aim) = if *arm == TCP { (1.5, 1.0) } else { (1.2, 0.7) };
                let measure = compared(results, measure.must(must).aim(aim), ours, zram);
                ratios.extend(measure.value);
                measures.push(measure);
            }
            let title = format!(
                "geometric mean of {} programs with {percent} %, {arm}, against zram",
                ratios.len()
            );
            let measure =
                Measure::new(format!("real_{percent}_{}_mean", key(arm)), title, "", Better::Lower);
            let (must, aim) = if *arm == TCP { (1.5, 1.0) } else { (0.8, 0.5) };
            measures.push(measure.must(must).aim(aim).spread(geometric(&ratios)));
            measures.extend(traffic(results, size, arm));
        }
    }
    measures
}

/// Pages that were fetched, compared with those that the kernel swapped in from zram, and faults that
/// only mapped a staged block again, compared with those that fetched.
fn traffic(results: &Results, size: &str, arm: &str) -> [Measure; 2] {
    let group = "programs";
    let percent = size.trim_end_matches('%');
    let last = |item, arm| results.cell(group, item, size, arm).and_then(|cell| cell.runs.last());
    let pages = |item| {
        let (ours, zram) = (last(item, arm)?.pages_in, last(item, ZRAM)?.pages_in);
        (ours > 0 && zram > 0).then(|| ours as f64 / zram as f64)
    };
    let ratios: Vec<f64> = results.items(group).into_iter().filter_map(pages).collect();
    let bound = |pick: fn(f64, f64) -> f64| ratios.iter().copied().reduce(pick);
    let spread = mean(&ratios).zip(bound(f64::min)).zip(bound(f64::max));
    let title = format!(
        "pages fetched with {percent} %, {arm}, against those that zram swapped in, geometric mean of {} programs that run with both",
        ratios.len()
    );
    let name = format!("real_{percent}_{}_pages", key(arm));
    let fetched = Measure::new(name, title, "", Better::Lower)
        .must(1.1)
        .aim(0.9)
        .spread(spread.map(|((median, min), max)| Spread { median, min, max, n: ratios.len() }));
    let faults: Vec<Faults> =
        results.items(group).into_iter().filter_map(|item| last(item, arm)?.faults).collect();
    let fetches: u64 = faults.iter().map(|faults| faults.fetched).sum();
    let staged: u64 = faults.iter().map(|faults| faults.staged).sum();
    let title = format!("staging faults to fetches with {percent} %, {arm}");
    let share = (fetches > 0).then(|| staged as f64 / fetches as f64);
    let name = format!("real_{percent}_{}_staged", key(arm));
    let staged = Measure::new(name, title, "", Better::Lower).must(0.25).aim(0.05).spread(
        share.map(|share| Spread { median: share, min: share, max: share, n: faults.len() }),
    );
    [fetched, staged]
}

fn servers(results: &Results) -> Vec<Measure> {
    let group = "servers";
    let mut measures = Vec::new();
    for size in results.sizes(group) {
        for item in results.items(group) {
            for arm in results.arms(group) {
                let Some(cell) = results.cell(group, item, size, arm) else { continue };
                let name = format!("{}_{}_{}", key(item), size.trim_end_matches('%'), key(arm));
                let title = format!("{item} with {size}, {arm}");
                let note = cell.end.as_ref().map_or_else(String::new, |end| end.reason());
                let us = |what: &str, spread| {
                    Measure::new(
                        format!("{name}_{what}_us"),
                        format!("{title}: {what}"),
                        "us",
                        Better::Lower,
                    )
                    .spread(spread)
                    .note(note.clone())
                };
                measures.push(us("p50", Spread::of(&cell.values(p50))));
                measures.push(us("p99", Spread::of(&cell.values(p99))));
                let measure = Measure::new(
                    format!("{name}_per_s"),
                    format!("{title}: requests"),
                    "1/s",
                    Better::Higher,
                );
                measures.push(measure.spread(Spread::of(&cell.values(per_second))).note(note));
            }
        }
    }
    measures
}

fn threads(results: &Results) -> Vec<Measure> {
    let group = "threads";
    let mut measures = Vec::new();
    let Some(size) = results.sizes(group).first().copied() else { return measures };
    for item in results.items(group) {
        let Some((kind, threads)) = item.rsplit_once("-t") else { continue };
        let (must, aim) = if kind == "random-read" { (0.9, 0.6) } else { (1.0, 0.7) };
        let title = format!("{} with {threads} threads", kind.replace('-', " "));
        let cell = |arm| results.cell(group, item, size, arm);
        let each = |arm| cell(arm).filter(|cell| cell.end.is_none()).and_then(per_access);
        for arm in results.arms(group) {
            let note = cell(arm)
                .and_then(|cell| cell.end.as_ref())
                .map_or_else(String::new, |end| end.reason());
            let measure = Measure::new(
                format!("{}_us_t{threads}_{arm}", key(kind)),
                format!("{title}, {arm}"),
                "us",
                Better::Lower,
            );
            measures.push(measure.spread(each(arm)).note(note));
        }
        let measure = Measure::new(
            format!("{}_us_t{threads}_vs_zram", key(kind)),
            format!("{title}, against zram"),
            "",
            Better::Lower,
        );
        let measure = measure.must(must).aim(aim);
        measures.push(match (each(OURS[0]), each(ZRAM)) {
            (Some(ours), Some(zram)) => measure.spread(Some(Spread {
                median: ours.median / zram.median,
                min: ours.min / zram.max,
                max: ours.max / zram.min,
                n: ours.n.min(zram.n),
            })),
            // An arm that fails alone has lost.
            (None, Some(_)) if cell(OURS[0]).is_some_and(Cell::counts) => {
                measure.decided(false).note("compressed failed")
            }
            (Some(_), None) if cell(ZRAM).is_some_and(Cell::counts) => {
                measure.decided(true).note("zram failed")
            }
            _ => measure.note("not run"),
        });
    }
    measures
}

fn bad(results: &Results) -> Vec<Measure> {
    let group = "bad";
    let mut measures = Vec::new();
    for size in results.sizes(group) {
        for item in results.items(group) {
            for arm in results.arms(group).into_iter().filter(|arm| OURS.contains(arm)) {
                let Some(ours) = results.cell(group, item, size, arm) else { continue };
                let measure = Measure::new(
                    format!("bad_{}_{arm}_vs_zram", key(item)),
                    format!("{item}, {arm}, against zram"),
                    "",
                    Better::Lower,
                );
                // `default` has less memory: its limit includes the compressed memory.
                let measure = if arm == OURS[0] { measure.must(1.5) } else { measure };
                measures.push(compared(
                    results,
                    measure,
                    Some(ours),
                    results.cell(group, item, size, ZRAM),
                ));
            }
        }
    }
    measures
}

fn fits(results: &Results) -> Vec<Measure> {
    let group = "fits";
    let (mut measures, mut ratios) = (Vec::new(), Vec::new());
    for item in results.items(group) {
        let (ours, native) =
            (results.cell(group, item, "roomy", "roomy"), results.cells.native(group, item));
        if item == "first-touch" {
            let measure = Measure::new(
                "first_touch_vs_native",
                "first touch of fresh memory within the limit, against native",
                "",
                Better::Lower,
            );
            measures.push(compared(results, measure.must(1.3).aim(1.1), ours, native));
            continue;
        }
        let measure = Measure::new(
            format!("fits_{}", key(item)),
            format!("{item} within the limit, against native"),
            "",
            Better::Lower,
        );
        let measure = compared(results, measure, ours, native);
        ratios.extend(measure.value);
        measures.push(measure);
    }
    if !ratios.is_empty() {
        let title =
            format!("geometric mean of {} programs within the limit, against native", ratios.len());
        measures.push(
            Measure::new("fits_mean", title, "", Better::Lower)
                .must(1.02)
                .aim(1.005)
                .spread(geometric(&ratios)),
        );
    }
    measures
}

fn blocks(results: &Results) -> Vec<Measure> {
    let group = "blocks";
    let mut measures = Vec::new();
    for size in results.sizes(group) {
        for item in results.items(group) {
            let auto = results.cell(group, item, size, "auto");
            let fixed = results
                .arms(group)
                .into_iter()
                .filter(|&arm| arm != "auto")
                .filter_map(|arm| results.cell(group, item, size, arm));
            let median = |cell: &&Cell| {
                results
                    .cells
                    .seconds(cell, results.patience)
                    .and_then(|seconds| Spread::of(&seconds))
                    .map(|s| s.median)
            };
            let best = fixed.filter(|cell| median(cell).is_some()).min_by(|a, b| {
                median(a).partial_cmp(&median(b)).unwrap_or(std::cmp::Ordering::Equal)
            });
            let name = best.map_or("fixed", |cell| &cell.arm);
            let title = format!(
                "{item}, block size found while running against the best fixed one ({name})"
            );
            let measure =
                Measure::new(format!("block_auto_{}", key(item)), title, "", Better::Lower)
                    .must(1.1)
                    .aim(0.9);
            measures.push(compared(results, measure, auto, best));
        }
    }
    measures
}
