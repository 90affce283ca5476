//! Results as figures, tables and plots.

use std::path::Path;

use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table, figures,
};
use hiroma_units::Bytes;

use super::Params;
use super::arm::{Arm, Group, Remedy};
use super::extra::{Keeper, Kept, STREAMS};
use super::ground::Ground;
use super::run::Run;

/// Number of points of a plot: of the steps on one point, the longest is shown.
const POINTS: usize = 400;
/// Number of nodes in the paper's larger experiment.
const NODES: usize = 4;

/// All measurements.
#[derive(Default)]
pub struct Results {
    /// The arms, and their runs by round; none where the arm failed.
    pub arms: Vec<(Arm, Vec<Option<Run>>)>,
    pub failures: Vec<String>,
    pub streams: Vec<(Remedy, f64)>,
    pub hot: Vec<(Keeper, Kept)>,
    pub idle: Option<Spread>,
    pub nfs: Option<String>,
}

/// Remarks that a reader of the figures needs.
pub fn preamble(file: Option<&Path>, ground: &Ground, params: &Params) -> Vec<String> {
    let what = match file {
        Some(file) => format!("{}: a real disk takes part", file.display()),
        None => {
            "a sparse file: its reads fill the page cache as any others do, and no disk takes part"
                .to_owned()
        }
    };
    vec![
        format!(
            "Application: steps of {} us on processors {:?}. Reader and daemon: processor {}. {} of memory are left for the page cache; the bench holds \
             the rest, as an application's own memory would. The reader reads {what}, at {} a second: fixed beforehand, and a run counts only if it \
             was kept.",
            params.step_us,
            ground.app_cpus,
            ground.spare,
            Bytes(ground.cache_bytes),
            Bytes(params.rate_bytes_s),
        ),
        format!(
            "{} rounds, {} s a turn; in a round every arm has its turn, next to the quiet turn that it is compared with. Medians of the rounds, with \
             the smallest and the largest.",
            params.rounds,
            params.duration.as_secs_f64()
        ),
    ]
}

impl Results {
    /// Empty results for these arms.
    pub fn new(arms: Vec<Arm>) -> Results {
        Results {
            arms: arms.into_iter().map(|arm| (arm, Vec::new())).collect(),
            ..Results::default()
        }
    }

    pub fn add(&mut self, at: usize, run: Run) {
        self.arms[at].1.push(Some(run));
    }

    /// Records that the arm could not run.
    pub fn failed(&mut self, at: usize, why: String) {
        let line = format!("{}: {why}", self.arms[at].0.name);
        if !self.failures.contains(&line) {
            self.failures.push(line);
        }
        self.arms[at].1.push(None);
    }

    fn runs(&self, key: &str) -> &[Option<Run>] {
        self.arms.iter().find(|(arm, _)| arm.key == key).map_or(&[], |(_, runs)| runs)
    }

    /// The valid runs of an arm, each with the quiet run of its round.
    fn pairs(&self, key: &str) -> Vec<(&Run, &Run)> {
        let Some((arm, runs)) = self.arms.iter().find(|(arm, _)| arm.key == key) else {
            return Vec::new();
        };
        let pairs = runs.iter().zip(self.runs(arm.baseline()));
        pairs
            .filter_map(|(run, quiet)| Some((run.as_ref()?, quiet.as_ref()?)))
            .filter(|(run, _)| run.valid)
            .collect()
    }

    fn ratio(&self, key: &str, value: fn(&Run) -> f64) -> Option<Spread> {
        Spread::of(
            &self
                .pairs(key)
                .iter()
                .map(|(run, quiet)| value(run) / value(quiet))
                .collect::<Vec<_>>(),
        )
    }

    fn slowdown(&self, key: &str) -> Option<Spread> {
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        let spread = self.ratio(key, Run::mean_ms)?;
        Some(Spread {
            median: percent(spread.median),
            min: percent(spread.min),
            max: percent(spread.max),
            n: spread.n,
        })
    }

