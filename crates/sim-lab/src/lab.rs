//! Runs of the simulator: several at the same time, interruptible, with reports of their progress.

use std::sync::Arc;

use hiroma_sim::{Canary, Config, Outcome, RunError};

use crate::jobs::{Stop, run_all};

/// One run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Description, for messages.
    pub label: String,
    pub config: Arc<Config>,
    pub seed: u64,
}

/// Why runs have no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A run failed; of several, the first in the order of the jobs.
    #[error("{label}, seed {seed}: {error}")]
    Failed { label: String, seed: u64, error: RunError },
    /// A run was ended before the machine's memory was.
    #[error(
        "{label}, seed {seed}: {} after {:.0} % of the run; run fewer at a time (--jobs), or a cluster with fewer nodes, frames or pages",
        .short.what,
        .short.share * 100.0
    )]
    NoMemory { label: String, seed: u64, short: Short },
    /// The user interrupted the runs.
    #[error("interrupted")]
    Interrupted,
}

/// How far a run came with the memory that there is.
#[derive(Clone, Debug)]
pub struct Short {
    /// What is lacking.
    pub what: String,
    /// Share of the run's simulated time.
    pub share: f64,
}

/// Why one run has no outcome.
enum NoOutcome {
    Error(RunError),
    NoMemory(Short),
}

/// Executes runs.
#[derive(Clone, Copy)]
pub struct Lab<'a> {
    /// Number of runs at the same time.
    pub threads: usize,
    /// Set when all runs should end.
    pub stop: &'a Stop,
    /// Called with the share of one run by which the work has advanced; from any thread.
    pub advance: &'a (dyn Fn(f64) + Sync),
    /// Says what is lacking if a run cannot have so many bytes more; called from any thread, often.
    pub lacking: &'a (dyn Fn(u64) -> Option<String> + Sync),
    /// What is run instead of a configuration, if it is another one.
    pub instead: &'a (dyn Fn(&Config) -> Option<Config> + Sync),
}

/// Every configuration in which `canary` can act, with it.
pub fn with_canary(canary: Canary) -> impl Fn(&Config) -> Option<Config> + Sync {
    move |config| {
        let mut broken = config.clone();
        broken.run.canary = canary;
        (canary != Canary::None && broken.validate().is_ok()).then_some(broken)
    }
}

impl Lab<'_> {
    /// One run, on the caller's thread.
    fn run(&self, job: &Job) -> Result<Outcome, NoOutcome> {
        let other = (self.instead)(&job.config);
        let config = other.as_ref().unwrap_or(&job.config);
        let need = hiroma_sim::need(config);
        if let Some(what) = (self.lacking)(need.idle_bytes + need.table_bytes) {
            return Err(NoOutcome::NoMemory(Short { what, share: 0.0 }));
        }
        let (mut told, mut short) = (0.0, None);
        let outcome = hiroma_sim::run(config, job.seed, &mut |progress| {
            let now = (progress.now_ns as f64 / progress.end_ns.max(1) as f64).min(1.0);
            if now - told >= 0.001 {
                (self.advance)(now - told);
                told = now;
            }
            short = (self.lacking)(need.table_bytes).map(|what| Short { what, share: now });
            short.is_none() && !self.stop.is_set()
        });
        (self.advance)(1.0 - told);
        match short {
            Some(short) => Err(NoOutcome::NoMemory(short)),
            None => outcome.map_err(NoOutcome::Error),
        }
    }

    /// Executes all jobs. Outcomes are in the order of `jobs`. The first failure ends the others.
    pub fn run_all(&self, jobs: &[Job]) -> Result<Vec<Outcome>, LabError> {
        self.map_all(jobs, |_, outcome| outcome)
    }

    /// The same for callers that keep less than the whole outcome of each run.
    pub fn map_all<T: Send>(
        &self,
        jobs: &[Job],
        keep: impl Fn(&Job, Outcome) -> T + Sync,
    ) -> Result<Vec<T>, LabError> {
        self.each(jobs, |job| job, keep)
    }

    /// The same for callers whose jobs are part of other items.
    pub fn each<J: Sync, T: Send>(
        &self,
        items: &[J],
        job: impl Fn(&J) -> &Job + Sync,
        keep: impl Fn(&J, Outcome) -> T + Sync,
    ) -> Result<Vec<T>, LabError> {
        let work = |item: &J| {
            let result = self.run(job(item)).map(|outcome| keep(item, outcome));
            if result.is_err() {
                self.stop.set();
            }
            result
        };
        let results = run_all(items, self.threads, self.stop, work, |_, _| {});
        for (item, result) in items.iter().zip(&results) {
            let (label, seed) = (job(item).label.clone(), job(item).seed);
            match result {
                Some(Err(NoOutcome::NoMemory(short))) => {
                    return Err(LabError::NoMemory { label, seed, short: short.clone() });
                }
                Some(Err(NoOutcome::Error(error))) if !matches!(error, RunError::Stopped(_)) => {
                    return Err(LabError::Failed { label, seed, error: error.clone() });
                }
                _ => {}
            }
        }
        let whole: Option<Vec<T>> =
            results.into_iter().map(|result| result.and_then(Result::ok)).collect();
        whole.ok_or(LabError::Interrupted)
    }
}

/// Jobs for all combinations of `configs` (label, configuration) and `seeds`, configuration by
/// configuration.
pub fn jobs_of(configs: &[(String, Arc<Config>)], seeds: &[u64]) -> Vec<Job> {
    let job = |(label, config): &(String, Arc<Config>), seed| Job {
        label: label.clone(),
        config: config.clone(),
        seed,
    };
    configs.iter().flat_map(|pair| seeds.iter().map(move |&seed| job(pair, seed))).collect()
}
