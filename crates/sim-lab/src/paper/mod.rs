//! Every experiment of the paper on global page placement (Miyata, Masaki, Shimizu, Ashihara), and
//! some that it left for later.

mod beyond;
mod book;
mod claims;
mod experiments;
mod readings;
mod score;
mod search;

use std::sync::Arc;

use hiroma_policy::placement::{PlacementConfig, ScopeKind};
use hiroma_report::{Machine, Report};
use hiroma_sim::Config;

use crate::lab::{Lab, LabError};
use crate::single::{seeds_from, seeds_text};

use beyond::Beyond;
use book::Book;
use experiments::Experiments;
use readings::Readings;

pub use readings::reading::{Choice, QUESTIONS, Question, Reading};
pub use search::{Fitted, Search, SearchParams, try_reading};

/// The extent of the experiments.
#[derive(Clone, Debug)]
pub struct Params {
    /// Reduced: fewer rates, seeds and variants, shorter runs.
    pub quick: bool,
    /// Only what the claims of the paper need.
    pub claims_only: bool,
    /// Seeds of every configuration, except:
    pub seeds: Vec<u64>,
    /// Seeds of configurations of present-day clusters, which take longer.
    pub seeds_modern: Vec<u64>,
    /// The rates that have a name.
    pub named: Rates,
    /// Processes that arrive per second.
    pub rates: Vec<f64>,
    /// The paper's cluster, as it is read.
    pub base: Config,
}

/// Processes that arrive per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Few processes: most memory is free.
    pub low: f64,
    /// In between.
    pub middle: f64,
    /// Memory is nearly full: the lowest rate, in steps of ten, at which a page with nearest
    /// travels 1.9 hops as in the paper, within a tenth. Pages go to disk, the more the longer a
    /// run is: there is no steady state.
    pub high: f64,
}

/// Those of [`Reading::BEST`].
pub const RATES: Rates = Rates { low: 20.0, middle: 60.0, high: Fitted::BEST.high };

impl Rates {
    /// Low, middle and high.
    fn all(self) -> [f64; 3] {
        [self.low, self.middle, self.high]
    }

    /// Between middle and high: disks are rarely needed.
    fn busy(self) -> f64 {
        ((self.middle + self.high) / 20.0).floor() * 10.0 - 10.0
    }
}

impl Params {
    /// All experiments with `seeds` seeds, or a quick run.
    pub fn new(quick: bool, seeds: Option<usize>) -> Params {
        let seeds = seeds_from(1, seeds.unwrap_or(if quick { 2 } else { 4 }));
        let Rates { low, middle, high } = RATES;
        let rates = if quick {
            RATES.all().to_vec()
        } else {
            vec![low, middle, RATES.busy(), RATES.busy() + 40.0, high]
        };
        let seeds_modern = seeds[..seeds.len().min(2)].to_vec();
        let base = cluster();
        Params { quick, claims_only: false, seeds, seeds_modern, named: RATES, rates, base }
    }

    /// What the claims need of the cluster `base`.
    pub fn of_claims(base: Config, named: Rates, seeds: Vec<u64>) -> Params {
        let (seeds_modern, rates) = (Vec::new(), named.all().to_vec());
        Params { quick: false, claims_only: true, seeds, seeds_modern, named, rates, base }
    }

    /// The paper's cluster at a rate, with a policy that differs by `change` from the paper's.
    fn paper(&self, rate: f64, change: impl Fn(&mut PlacementConfig)) -> Config {
        let mut config = self.base.clone();
        config.load.arrivals_per_s = rate;
        change(&mut config.policy);
        (config.run.warmup_ns, config.run.duration_ns) = match (config.policy.scope, self.quick) {
            // Without lenders it takes long until every disk's queue reaches its steady state.
            (ScopeKind::Disk, false) => (20_000_000_000, 5_000_000_000),
            (ScopeKind::Disk, true) => (10_000_000_000, 2_000_000_000),
            (_, false) => (config.run.warmup_ns, config.run.duration_ns / 2),
            (_, true) => (config.run.warmup_ns, config.run.duration_ns / 4),
        };
        config
    }
}

/// The paper's cluster under the reading that explains most of its results.
pub fn cluster() -> Config {
    Fitted::BEST.config(Reading::BEST)
}

/// The planned experiments and their results.
pub struct Paper {
    params: Params,
    book: Book,
    experiments: Experiments,
    readings: Readings,
    beyond: Beyond,
}

impl Paper {
    /// Plans the experiments.
    pub fn plan(params: Params) -> Paper {
        let mut book = Book::default();
        let experiments = Experiments::plan(&params, &mut book);
        let readings = Readings::plan(&params, &mut book);
        let beyond = Beyond::plan(&params, &mut book);
        Paper { params, book, experiments, readings, beyond }
    }