    /// Compares with reading past the cache at the same rate: this is the cost of the cache and its
    /// reclaim without the cost of reading. In percent more, or as a ratio.
    fn against_direct(&self, key: &str, value: fn(&Run) -> f64, percent: bool) -> Option<Spread> {
        let pairs = self.runs(key).iter().zip(self.runs("direct"));
        let pairs = pairs
            .filter_map(|(run, direct)| Some((run.as_ref()?, direct.as_ref()?)))
            .filter(|(run, direct)| run.valid && direct.valid);
        let ratios = pairs.map(|(run, direct)| value(run) / value(direct));
        Spread::of(
            &ratios
                .map(|ratio| if percent { 100.0 * (ratio - 1.0) } else { ratio })
                .collect::<Vec<_>>(),
        )
    }

    fn of_runs(&self, key: &str, value: impl Fn(&Run) -> f64) -> Option<Spread> {
        let runs = self.runs(key).iter().flatten().filter(|run| run.valid);
        Spread::of(&runs.map(value).collect::<Vec<_>>())
    }

    /// Adds figures, tables and plots to the report.
    pub fn report(&self, params: &Params, report: &mut Report) {
        report.measures = self.measures(params);
        report.sections = self.sections();
    }

    fn measures(&self, params: &Params) -> Vec<Measure> {
        let p99 = |run: &Run| run.step_ms(990);
        let percent = |name: &str, title: &str| Measure::new(name, title, "%", Better::Lower);
        let paper = "9-14 % to about 0";
        let mut all = vec![
            percent(
                "worst_percent",
                "slowdown, order 0, kswapd on the application's core, nothing done",
            )
            .paper("9-14 %")
            .spread(self.slowdown("small_app")),
            percent("worst_daemon_percent", "the same with the daemon")
                .paper(paper)
                .must(1.0)
                .aim(0.3)
                .spread(self.slowdown("small_app_daemon")),
            Measure::new(
                "worst_p99",
                "p99 step against quiet, same case, nothing done",
                "",
                Better::Lower,
            )
            .paper("up to 2x")
            .spread(self.ratio("small_app", p99)),
            Measure::new("worst_daemon_p99", "the same with the daemon", "", Better::Lower)
                .paper("1x")
                .must(1.1)
                .aim(1.03)
                .spread(self.ratio("small_app_daemon", p99)),
            percent(
                "large_percent",
                "slowdown, large folios, kswapd on the application's core, nothing done",
            )
            .spread(self.slowdown("large_app")),
            percent("large_daemon_percent", "the same with the daemon")
                .must(2.0)
                .aim(0.5)
                .spread(self.slowdown("large_app_daemon")),
            self.direct_reclaims(),
        ];
        all.extend(self.other_measures());
        // Experiments that were not selected are not reported as missing.
        all.retain(|measure| measure.value.is_some());
        if params.quick {
            for measure in &mut all {
                (measure.met, measure.aim_met) = (None, None);
                measure.note = "quick: one short round proves nothing".to_owned();
            }
        }
        all
    }

