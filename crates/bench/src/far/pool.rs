//! `hiroma bench pool`: what it costs to keep far memory in several servers, so that one may die.

use std::process::ExitCode;

use anyhow::Result;
use hiroma_command::files::Files;
use hiroma_far::config::{Allocation, Seal};
use hiroma_policy::redundancy::Scheme;
use hiroma_report::{Better, Measure, Report, Section, Table};

use super::params::Params;
use super::plan::{Local, Ours, Place, Run, Store, Text, TimeLimit, Work, roomy};
use super::results::{Results, higher, lower};
use super::{Experiment, choose, measure, opening, sort};
use crate::job::{Task, TaskResult};

/// Far memory in a pool of servers on this machine: what copies, parity and sealing cost, and how
/// long a program waits when a server is killed.
///
/// All servers share this machine's processors with the program, so that each request costs more than
/// where servers have processors of their own.
#[derive(clap::Args)]
pub struct PoolArgs {
    #[command(flatten)]
    files: Files,
    /// Use smaller sizes
    #[arg(long)]
    quick: bool,
    /// Run only these experiments: sort, seal
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Number of repetitions of every run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=99))]
    repetitions: u8,
}

const EXPERIMENTS: [Experiment; 2] = [
    Experiment { name: "sort", plan: plan_sort, report: report_sort },
    Experiment { name: "seal", plan: plan_seal, report: report_seal },
];

const SERVERS: usize = 5;
const LINES: u64 = 4_000_000;
const NATIVE: &str = "pool sort native";
const ONE: &str = "pool sort one copy";
const COPIES: &str = "pool sort 2 copies";
const PARITY: &str = "pool sort 4+1";
const COPIES_KILLED: &str = "pool sort 2 copies killed";
const PARITY_KILLED: &str = "pool sort 4+1 killed";
const PLAIN: &str = "pool read plain";
const SEALED: &str = "pool read sealed";

/// Runs the experiments.
pub fn run(args: &PoolArgs) -> Result<ExitCode> {
    let chosen = choose(&EXPERIMENTS, &args.only)?;
    args.files.check()?;
    let mut params = Params::new(args.quick, false);
    params.lines = params.lines.min(LINES);
    params.repetitions = usize::from(args.repetitions);
    super::super::measured(&args.files, |interrupt| {
        let report = opening("Far memory in a pool of servers on this machine", &params);
        measure(&params, &chosen, |_, _, _| {}, report, interrupt)
    })
}

fn two_copies() -> Scheme {
    Scheme::copies(2).expect("a number of copies")
}

fn four_and_one() -> Scheme {
    "4+1".parse().expect("a scheme")
}

fn servers(each: u64) -> Store {
    Store::Tcp { servers: SERVERS, each, allocation: Allocation::RoundRobin }
}

fn plan_sort(params: &Params) -> Vec<Run> {
    let (far, seconds) = (sort::memory_of(params.lines, 10), sort::seconds_of(params.lines));
    let ours = Ours::on(servers(roomy(far) / 2), Local::Percent(30.0, NATIVE));
    let run = |key: &str, place: Place, slowness: f64, limit: TimeLimit| Run {
        key: key.to_owned(),
        place,
        work: Work::Sort(Text::Numbers),
        seconds: seconds * slowness,
        limit,
        once: false,
    };
    let far_run = |key: &str, ours: Ours| {
        run(key, Place::Ours(ours), 4.0, TimeLimit::Times(10.0 * params.patience, NATIVE))
    };
    vec![
        run(NATIVE, Place::Native, 1.0, TimeLimit::Seconds(600.0)),
        far_run(ONE, ours),
        far_run(COPIES, ours.scheme(two_copies())),
        far_run(PARITY, ours.scheme(four_and_one())),
        far_run(COPIES_KILLED, ours.scheme(two_copies()).kill(COPIES)),
        far_run(PARITY_KILLED, ours.scheme(four_and_one()).kill(PARITY)),
    ]
}

