//! `hiroma bench far`: the experiments of the paper on remote swap.

mod latency;
mod params;
mod plan;
pub mod pool;
mod random;
mod reserve;
mod results;
mod runner;
mod seq;
mod servers;
mod sort;
mod sort_blocks;
mod stride;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use hiroma_command::files::Files;
use hiroma_command::machine;
use hiroma_report::Report;

use self::params::Params;
use self::plan::Run;
use self::results::Results;
use self::runner::Runner;
use super::children::{Failed, Interrupt};
use super::progress::Progress;
use super::{Named, choose, peers};
pub use pool::PoolArgs;

/// Run the experiments of the remote-swap paper on this machine: far memory compared with raw TCP,
/// zram swap and a swap file.
///
/// Swap peers require root and a memory control group, and are skipped otherwise. Swap devices,
/// files and control groups that the bench makes are removed afterwards, also after Ctrl-C. It
/// keeps the machine busy for 17 minutes, or 4 with --quick.
#[derive(clap::Args)]
pub struct FarArgs {
    #[command(flatten)]
    files: Files,
    /// Use smaller sizes and fewer variants
    #[arg(long)]
    quick: bool,
    /// Run only these experiments: seq, latency, random, stride, sort, sort-blocks, long-lines,
    /// servers, reserve
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Sort the paper's 56 million lines instead of 14 million, which takes an hour
    #[arg(long)]
    full_sort: bool,
    /// Number of repetitions of every run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    repetitions: u8,
    /// Stop a sort that takes more than this many times as long as native [default: 5; 4 with
    /// --quick; 10 with --full-sort]
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u16).range(2..=1000))]
    patience: Option<u16>,
}

struct Experiment {
    name: &'static str,
    plan: fn(&Params) -> Vec<Run>,
    report: fn(&Params, &Results, &mut Report),
}

impl Named for Experiment {
    fn name(&self) -> &'static str {
        self.name
    }
}

const EXPERIMENTS: [Experiment; 9] = [
    Experiment { name: "seq", plan: seq::plan, report: seq::report },
    Experiment { name: "latency", plan: latency::plan, report: latency::report },
    Experiment { name: "random", plan: random::plan, report: random::report },
    Experiment { name: "stride", plan: stride::plan, report: stride::report },
    Experiment { name: "sort", plan: sort::plan, report: sort::report },
    Experiment { name: "sort-blocks", plan: sort_blocks::plan, report: sort_blocks::report },
    Experiment {
        name: "long-lines",
        plan: sort_blocks::plan_long,
        report: sort_blocks::report_long,
    },
    Experiment { name: "servers", plan: servers::plan, report: servers::report },
    Experiment { name: "reserve", plan: reserve::plan, report: reserve::report },
];

/// Runs the experiments.
pub fn run(args: &FarArgs) -> Result<ExitCode> {
    let chosen = choose(&EXPERIMENTS, &args.only)?;
    args.files.check()?;
    let mut params = Params::new(args.quick, args.full_sort);
    params.repetitions = usize::from(args.repetitions);
    params.patience = args.patience.map_or(params.patience, f64::from);
    super::measured(&args.files, |interrupt| {
        let report = opening("Far memory on this machine", &params);
        measure(&params, &chosen, reserve::report_metadata, report, interrupt)
    })
}

/// A report with nothing in it yet.
fn opening(title: &str, params: &Params) -> Report {
    Report {
        title: title.into(),
        machine: machine::look(),
        made_at: machine::now(),
        preamble: vec![
            "Program, pager, servers and peers run on one machine, in one call, in turns. Figures are medians with the smallest and the largest of the repetitions; ratios are of medians. \
             Memory that the measured programs get was kept backed by the hypervisor until they took it, because the first touch of what is not is up to 30 times as dear."
                .into(),
            params.describe(),
        ],
        ..Report::default()
    }
}