    fn other_measures(&self) -> Vec<Measure> {
        let kept = |keeper: Keeper| {
            self.hot
                .iter()
                .find(|(of, _)| *of == keeper)
                .and_then(|(_, kept)| Spread::of(&[kept.percent]))
        };
        let streams = |remedy: Remedy| {
            let ratio =
                Spread::of_ratio(&self.stream_rates(remedy), &self.stream_rates(Remedy::None))?;
            Some(Spread {
                median: 100.0 * ratio.median,
                min: 100.0 * ratio.min,
                max: 100.0 * ratio.max,
                n: ratio.n,
            })
        };
        let higher = |name: &str, title: &str| Measure::new(name, title, "%", Better::Higher);
        let percent = |name: &str, title: &str| Measure::new(name, title, "%", Better::Lower);
        let reclaim = |run: &Run| {
            100.0 * run.went.reclaim_ns as f64 / run.went.steps_ns.iter().sum::<u64>().max(1) as f64
        };
        let seen = |name: &str, title: &str, key: &str| {
            let measure =
                Measure::new(name, title, "%", Better::Lower).spread(self.of_runs(key, reclaim));
            measure.note("of the steps' time; the rest of a slowdown is the reader's use of memory and of the other hardware thread")
        };
        vec![
            Measure::new(
                "worst_daemon_over_direct_percent",
                "slowdown with the daemon, against a reader with direct I/O",
                "%",
                Better::Lower,
            )
            .spread(self.against_direct("small_app_daemon", Run::mean_ms, true))
            .note("what is left when the reader's own use of memory and of the other hardware thread is taken out"),
            Measure::new("worst_daemon_p99_over_direct", "p99 step with the daemon, against a reader with direct I/O", "", Better::Lower)
                .spread(self.against_direct("small_app_daemon", |run| run.step_ms(990), false)),
            percent("large_daemon_over_direct_percent", "large folios: slowdown with the daemon, against a reader with direct I/O")
                .spread(self.against_direct("large_app_daemon", Run::mean_ms, true)),
            percent("worst_full_percent", "order 0: slowdown with the daemon as it is meant to be used: it moves kswapd, too (--app-cpus)")
                .paper("9-14 % to about 0")
                .spread(self.slowdown("small_app_full")),
            Measure::new("worst_full_p99", "p99 step against quiet, the same", "", Better::Lower)
                .paper("1x")
                .spread(self.ratio("small_app_full", |run| run.step_ms(990))),
            Measure::new("worst_full_p99_over_direct", "p99 step, the same, against a reader with direct I/O", "", Better::Lower)
                .spread(self.against_direct("small_app_full", |run| run.step_ms(990), false)),
            percent("large_full_percent", "large folios: slowdown with the daemon that moves kswapd, too")
                .spread(self.slowdown("large_app_full")),
            percent("alloc_percent", "slowdown, allocating application, nothing done").spread(self.slowdown("alloc_app")),
            percent("alloc_daemon_percent", "the same with the daemon").spread(self.slowdown("alloc_app_daemon")),
            seen("alloc_daemon_reclaim_percent", "time that reclaim took from it, with the daemon", "alloc_app_daemon"),
            seen("large_full_reclaim_percent", "time that reclaim took, large folios, daemon that moves kswapd, too", "large_app_full"),
            seen("worst_reclaim_percent", "time that reclaim took from the application, worst case, nothing done", "small_app"),
            seen("worst_daemon_reclaim_percent", "the same with the daemon", "small_app_daemon"),
            seen("large_reclaim_percent", "the same, large folios, nothing done", "large_app"),
            seen("large_daemon_reclaim_percent", "the same with the daemon", "large_app_daemon"),
            higher("hot_kept_percent", "hot files kept while ten times the cache is streamed, with the daemon")
                .must(90.0)
                .aim(99.0)
                .spread(kept(Keeper::Daemon))
                .note("the cache is what is left of memory"),
            higher("hot_kept_quiet_run_percent", "the same, reader under quiet run").must(90.0).aim(99.0).spread(kept(Keeper::QuietRun)),
            higher("hot_kept_alone_percent", "the same without anything").spread(kept(Keeper::None)),
            higher("stream_daemon_percent", "streaming throughput with the daemon").must(95.0).aim(100.0).spread(streams(Remedy::Daemon)),
            higher("stream_quiet_run_percent", "streaming throughput under quiet run")
                .must(98.0)
                .aim(100.0)
                .spread(streams(Remedy::QuietRun)),
            percent("nfs_percent", "slowdown, file over NFS, kswapd on the application's core, nothing done")
                .spread(self.slowdown("nfs_app")),
            percent("nfs_daemon_percent", "the same with the daemon").spread(self.slowdown("nfs_app_daemon")),
            seen("nfs_reclaim_percent", "time that reclaim took, file over NFS, nothing done", "nfs_app"),
            seen("nfs_daemon_reclaim_percent", "the same with the daemon", "nfs_app_daemon"),
            percent("quiet_run_percent", "slowdown, kswapd on the application's core, reader under quiet run")
                .spread(self.slowdown("quiet_run")),
            Measure::new("daemon_idle_percent", "the daemon's share of a processor when idle", "%", Better::Lower)
                .must(0.1)
                .aim(0.02)
                .spread(self.idle),
            self.reclaim_cost(),
            self.explained(),
        ]
    }