fn longest_wait_s(outcome: &TaskResult) -> f64 {
    let ns = outcome.counters.get("fault_latency_ns_max");
    ns.map_or(f64::NAN, |&ns| ns as f64 / 1e9)
}

fn report_sort(_params: &Params, results: &Results, report: &mut Report) {
    let mut table = Table::new("GNU sort with 30 % local, five servers")
        .text("kept as")
        .number("time", "s")
        .number("/ one copy", "")
        .number("longest wait", "s");
    table.row(["native (no limit)".to_owned(), results.time_cell(NATIVE)]);
    let arms = [
        ("one copy", ONE),
        ("2 copies", COPIES),
        ("parity 4+1", PARITY),
        ("2 copies, one server killed", COPIES_KILLED),
        ("parity 4+1, one server killed", PARITY_KILLED),
    ];
    for (name, key) in arms {
        let ratio = results.time_ratio(lower("", ""), key, ONE).value_text();
        table.row([
            name.to_owned(),
            results.time_cell(key),
            if key == ONE { String::new() } else { ratio },
            results.cell(key, longest_wait_s),
        ]);
    }
    table.note("Every output is compared with the native one. A server is killed after half of the time of the calm run.");
    for (name, title, key) in [
        ("copies_cost", "sort with 2 copies: time of one copy", COPIES),
        ("parity_cost", "sort with parity 4+1: time of one copy", PARITY),
    ] {
        report.measures.push(results.time_ratio(lower(name, title).must(1.2).aim(1.08), key, ONE));
    }
    for (name, title, key) in [
        ("copies_stall", "longest wait with 2 copies, one server killed", COPIES_KILLED),
        ("parity_stall", "longest wait with parity 4+1, one server killed", PARITY_KILLED),
    ] {
        let measure = Measure::new(name, title, "s", Better::Lower).must(1.0).aim(0.3);
        report.measures.push(match results.spread(key, longest_wait_s) {
            Some(spread) => measure.spread(Some(spread)),
            None => measure.note(results.why_missing(key)),
        });
    }
    report.sections.push(Section {
        title: "Copies and parity".into(),
        text: vec![],
        tables: vec![table],
        plots: vec![],
    });
}

fn plan_seal(params: &Params) -> Vec<Run> {
    let bytes = params.region / 2;
    let run = |key: &str, seal| {
        let ours = Ours::on(servers(roomy(bytes as u64) / 2), Local::Bytes(bytes as u64 / 4));
        let place = Place::Ours(ours.seal(seal));
        Run::task(
            key,
            place,
            Task::Sequential { bytes },
            1.5 * bytes as f64 / (1u64 << 30) as f64 + 0.2,
        )
    };
    vec![run(PLAIN, Seal::Off), run(SEALED, Seal::On)]
}

fn report_seal(_params: &Params, results: &Results, report: &mut Report) {
    let speed = TaskResult::gb_per_s;
    let mut table = Table::new("Sequential read").text("blocks").number("speed", "GB/s");
    table.row(["plain".to_owned(), results.cell(PLAIN, speed)]);
    table.row(["sealed".to_owned(), results.cell(SEALED, speed)]);
    let measure = higher("sealed_vs_plain", "sequential read, sealed: of the speed of plain");
    report.measures.push(results.ratio(measure.must(0.75).aim(0.9), SEALED, PLAIN, speed));
    report.sections.push(Section {
        title: "Sealing".into(),
        text: vec![],
        tables: vec![table],
        plots: vec![],
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_refer_backwards_and_goals_without_results_have_a_reason() {
        let params = Params::new(true, false);
        let mut report = Report::default();
        for experiment in &EXPERIMENTS {
            let mut keys = Vec::new();
            for run in (experiment.plan)(&params) {
                assert!(run.needs().iter().all(|key| keys.iter().any(|known| known == key)));
                keys.push(run.key);
            }
            (experiment.report)(&params, &Results::default(), &mut report);
        }
        assert_eq!(report.measures.len(), 5);
        for measure in &report.measures {
            assert!(measure.value.is_none() && !measure.note.is_empty(), "{measure:?}");
        }
    }
}
