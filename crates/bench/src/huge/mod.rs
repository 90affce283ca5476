//! `hiroma bench huge`: the experiments of the paper on huge pages.

mod accuracy;
mod collapse;
mod interval;
pub mod load;
mod memcached;
mod micro;
mod slowdown;
mod thp;
mod timeline;
mod tracker;

use std::process::ExitCode;

use anyhow::Result;
use hiroma_command::files::Files;
use hiroma_command::machine;
use hiroma_command::refuse;
use hiroma_memload::ballast::Ballast;
use hiroma_report::{Better, Measure, Report};
use hiroma_units::{Bytes, EXTENT};

use super::progress::Progress;
use super::{Named, choose};

/// Run the experiments of the paper on huge pages guided by the application on this machine.
///
/// Measures the cost and accuracy of a tracker, its cost for the program, and the gain of huge
/// pages where the program is hot, compared with no huge pages and with transparent huge pages
/// everywhere. The exact tracker requires root. Takes about 35 minutes, 27 of them for memcached,
/// and 6 GiB of memory or more, up to half of the available memory; with --quick a fraction of
/// that. Settings of transparent huge pages are changed meanwhile and restored, also after Ctrl-C.
/// A failure is reported in its row, the rest is measured anyway, and the exit code is 1.
#[derive(clap::Args)]
pub struct HugeArgs {
    #[command(flatten)]
    files: Files,
    /// Use smaller sizes and fewer repetitions
    #[arg(long)]
    quick: bool,
    /// Process sizes for the cost of a round [default: 1G and its doubles, up to half of the
    /// available memory]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    sizes: Vec<Bytes>,
    /// Run only these experiments: tracker, accuracy, slowdown, collapse, micro, memcached
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
}

/// Sizes of the experiments.
#[derive(Clone, Debug)]
pub struct Params {
    /// Memory of the observed process, unless the experiment varies it.
    pub bytes: usize,
    /// Number of repetitions; for comparisons, of pairs.
    pub repetitions: usize,
    /// Process sizes for the cost by size.
    pub sizes: Vec<usize>,
    pub quick: bool,
}

const GIB: usize = 1 << 30;

impl Params {
    /// `available_bytes` is the machine's available memory.
    fn new(quick: bool, available_bytes: u64) -> Params {
        match quick {
            true => Params { bytes: GIB / 4, repetitions: 3, sizes: vec![GIB / 8, GIB / 4], quick },
            false => {
                let sizes = [1, 2, 4, 8, 16, 32, 64].map(|gib| gib * GIB);
                // If memory is short, others move its pages and clear its accessed bits, too.
                let roomy = |size: &usize| fits(*size, available_bytes / 2);
                Params {
                    bytes: GIB,
                    repetitions: 9,
                    sizes: sizes.into_iter().filter(roomy).collect(),
                    quick,
                }
            }
        }
    }
}

/// Whether there is room for a process of this size, with its page tables, the load's order of
/// pages, and a reserve.
fn fits(size: usize, available_bytes: u64) -> bool {
    (size as u64 / 8 * 9).saturating_add(GIB as u64) <= available_bytes
}

struct Experiment {
    name: &'static str,
    /// Estimated duration in seconds.
    seconds: f64,
    run: fn(&Params, &Ballast, &Progress, &mut Report) -> Result<()>,
}

impl Named for Experiment {
    fn name(&self) -> &'static str {
        self.name
    }
}

const EXPERIMENTS: [Experiment; 6] = [
    Experiment { name: "tracker", seconds: 90.0, run: tracker::run },
    Experiment { name: "accuracy", seconds: 35.0, run: accuracy::run },
    Experiment { name: "slowdown", seconds: 40.0, run: slowdown::run },
    Experiment { name: "collapse", seconds: 45.0, run: collapse::run },
    Experiment { name: "micro", seconds: 140.0, run: micro::run },
    Experiment { name: "memcached", seconds: 1600.0, run: memcached::run },
];