    /// Bytes per second of the readers without a rate limit.
    fn stream_rates(&self, remedy: Remedy) -> Vec<f64> {
        self.streams.iter().filter(|(of, _)| *of == remedy).map(|(_, rate)| *rate).collect()
    }

    /// The runs with the daemon, of all arms.
    fn daemon_runs(&self) -> impl Iterator<Item = &Run> {
        self.arms
            .iter()
            .filter(|(arm, _)| arm.has_daemon())
            .flat_map(|(_, runs)| runs.iter().flatten())
    }

    fn direct_reclaims(&self) -> Measure {
        let counts: Vec<f64> =
            self.daemon_runs().map(|run| run.books.direct_reclaims as f64).collect();
        let most = counts.iter().copied().fold(0.0, f64::max);
        let measure = Measure::new(
            "direct_reclaims",
            "direct reclaims of all programs in a run with the daemon, at most",
            "",
            Better::Lower,
        );
        let measure = measure.must(0.0).note(format!(
            "{} of {} runs had none",
            counts.iter().filter(|&&count| count == 0.0).count(),
            counts.len()
        ));
        measure.spread(Spread::of(if counts.is_empty() {
            &[]
        } else {
            std::slice::from_ref(&most)
        }))
    }

    /// Processor time for each GiB that the load brings into the full cache and that has to be
    /// reclaimed: the daemon's, for reclaiming or dropping, relative to kswapd's with the same
    /// noise.
    fn reclaim_cost(&self) -> Measure {
        let of = |keys: [&str; 2], cpu_ns: fn(&Run) -> u64| {
            let runs = keys
                .iter()
                .flat_map(|key| self.runs(key).iter().flatten())
                .filter(|run| run.books.load_bytes > 1 << 30);
            runs.map(|run| {
                cpu_ns(run) as f64 / 1e6 / (run.books.load_bytes as f64 / f64::from(1 << 30))
            })
            .collect::<Vec<f64>>()
        };
        let kswapd = of(["small_app", "small_spare"], |run| run.books.kswapd_cpu_ns);
        let daemon = of(["small_app_daemon", "small_spare_daemon"], |run| {
            run.books.daemon_cpu_ns + run.books.kswapd_cpu_ns
        });
        let measure = Measure::new(
            "reclaim_cpu_ratio",
            "processor time of reclaim per GiB, daemon over kswapd (order 0)",
            "",
            Better::Lower,
        );
        let text = |values: &[f64]| Spread::of(values).map_or("–".to_owned(), Spread::to_text);
        let note = format!("daemon {} ms/GiB, kswapd {} ms/GiB", text(&daemon), text(&kswapd));
        measure.must(1.1).aim(0.8).spread(Spread::of_ratio(&daemon, &kswapd)).note(note)
    }