    /// All configurations, with the number of runs of each.
    pub fn configs(&self) -> Vec<(Arc<Config>, usize)> {
        self.book.configs().map(|(_, config, runs)| (config.clone(), runs)).collect()
    }

    /// Executes the runs.
    pub fn run(&mut self, lab: &Lab<'_>) -> Result<(), LabError> {
        self.book.run(lab)
    }

    /// Tables, plots, and the paper's claims; `wall_s` is the duration of [`Paper::run`].
    pub fn report(&self, machine: Machine, wall_s: f64) -> Report {
        let mut report = Report {
            title: "Global page placement: the paper's experiments".to_owned(),
            machine,
            preamble: vec![format!(
                "The paper's cluster (256 nodes, 16 x 16 torus, table 1) with {}; today's clusters with {}. Times are simulated. Behind each \
                 mean stands the half width of its 95 % confidence interval over the seeds. The same seeds give the same processes to every \
                 policy.",
                seeds_text(&self.params.seeds),
                seeds_text(&self.params.seeds_modern)
            )],
            ..Report::default()
        };
        self.experiments.report(&self.book, &mut report);
        self.readings.report(&self.book, &mut report);
        self.beyond.report(&self.book, &mut report);
        claims::judge(&self.experiments, &self.book, self.params.named, &mut report.measures);
        report.sections.insert(0, score::section(&report.measures, &Reading::BEST.describe()));
        report.measures.push(score::measure(&report.measures));
        self.beyond.measures(&self.book, &mut report.measures);
        claims::judge_time(self.params.quick, wall_s, &mut report.measures);
        report
    }
}

#[cfg(test)]
mod tests {
    use hiroma_sim::{Canary, RunError};

    use super::*;
    use crate::jobs::Stop;
    use crate::lab::with_canary;

    #[test]
    fn planned_configurations_are_unique_and_valid() {
        for quick in [true, false] {
            let paper = Paper::plan(Params::new(quick, None));
            for (place, (label, config, _)) in paper.book.configs().enumerate() {
                assert_eq!(config.validate(), Ok(()), "{label}");
                assert!(
                    paper.book.configs().skip(place + 1).all(|(_, other, _)| other != config),
                    "{label} twice"
                );
            }
        }
    }

    /// The experiments on a small machine for a short time.
    fn small(seeds: usize) -> Paper {
        let mut paper = Paper::plan(Params::new(true, Some(seeds)));
        paper.book.change(|config| {
            config.topology.dims =
                if config.topology.dims.len() == 2 { vec![8, 8] } else { vec![4, 4, 4] };
            config.disk.count = 4;
            config.policy.domain_radius = config.policy.domain_radius.min(4);
            config.load.arrivals_per_s /= 4.0;
            config.load.virtual_pages_max = config.load.virtual_pages_max.min(128);
            config.node.frames = config.node.frames.min(64);
            (config.run.warmup_ns, config.run.duration_ns) = (20_000_000, 20_000_000);
        });
        paper
    }

    /// With `canary`, wherever it can act.
    fn run_broken(paper: &mut Paper, canary: Canary) -> Result<(), LabError> {
        let (stop, instead) = (Stop::new(), with_canary(canary));
        let (advance, lacking) = (&|_| (), &|_| None);
        paper.run(&Lab { threads: 2, stop: &stop, advance, lacking, instead: &instead })
    }

    fn run(paper: &mut Paper) -> Result<(), LabError> {
        run_broken(paper, Canary::None)
    }

    #[test]
    fn every_canary_ends_the_experiments() {
        for canary in Canary::TRUSTING {
            let mut paper = small(1);
            // Short runs have fewer pages than those canaries that act now and then need.
            paper.book.change(|config| config.run.duration_ns = 200_000_000);
            match run_broken(&mut paper, canary) {
                Err(LabError::Failed {
                    error: RunError::Wrong(_) | RunError::Stuck(_), ..
                }) => (),
                other => panic!("{canary:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn report_judges_every_claim() {
        let mut paper = small(2);
        run(&mut paper).unwrap();
        let report = paper.report(Machine::default(), 1.0);
        assert!(report.sections.len() >= 10);
        let names: Vec<&str> =
            report.measures.iter().map(|measure| measure.name.as_str()).collect();
        for claim in [
            "no_global_off_percent",
            "nearest_transfer_off_percent",
            "reservation_gain_high",
            "domain_best_is_3_or_4",
            "wall_s",
        ] {
            assert!(names.contains(&claim), "{claim} is not in {names:?}");
        }
        assert!(!report.to_html().contains("NaN"));
        let statements =
            score::CLAIMS.iter().chain(score::FIGURES.iter().map(|(figure, _)| figure));
        for name in statements.flat_map(|statement| statement.measures) {
            // A quick run has fewer domain sizes and marks, but judges all claims.
            assert!(names.contains(name), "{name} is judged by nobody");
        }
    }
}
