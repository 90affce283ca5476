//! Results of the simulations as tables, plots and figures.

use hiroma_far_lab::{PolicyOutcome, Reason};
use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table, figures,
};

use super::simulate::{Cell, Program};

/// Policies that differ in the evicted page.
const VICTIMS: [&str; 10] =
    ["belady", "lru", "fifo", "clock", "mglru", "s3fifo", "sieve", "arc", "ours", "ours-fifo"];
/// Policies that differ in the amount that is fetched.
const BLOCKS: [&str; 15] = [
    "lru",
    "lru-8k",
    "lru-16k",
    "lru-64k",
    "lru-2m",
    "lru-swap-window",
    "lru-vma-window",
    "ours-4k",
    "ours-8k",
    "ours-16k",
    "ours-64k",
    "ours-2m",
    "ours-4k-bits",
    "ours-16k-bits",
    "ours-auto",
];
/// `auto`, and with one rule or source of knowledge less.
const RULES: [&str; 8] = [
    "ours-auto",
    "auto-no-clusters",
    "auto-no-groups",
    "auto-no-runs",
    "auto-no-zeros",
    "auto-no-prefetch",
    "auto-no-bits",
    "auto-single",
];
/// The fixed block sizes, one of which is the best.
const FIXED: [&str; 5] = ["ours-4k", "ours-8k", "ours-16k", "ours-64k", "ours-2m"];
/// Maximum time of auto, relative to the best fixed block size.
const AUTO_MUST: f64 = 1.10;
/// Misses in times of the optimum's.
const OPTIMUM_MUST: f64 = 1.5;
const OPTIMUM_AIM: f64 = 1.25;

/// Fills the report.
pub fn report(report: &mut Report, programs: &[Program], cells: &[Cell], at: &[u8]) {
    report.sections.push(Section {
        title: "Programs".into(),
        tables: vec![programs_table(programs)],
        ..Section::default()
    });
    for &percent in at {
        let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.percent == percent).collect();
        let misses = |outcome: PolicyOutcome| outcome.fetches as f64;
        let seconds = |outcome: PolicyOutcome| outcome.time_ns as f64 / 1e9;
        let moved = |outcome: PolicyOutcome| (outcome.pages_in + outcome.pages_out) as f64;
        let [victims, blocks, rules] =
            [&VICTIMS[..], &BLOCKS, &RULES].map(|names| simulated(&cells, names));
        if victims.contains(&"belady") {
            report.sections.push(Section {
                title: format!("Who leaves, with {percent} % of the pages"),
                text: vec![
                "Misses in times of Belady's optimum; every page by itself, nothing fetched ahead."
                    .into(),
            ],
                tables: vec![relative(&cells, &victims, "belady", "misses", misses)],
                plots: vec![plot(&cells, &victims, "belady", "misses / optimum", misses)],
            });
        }
        report.sections.push(Section {
            title: format!("How much comes, with {percent} % of the pages"),
            text: vec!["Modelled time in times of LRU with pages of 4 KiB.".into()],
            tables: vec![relative(&cells, &blocks, "lru", "time", seconds), traffic(&cells)],
            plots: vec![plot(&cells, &blocks, "lru", "time / LRU with 4 KiB", seconds)],
        });
        report.sections.push(Section {
            title: format!(
                "What the rules for block sizes are worth, with {percent} % of the pages"
            ),
            text: vec![
                "In times of auto with all rules, accessed bits and prefetching; auto-single has \
                 none of the rules."
                    .into(),
            ],
            tables: vec![
                relative(&cells, &rules, "ours-auto", "time", seconds),
                relative(&cells, &rules, "ours-auto", "misses", misses),
                relative(&cells, &rules, "ours-auto", "pages", moved),
                by_rule(&cells),
            ],
            plots: vec![plot(&cells, &rules, "ours-auto", "time / auto", seconds)],
        });
        report.measures.extend(measures(&cells, percent));
    }
}

fn programs_table(programs: &[Program]) -> Table {
    let mut table = Table::new("Traces")
        .text("program")
        .number("memory", "MiB")
        .number("references", "M")
        .number("steps", "M");
    for program in programs {
        let number = |value: f64| figures(value);
        table.row([
            program.name.clone(),
            number(program.pages as f64 / 256.0),
            number(program.references as f64 / 1e6),
            number(program.steps as f64 / 1e6),
        ]);
    }
    table
}