    /// Share of the time stolen from the application in the worst case that can be attributed to a
    /// cause.
    fn explained(&self) -> Measure {
        let share = |run: &Run| {
            let steal =
                run.books.steal_ns.min(run.went.stolen_ns.saturating_sub(run.went.explained_ns));
            100.0 * (run.went.explained_ns + steal) as f64 / run.went.stolen_ns.max(1) as f64
        };
        let measure = Measure::new(
            "explained_percent",
            "stolen time that is explained, in the worst case with nothing done",
            "%",
            Better::Higher,
        );
        let no_bpf = self
            .arms
            .iter()
            .flat_map(|(_, runs)| runs.iter().flatten())
            .find_map(|run| run.went.no_bpf.clone());
        let note = no_bpf.map_or(String::new(), |why| format!("there is no BPF: {why}"));
        measure.must(90.0).aim(98.0).spread(self.of_runs("small_app", share)).note(note)
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        let title = |group: Group| match group {
            Group::Small => "Small pages (order 0)",
            Group::Large => "Large folios",
            Group::Alloc => "An application that takes and gives back memory",
            Group::Write => "A writer",
            Group::Nfs => "A file over NFS",
            _ => "What is used otherwise",
        };
        for group in
            [Group::Small, Group::Large, Group::Alloc, Group::Write, Group::Nfs, Group::Peers]
        {
            let arms: Vec<&(Arm, Vec<Option<Run>>)> =
                self.arms.iter().filter(|(arm, _)| arm.group == group).collect();
            if arms.is_empty() {
                continue;
            }
            let plots = if group == Group::Small { self.plots() } else { Vec::new() };
            let tables = vec![self.table(title(group), &arms), self.orders(&arms)];
            let tables = tables.into_iter().filter(|table| !table.is_empty()).collect();
            sections.push(Section {
                title: title(group).to_owned(),
                text: Vec::new(),
                tables,
                plots,
            });
        }
        sections.extend(self.extra_section());
        sections
    }

    fn table(&self, title: &str, arms: &[&(Arm, Vec<Option<Run>>)]) -> Table {
        let mut table = Table::new(title)
            .text("arm")
            .text("runs")
            .number("slowdown", "%")
            .number("p99", "x quiet")
            .number("longest", "ms");
        table = table
            .number("stolen by reclaim", "%")
            .number("kswapd", "runs")
            .number("kswapd", "% of a core")
            .number("direct", "reclaims");
        table = table
            .number("early", "MiB/s")
            .number("daemon", "% of a core")
            .number("steal", "%")
            .number("load", "MB/s");
        for (arm, runs) in arms {
            let text = |spread: Option<Spread>| spread.map_or("–".to_owned(), Spread::to_text);
            let short = |value: fn(&Run) -> f64| {
                self.of_runs(arm.key, value)
                    .map_or("–".to_owned(), |spread| figures(spread.median))
            };
            let valid = runs.iter().flatten().filter(|run| run.valid).count();
            // Of all runs: the rate of an invalid run shows why it is invalid.
            let rate =
                |run: &Run| run.books.load_bytes as f64 / 1e6 / (run.books.at_ns as f64 / 1e9);
            let rates = Spread::of(&runs.iter().flatten().map(rate).collect::<Vec<_>>());
            table.row([
                arm.name.to_owned(),
                format!("{valid} of {}", runs.len()),
                text(self.slowdown(arm.key)),
                text(self.ratio(arm.key, |run| run.step_ms(990))),
                short(|run| run.step_ms(1000)),
                short(|run| {
                    100.0 * run.went.reclaim_ns as f64
                        / run.went.steps_ns.iter().sum::<u64>().max(1) as f64
                }),
                short(|run| run.books.kswapd_runs as f64),
                short(|run| 100.0 * run.books.kswapd_cpu_ns as f64 / run.books.at_ns as f64),
                short(|run| run.books.direct_reclaims as f64),
                short(|run| run.books.early_pages as f64 / 256.0 / (run.books.at_ns as f64 / 1e9)),
                short(|run| 100.0 * run.books.daemon_cpu_ns as f64 / run.books.at_ns as f64),
                short(|run| 100.0 * run.books.steal_ns as f64 / run.books.at_ns as f64),
                text(rates),
            ]);
        }
        for line in self
            .failures
            .iter()
            .filter(|line| arms.iter().any(|(arm, _)| line.starts_with(arm.name)))
        {
            table.note(line.clone());
        }
        table
    }

