//! Results as figures; tables and plots in the modules below.

mod plots;
mod tables;

use std::path::Path;

use hiroma_report::{Better, Measure, Report, Spread};
use hiroma_units::Bytes;

use super::Params;
use super::arm::{Arm, Remedy};
use super::extra::{HotFileState, Keeper};
use super::ground::Ground;
use super::run::Run;

/// All measurements.
#[derive(Default)]
pub struct Results {
    /// The arms, and their runs by round; none where the arm failed.
    pub arms: Vec<(Arm, Vec<Option<Run>>)>,
    pub failures: Vec<String>,
    pub streams: Vec<(Remedy, f64)>,
    pub hot: Vec<(Keeper, HotFileState)>,
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::app::AppResults;
    use crate::noise::arm;
    use crate::noise::arm::Group;
    use crate::noise::ground::Books;
    use std::time::Duration;

    fn run(step_ns: u64, books: Books, valid: bool) -> Run {
        let went = AppResults {
            steps_ns: vec![step_ns; 100],
            stolen_ns: 1000,
            explained_ns: 900,
            ..AppResults::default()
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
    fn figures_use_only_valid_pairs() {
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
    fn throughput_is_relative_to_the_plain_reader() {
        let mut results = results();
        results.streams =
            vec![(Remedy::None, 2e9), (Remedy::Daemon, 1.9e9), (Remedy::QuietRun, 3e9)];
        results.hot = vec![(Keeper::QuietRun, HotFileState { percent: 97.0, again: 1.1 })];
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
    fn paper_figures_are_shown_beside_measured() {
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
    fn failed_arm_is_reported_once() {
        let mut results = results();
        let at = results.arms.len() - 1;
        results.failed(at, "no".to_owned());
        results.failed(at, "no".to_owned());
        let text = results.sections()[0].to_text();
        assert_eq!(text.matches(": no").count(), 1, "{text}");
    }
}