fn ratio(cell: &Cell, name: &str, base: &str, value: impl Fn(PolicyOutcome) -> f64) -> Option<f64> {
    let (over, under) = (value(cell.of(name)?), value(cell.of(base)?));
    (under > 0.0).then(|| over / under)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logarithms: Vec<f64> = values.filter(|&value| value > 0.0).map(f64::ln).collect();
    (!logarithms.is_empty())
        .then(|| (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
}

fn relative(
    cells: &[&Cell],
    names: &[&str],
    base: &str,
    what: &str,
    value: impl Fn(PolicyOutcome) -> f64 + Copy,
) -> Table {
    let unit = if what == "time" { "s" } else { "k" };
    let mut table =
        Table::new(format!("{what} in times of {base}")).text("program").number(base, unit);
    for name in names.iter().filter(|&&name| name != base) {
        table = table.number(*name, "x");
    }
    let others = |row: &dyn Fn(&str) -> Option<f64>| {
        let cells = names
            .iter()
            .filter(|&&name| name != base)
            .map(|name| row(name).map_or_else(String::new, |value| format!("{value:.2}")));
        cells.collect::<Vec<_>>()
    };
    for cell in cells {
        let absolute = cell.of(base).map_or(0.0, value) / if what == "time" { 1.0 } else { 1e3 };
        let mut row = vec![cell.program.clone(), figures(absolute)];
        row.extend(others(&|name| ratio(cell, name, base, value)));
        table.row(row);
    }
    let mut row = vec!["geometric mean".to_owned(), String::new()];
    row.extend(others(&|name| {
        mean(cells.iter().filter_map(|cell| ratio(cell, name, base, value)))
    }));
    table.row(row);
    table
}

/// Those of these policies that were simulated.
fn simulated(cells: &[&Cell], names: &[&'static str]) -> Vec<&'static str> {
    let is_there = |name: &&str| cells.iter().any(|cell| cell.of(name).is_some());
    names.iter().copied().filter(is_there).collect()
}

/// Bytes in and out, and the part that was fetched unnecessarily.
fn traffic(cells: &[&Cell]) -> Table {
    let names = simulated(cells, &["lru", "lru-64k", "ours-4k", "ours-2m", "ours-auto"]);
    let mut table = Table::new("Traffic: in, out, and fetched in vain").text("program");
    for &name in &names {
        table = table.number(name, "MiB in").number("", "out").number("", "in vain");
    }
    for cell in cells {
        let mut row = vec![cell.program.clone()];
        for &name in &names {
            let outcome = cell.of(name).unwrap_or_default();
            row.extend(
                [outcome.pages_in, outcome.pages_out, outcome.wasted]
                    .map(|pages| figures(pages as f64 / 256.0)),
            );
        }
        table.row(row);
    }
    table
}

/// What `auto` fetched, by the rule that asked for it, and the part that nobody used.
fn by_rule(cells: &[&Cell]) -> Table {
    let mut table = Table::new("What auto fetched, and in vain").text("program");
    for reason in Reason::ALL.into_iter().filter(|&reason| reason != Reason::Fault) {
        table = table.number(reason.name(), "MiB").number("in vain", "%");
    }
    table = table.number("zeros in vain", "MiB");
    for cell in cells {
        let outcome = cell.of("ours-auto").unwrap_or_default();
        let mut row = vec![cell.program.clone()];
        for reason in Reason::ALL.into_iter().filter(|&reason| reason != Reason::Fault) {
            let came = outcome.came_by[reason as usize];
            let wasted = outcome.wasted_by[reason as usize];
            let share = (came > 0).then(|| 100.0 * wasted as f64 / came as f64);
            row.push(figures(came as f64 / 256.0));
            row.push(share.map_or_else(String::new, figures));
        }
        row.push(figures(outcome.zeros_wasted as f64 / 256.0));
        table.row(row);
    }
    table
}

fn plot(
    cells: &[&Cell],
    names: &[&str],
    base: &str,
    label: &str,
    value: impl Fn(PolicyOutcome) -> f64 + Copy,
) -> Plot {
    let series = names.iter().filter(|&&name| name != base).map(|&name| {
        let points = cells
            .iter()
            .enumerate()
            .filter_map(|(at, cell)| Some(Point::at(at as f64, ratio(cell, name, base, value)?)));
        Series::new(name, points.collect())
    });
    Plot {
        title: label.to_owned(),
        kind: Kind::Bars,
        x: Axis::names("", cells.iter().map(|cell| cell.program.clone())),
        y: Axis::log(label, ""),
        series: series.collect(),
    }
}

fn figure(name: String, title: String, unit: &str, value: Option<f64>) -> Measure {
    Measure::new(name.replace('-', "_"), title, unit, Better::Lower)
        .spread(value.and_then(|value| Spread::of(&[value])))
}

fn measures(cells: &[&Cell], percent: u8) -> Vec<Measure> {
    let mut measures = Vec::new();
    let misses = |outcome: PolicyOutcome| outcome.fetches as f64;
    let seconds = |outcome: PolicyOutcome| outcome.time_ns as f64 / 1e9;
    for name in VICTIMS.iter().skip(1) {
        let value = mean(cells.iter().filter_map(|cell| ratio(cell, name, "belady", misses)));
        let title =
            format!("misses of {name} in times of the optimum, {percent} %, geometric mean");
        let measure = figure(format!("policy_{percent}_mean_{name}"), title, "", value);
        measures.push(match *name {
            "ours" => measure.must(OPTIMUM_MUST).aim(OPTIMUM_AIM),
            _ => measure,
        });
    }
    for cell in cells {
        let program = &cell.program;
        let best = FIXED
            .iter()
            .filter_map(|name| cell.of(name))
            .map(seconds)
            .fold(f64::INFINITY, f64::min);
        let auto = cell
            .of("ours-auto")
            .map(seconds)
            .filter(|_| best > 0.0 && best.is_finite())
            .map(|auto| auto / best);
        let title = format!(
            "{program}, {percent} %: modelled time of auto in times of the best fixed block"
        );
        measures.push(
            figure(format!("policy_{percent}_{program}_auto"), title, "", auto).must(AUTO_MUST),
        );
        for (policy, outcome) in &cell.outcomes {
            let name = policy.name();
            let key = format!("policy_{percent}_{program}_{name}");
            for reason in Reason::ALL {
                let (came, wasted) =
                    (outcome.came_by[reason as usize], outcome.wasted_by[reason as usize]);
                if came == 0 || reason == Reason::Fault {
                    continue;
                }
                let title = format!(
                    "{program}, {percent} %, {name}: fetched in vain by {}, of what it fetched",
                    reason.name()
                );
                let share = Some(100.0 * wasted as f64 / came as f64);
                measures.push(figure(
                    format!("{key}_in_vain_{}", reason.name()),
                    title,
                    "%",
                    share,
                ));
            }
            measures.push(figure(
                format!("{key}_misses"),
                format!("{program}, {percent} %, {name}: misses"),
                "",
                Some(misses(*outcome)),
            ));
            measures.push(figure(
                format!("{key}_seconds"),
                format!("{program}, {percent} %, {name}: modelled time"),
                "s",
                Some(seconds(*outcome)),
            ));
            let mib = |pages: u64| Some(pages as f64 / 256.0);
            let moved =
                [("in", outcome.pages_in), ("out", outcome.pages_out), ("in_vain", outcome.wasted)];
            for (what, pages) in moved {
                let title =
                    format!("{program}, {percent} %, {name}: moved {}", what.replace('_', " "));
                measures.push(figure(format!("{key}_{what}"), title, "MiB", mib(pages)));
            }
        }
    }
    measures
}

/// The figures with a goal, and the means.
pub fn summary(report: &Report) -> Table {
    let chosen: Vec<Measure> = report
        .measures
        .iter()
        .filter(|measure| measure.must.is_some() || measure.name.contains("_mean_"))
        .cloned()
        .collect();
    hiroma_report::measures_table("Means, and what auto must reach", &chosen)
}