    /// The orders for which kswapd was woken and direct reclaim began, over all runs of an arm.
    fn orders(&self, arms: &[&(Arm, Vec<Option<Run>>)]) -> Table {
        let mut table =
            Table::new("Blocks that were wanted when kswapd was woken, and in direct reclaim")
                .text("arm")
                .text("kswapd woken for orders");
        table = table.text("direct reclaims for orders");
        let sums = |runs: &[Option<Run>], value: fn(&Run) -> &[u64]| {
            let mut sums = [0u64; 16];
            runs.iter().flatten().for_each(|run| {
                sums.iter_mut().zip(value(run)).for_each(|(sum, count)| *sum += count)
            });
            let shown = sums
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .map(|(order, count)| format!("{order}: {count}"));
            shown.collect::<Vec<_>>().join(", ")
        };
        for (arm, runs) in arms {
            let (woken, direct) =
                (sums(runs, |run| &run.went.woken), sums(runs, |run| &run.went.direct));
            if !woken.is_empty() || !direct.is_empty() {
                table.row([arm.name.to_owned(), woken, direct]);
            }
        }
        table
    }

    fn extra_section(&self) -> Option<Section> {
        let mut hot = Table::new("Hot files, after a stream")
            .text("against it")
            .number("still cached", "%")
            .number("time to read them again", "x before");
        self.hot.iter().for_each(|(keeper, kept)| {
            hot.row([keeper.name().to_owned(), figures(kept.percent), figures(kept.again)])
        });
        let mut streams = Table::new("A reader that takes what it gets, kswapd free")
            .text("with")
            .number("throughput", "GB/s");
        for (remedy, name) in STREAMS {
            let rates: Vec<f64> = self.stream_rates(remedy).iter().map(|rate| rate / 1e9).collect();
            if let Some(spread) = Spread::of(&rates) {
                streams.row([name.to_owned(), spread.to_text()]);
            }
        }
        let tables: Vec<Table> =
            [hot, streams].into_iter().filter(|table| !table.is_empty()).collect();
        let text: Vec<String> = self.nfs.iter().cloned().collect();
        (!tables.is_empty() || !text.is_empty()).then(|| Section {
            title: "Files and throughput".to_owned(),
            text,
            tables,
            plots: Vec::new(),
        })
    }

    /// The paper's figures 4 to 7: durations of steps and their sums, on one node and on four.
    fn plots(&self) -> Vec<Plot> {
        let first = |key: &str| {
            self.runs(key)
                .iter()
                .flatten()
                .find(|run| run.valid)
                .map(|run| run.went.steps_ns.clone())
        };
        let (Some(quiet), Some(noise), Some(daemon)) =
            (first("quiet"), first("small_app"), first("small_app_daemon"))
        else {
            return Vec::new();
        };
        let names = ["quiet (Original)", "noise (Noise)", "noise and daemon (Noise+Proposed)"];
        let one = [quiet.clone(), noise.clone(), daemon.clone()];
        let four = [&quiet, &noise, &daemon].map(|noisy| composed(noisy, &quiet));
        let mut plots = Vec::new();
        for (steps, place) in [
            (&one, "one node (paper: figures 4 and 5)"),
            (&four, "four nodes, composed (paper: figures 6 and 7)"),
        ] {
            let times = names
                .iter()
                .zip(steps)
                .map(|(name, steps)| Series::new(*name, times_of(steps)))
                .collect();
            let sums = names
                .iter()
                .zip(steps)
                .map(|(name, steps)| Series::new(*name, sums_of(steps)))
                .collect();
            let plot = |title: String, y: Axis, series: Vec<Series>| Plot {
                title,
                kind: Kind::Lines,
                x: Axis::linear("step", ""),
                y,
                series,
            };
            plots.push(plot(format!("Time of a step, {place}"), Axis::linear("time", "ms"), times));
            plots.push(plot(
                format!("Time of all steps, {place}"),
                Axis::linear("time", "s"),
                sums,
            ));
        }
        plots.push(slowdowns(&one, &four));
        plots
    }
}