/// Runs everything, and prints the report's sections as they are completed.
fn measure(
    params: &Params,
    chosen: &[&Experiment],
    closing: fn(&Params, &Results, &mut Report),
    mut report: Report,
    interrupt: &Interrupt,
) -> Result<Report, Failed> {
    let mut results = Results::new(peers::obstacle());
    let plans = chosen.iter().flat_map(|experiment| (experiment.plan)(params));
    if let (Some(reason), true) = (&results.no_peers, plans.into_iter().any(|run| run.is_peer())) {
        eprintln!("hiroma: {reason}");
    } else {
        results.no_peers = None;
    }
    let possible = |run: &Run| !run.is_peer() || results.no_peers.is_none();
    let plans: Vec<Vec<Run>> = chosen
        .iter()
        .map(|experiment| (experiment.plan)(params).into_iter().filter(possible).collect())
        .collect();
    let total: f64 = plans.iter().flatten().map(|run| run.seconds_in_all(params)).sum();
    let mut progress = Progress::new(total);
    let mut runner = Runner::new(params, interrupt)?;
    progress.starts("touching memory once");
    runner.warm()?;
    // On a machine much slower than expected, repetitions are omitted, so that the run ends.
    let patience = Duration::from_secs_f64(60.0 + 2.0 * total);
    let start = Instant::now();
    for (experiment, plan) in chosen.iter().zip(&plans) {
        for repetition in 0..params.repetitions {
            if repetition > 0 && start.elapsed() > patience {
                progress.say(&format!(
                    "hiroma: late; {} repetitions of {} have to do",
                    repetition, experiment.name
                ));
                break;
            }
            for run in plan.iter().filter(|run| repetition < run.repetitions(params)) {
                if !results.has_failed(&run.key) {
                    progress.starts(&format!(
                        "{}, {} of {}",
                        run.key,
                        repetition + 1,
                        run.repetitions(params)
                    ));
                    match runner.execute(run, &results) {
                        Err(Failed::Interrupted) => return Err(Failed::Interrupted),
                        outcome => results.add(&run.key, outcome),
                    }
                }
                progress.done(run.seconds);
            }
        }
        tell(&progress, &mut report, |report| (experiment.report)(params, &results, report));
    }
    tell(&progress, &mut report, |report| closing(params, &results, report));
    for (key, failed) in results.surprises() {
        progress.say(&format!("hiroma: {key}: {failed}"));
        report.preamble.push(format!("{key} failed: {failed}"));
    }
    report.preamble.extend(results.no_peers.clone());
    report.preamble.extend(runner.descriptions());
    Ok(report)
}

/// Adds sections to the report and prints them.
fn tell(progress: &Progress, report: &mut Report, add: impl FnOnce(&mut Report)) {
    let before = report.sections.len();
    add(report);
    for section in &report.sections[before..] {
        progress.print(&format!("\n{}", section.to_text()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn unknown_experiment_is_refused_with_known_ones() {
        assert_eq!(choose(&EXPERIMENTS, &["seq".into(), "sort".into()]).unwrap().len(), 2);
        assert_eq!(choose(&EXPERIMENTS, &[]).unwrap().len(), EXPERIMENTS.len());
        assert!(
            choose(&EXPERIMENTS, &["sorts".into()])
                .err()
                .unwrap()
                .to_string()
                .contains("sort-blocks")
        );
    }

    #[test]
    fn keys_are_unique_and_limits_refer_backwards() {
        for quick in [false, true] {
            let params = Params::new(quick, false);
            let mut keys = BTreeSet::new();
            for run in EXPERIMENTS.iter().flat_map(|experiment| (experiment.plan)(&params)) {
                for needed in run.needs() {
                    assert!(keys.contains(needed), "{} needs {needed}", run.key);
                }
                assert!(keys.insert(run.key.clone()), "{} twice", run.key);
            }
        }
    }

    #[test]
    fn total_time_is_within_the_documented_bound() {
        for (quick, minutes) in [(false, 17.0), (true, 4.0)] {
            let params = Params::new(quick, false);
            let seconds: f64 = EXPERIMENTS
                .iter()
                .flat_map(|experiment| (experiment.plan)(&params))
                .map(|run| run.seconds_in_all(&params))
                .sum();
            let total = seconds / 60.0;
            assert!(total < minutes, "quick: {quick}: {total:.1} minutes");
        }
    }

    #[test]
    fn empty_report_gives_a_reason_for_every_goal() {
        let params = Params::new(true, false);
        let mut report = Report::default();
        for experiment in &EXPERIMENTS {
            (experiment.report)(&params, &Results::default(), &mut report);
        }
        assert!(report.measures.iter().any(|measure| measure.must.is_some()));
        for measure in report.measures.iter().filter(|measure| measure.must.is_some()) {
            assert!(
                measure.value.is_none() && measure.met.is_none() && !measure.note.is_empty(),
                "{measure:?}"
            );
        }
        assert!(!report.to_html().contains("NaN"));
    }
}