/// Runs the experiments.
pub fn run(args: &HugeArgs) -> Result<ExitCode> {
    let chosen = choose(&EXPERIMENTS, &args.only)?;
    args.files.check()?;
    let mut params = Params::new(args.quick, hiroma_sys::host::memory::available()?.0);
    if !args.sizes.is_empty() {
        params.sizes = whole_ranges(&args.sizes)?;
        let available = hiroma_sys::host::memory::available()?.0;
        if let Some(size) = params.sizes.iter().find(|size| !fits(**size, available)) {
            let size = Bytes(*size as u64);
            let available = Bytes(available);
            return Err(refuse(format!(
                "--sizes {size}: it does not fit: {available} are available, and its page tables need some too"
            )));
        }
    }
    let mut report = Report {
        title: "Huge pages on this machine".into(),
        machine: machine::look(),
        made_at: machine::now(),
        preamble: vec![format!(
            "Processes of {} in turns, in one call; medians with the smallest and the largest. Memory was kept backed by the hypervisor until it was taken.",
            Bytes(params.bytes as u64)
        )],
        ..Report::default()
    };
    let share = if params.quick { 0.2 } else { 1.0 };
    let mut progress =
        Progress::new(chosen.iter().map(|experiment| share * experiment.seconds).sum());
    progress.starts("touching memory once");
    // Room for the arms of the microbenchmark; larger processes back their memory themselves before
    // they are measured.
    let ballast = Ballast::new(Bytes(5 * params.bytes as u64 + (1 << 30)))?;
    let failed = run_all(&chosen, &params, &ballast, &mut progress, &mut report);
    if params.quick {
        super::forget_goals(&mut report, "quick: smaller than what the goal is for");
    }
    super::deliver(report, &args.files)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs all experiments. A failure is reported in a separate row and does not affect the others.
/// Returns whether any failed.
fn run_all(
    chosen: &[&Experiment],
    params: &Params,
    ballast: &Ballast,
    progress: &mut Progress,
    report: &mut Report,
) -> bool {
    let share = if params.quick { 0.2 } else { 1.0 };
    let mut any_failed = false;
    for experiment in chosen {
        progress.begins(share * experiment.seconds);
        progress.starts(experiment.name);
        let before = report.sections.len();
        let done = (experiment.run)(params, ballast, progress, report);
        for section in &report.sections[before..] {
            progress.print(&format!("\n{}", section.to_text()));
        }
        if let Err(error) = done {
            any_failed = true;
            let why = format!("{error:#}");
            progress.say(&format!("{} failed: {why}", experiment.name));
            let row = Measure::new(
                format!("{}_failed", experiment.name),
                format!("{}: failed: {why}", experiment.name),
                "",
                Better::Lower,
            );
            report.measures.push(row.note(why));
        }
        progress.done(share * experiment.seconds);
    }
    any_failed
}

/// The given sizes in bytes, if processes can have them.
fn whole_ranges(sizes: &[Bytes]) -> Result<Vec<usize>> {
    let least = EXTENT as u64;
    for size in sizes {
        if size.0 < least || size.0 % least != 0 {
            return Err(refuse(format!(
                "--sizes {size}: a process has whole ranges of 2MiB, at least one"
            )));
        }
    }
    Ok(sizes.iter().map(|size| size.0 as usize).collect())
}

#[cfg(test)]
mod tests {
    use hiroma_report::Section;

    use super::*;

    #[test]
    fn failed_experiment_is_reported_and_others_keep_figures() {
        let measures = |name, run| Experiment { name, seconds: 1.0, run };
        let good = |name| {
            measures(name, |_, _, _, report| {
                report.measures.push(Measure::new("good", "Something", "ms", Better::Lower));
                Ok(())
            })
        };
        let half = measures("half", |_, _, _, report| {
            report.measures.push(Measure::new("before", "Something", "ms", Better::Lower));
            anyhow::bail!("the process ended")
        });
        let experiments = [good("first"), half, good("last")];
        let (mut report, mut progress) = (Report::default(), Progress::new(1.0));
        let (params, ballast) = (Params::new(true, 0), Ballast::new(Bytes(0)).unwrap());
        let chosen: Vec<&Experiment> = experiments.iter().collect();
        assert!(run_all(&chosen, &params, &ballast, &mut progress, &mut report));
        let names: Vec<&str> =
            report.measures.iter().map(|measure| measure.name.as_str()).collect();
        assert_eq!(names, ["good", "before", "half_failed", "good"]);
        assert!(report.summary().to_text().contains("half: failed: the process ended"));
        assert!(!run_all(&chosen[..1], &params, &ballast, &mut progress, &mut report));
    }

    #[test]
    fn default_sizes_leave_half_of_memory_free() {
        let gib = |sizes: &[usize]| sizes.iter().map(|size| size / GIB).collect::<Vec<_>>();
        let sizes = |available_gib: u64| gib(&Params::new(false, available_gib << 30).sizes);
        assert_eq!(
            (sizes(4), sizes(23), sizes(48)),
            (vec![], vec![1, 2, 4, 8], vec![1, 2, 4, 8, 16])
        );
    }

    #[test]
    fn every_paper_figure_is_drawn() {
        let mut plots = micro::tests::plots();
        plots.push(tracker::tests::plot());
        plots.extend(memcached::tests::section().plots);
        let drawn: Vec<String> = plots
            .into_iter()
            .map(|plot| {
                let section = Section {
                    title: "A section".into(),
                    text: vec![],
                    tables: vec![],
                    plots: vec![plot],
                };
                Report { title: "A page".into(), sections: vec![section], ..Report::default() }
                    .to_html()
            })
            .collect();
        for figure in 10..=20 {
            let named = |html: &&String| {
                [
                    format!("figure {figure})"),
                    format!("and {figure})"),
                    format!("figures {figure} "),
                ]
                .iter()
                .any(|name| html.contains(name))
            };
            let html =
                drawn.iter().find(named).unwrap_or_else(|| panic!("figure {figure} is nowhere"));
            // Each measured point has a title; the page has one too.
            let points = html.matches("<title>").count() - 1;
            assert!(html.contains("<svg") && points >= 2, "figure {figure}: {points} points");
        }
    }
}