/// A step over several nodes, of which one is noisy: the maximum of its step and of steps of quiet
/// nodes. Composed from measurements on this machine, not measured on several.
fn composed(noisy: &[u64], quiet: &[u64]) -> Vec<u64> {
    let others = |at: usize| {
        (1..NODES).map(move |node| quiet[(at + node * quiet.len() / NODES) % quiet.len()])
    };
    noisy
        .iter()
        .enumerate()
        .map(|(at, &step)| others(at).chain([step]).max().unwrap_or(step))
        .collect()
}

fn mean(steps: &[u64]) -> f64 {
    steps.iter().sum::<u64>() as f64 / steps.len().max(1) as f64
}

/// Slowdown relative to quiet, beside the paper's.
fn slowdowns(one: &[Vec<u64>; 3], four: &[Vec<u64>; 3]) -> Plot {
    let percent =
        |steps: &[Vec<u64>; 3], at: usize| 100.0 * (mean(&steps[at]) / mean(&steps[0]) - 1.0);
    let series = |name: &str, values: [f64; 4]| {
        Series::new(
            name,
            values.iter().enumerate().map(|(at, &y)| Point::at(at as f64, y)).collect(),
        )
    };
    Plot {
        title: "Slowdown against quiet, and the paper's".to_owned(),
        kind: Kind::Bars,
        x: Axis::names(
            "experiment",
            ["one node, noise", "one node, proposed", "four nodes, noise", "four nodes, proposed"],
        ),
        y: Axis::linear("slowdown", "%"),
        series: vec![
            series(
                "here (four nodes: composed)",
                [percent(one, 1), percent(one, 2), percent(four, 1), percent(four, 2)],
            ),
            series("paper", [9.0, 0.0, 14.0, 0.0]),
        ],
    }
}

fn times_of(steps: &[u64]) -> Vec<Point> {
    let width = steps.len().div_ceil(POINTS).max(1);
    let longest = steps.chunks(width).map(|steps| steps.iter().max().copied().unwrap_or(0));
    longest.enumerate().map(|(at, ns)| Point::at((at * width) as f64, ns as f64 / 1e6)).collect()
}

fn sums_of(steps: &[u64]) -> Vec<Point> {
    let mut sum = 0;
    let all = steps.iter().enumerate().map(|(at, ns)| {
        sum += ns;
        Point::at(at as f64, sum as f64 / 1e9)
    });
    let all: Vec<Point> = all.collect();
    all.iter().step_by(steps.len().div_ceil(POINTS).max(1)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::app::Went;
    use crate::noise::arm;
    use crate::noise::ground::Books;
    use std::time::Duration;

    fn run(step_ns: u64, books: Books, valid: bool) -> Run {
        let went = Went {
            steps_ns: vec![step_ns; 100],
            stolen_ns: 1000,
            explained_ns: 900,
            ..Went::default()
        };
        Run { went, books, valid, journal: Vec::new() }
    }

    fn params(quick: bool) -> Params {
        let duration = Duration::from_secs(1);
        Params {
            quick,
            rounds: 2,
            duration,
            step_us: 5000,
            rate_bytes_s: 1,
            write_bytes_s: 1,
            nfs_bytes_s: 1,
            hot_times: 1,
            chunk_turns: None,
        }
    }

    fn results() -> Results {
        let mut results = Results::new(arm::with_baselines(|arm| arm.group == Group::Small));
        let noisy = Books { kswapd_cpu_ns: 200_000_000, load_bytes: 2 << 30, ..Books::default() };
        let early = Books {
            daemon_cpu_ns: 180_000_000,
            load_bytes: 2 << 30,
            steal_ns: 50,
            direct_reclaims: 3,
            ..Books::default()
        };
        for at in 0..results.arms.len() {
            for round in 0..2u64 {
                let (step, books, valid) = match results.arms[at].0.key {
                    "small_app" => (5_500_000 + round * 100_000, noisy.clone(), true),
                    "small_app_daemon" => (5_010_000, early.clone(), true),
                    "small_free" => (9_000_000, Books::default(), false),
                    _ => (5_000_000, Books::default(), true),
                };
                results.add(at, run(step, books, valid));
            }
        }
        results
    }

    fn value(measures: &[Measure], name: &str) -> f64 {
        let found = measures
            .iter()
            .find(|measure| measure.name == name)
            .unwrap_or_else(|| panic!("{name} is missing"));
        (found.value.unwrap() * 1000.0).round() / 1000.0
    }

    #[test]
    fn figures_are_of_pairs_that_count() {
        let results = results();
        let measures = results.measures(&params(false));
        assert_eq!(value(&measures, "worst_percent"), 11.0);
        assert_eq!(value(&measures, "worst_daemon_percent"), 0.2);
        assert_eq!(value(&measures, "worst_daemon_p99"), 1.002);
        assert_eq!(value(&measures, "direct_reclaims"), 3.0);
        assert_eq!(value(&measures, "reclaim_cpu_ratio"), 0.9);
        assert_eq!(value(&measures, "explained_percent"), 90.0);
        assert_eq!(value(&measures, "worst_daemon_over_direct_percent"), 0.2);
        // What was not measured is omitted; a missed goal is reported.
        assert!(measures.iter().all(|measure| measure.name != "hot_kept_percent"));
        assert_eq!(
            measures.iter().find(|measure| measure.name == "direct_reclaims").unwrap().met,
            Some(false)
        );
        assert_eq!(results.slowdown("small_free"), None);
        assert!(
            results
                .measures(&params(true))
                .iter()
                .all(|measure| measure.met.is_none() && !measure.note.is_empty())
        );
    }

    #[test]
    fn throughput_is_told_against_the_plain_reader() {
        let mut results = results();
        results.streams =
            vec![(Remedy::None, 2e9), (Remedy::Daemon, 1.9e9), (Remedy::QuietRun, 3e9)];
        results.hot = vec![(Keeper::QuietRun, Kept { percent: 97.0, again: 1.1 })];
        let measures = results.measures(&params(false));
        assert_eq!(
            (
                value(&measures, "stream_daemon_percent"),
                value(&measures, "stream_quiet_run_percent")
            ),
            (95.0, 150.0)
        );
        assert_eq!(value(&measures, "hot_kept_quiet_run_percent"), 97.0);
        assert!(results.sections().last().unwrap().to_text().contains("quiet run"));
    }

    #[test]
    fn the_papers_figures_stand_beside_ours() {
        let sections = results().sections();
        assert_eq!(sections[0].plots.len(), 5);
        let text = sections[0].to_text();
        assert!(
            text.contains("0 of 2") && text.contains("kswapd on the application's core"),
            "{text}"
        );
        let bars = &sections[0].plots[4].series;
        assert_eq!((bars[1].points[0].y, bars[1].points[2].y), (9.0, 14.0));
    }

    #[test]
    fn a_step_over_nodes_is_as_long_as_the_longest() {
        assert_eq!(composed(&[9, 1, 1, 1], &[1, 2, 3, 4]), [9, 4, 4, 3]);
    }

    #[test]
    fn an_arm_that_fails_is_told_of_once() {
        let mut results = results();
        let at = results.arms.len() - 1;
        results.failed(at, "no".to_owned());
        results.failed(at, "no".to_owned());
        let text = results.sections()[0].to_text();
        assert_eq!(text.matches(": no").count(), 1, "{text}");
    }
}
