//! Runs of the simulator: many at once, stopped when asked to, with how far they are.

use std::sync::Arc;

use hiroma_sim::{Config, Outcome, RunError};

use crate::jobs::{Stop, run_all};

/// One run.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it is, for messages.
    pub label: String,
    pub config: Arc<Config>,
    pub seed: u64,
}

/// Why runs have no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// One of them failed; the first in the order of the jobs among those that did.
    #[error("{label}, seed {seed}: {error}")]
    Failed { label: String, seed: u64, error: RunError },
    /// Somebody asked for an end.
    #[error("interrupted")]
    Interrupted,
}

/// Where runs happen.
#[derive(Clone, Copy)]
pub struct Lab<'a> {
    /// How many run at once.
    pub threads: usize,
    /// Set when everybody should come to an end.
    pub stop: &'a Stop,
    /// Told by what part of one run the work has advanced; from any thread.
    pub advance: &'a (dyn Fn(f64) + Sync),
}

impl Lab<'_> {
    /// One run, on the caller's thread.
    pub fn run(&self, job: &Job) -> Result<Outcome, RunError> {
        let mut told = 0.0;
        let outcome = hiroma_sim::run(&job.config, job.seed, &mut |progress| {
            let now = (progress.now_ns as f64 / progress.end_ns.max(1) as f64).min(1.0);
            if now - told >= 0.001 {
                (self.advance)(now - told);
                told = now;
            }
            !self.stop.is_set()
        });
        (self.advance)(1.0 - told);
        outcome
    }

    /// All of them; outcomes in the order of `jobs`. The first failure ends the others.
    pub fn run_all(&self, jobs: &[Job]) -> Result<Vec<Outcome>, LabError> {
        self.map_all(jobs, |_, outcome| outcome)
    }

    /// The same for those who keep less than the whole outcome of each.
    pub fn map_all<T: Send>(
        &self,
        jobs: &[Job],
        keep: impl Fn(&Job, Outcome) -> T + Sync,
    ) -> Result<Vec<T>, LabError> {
        self.each(jobs, |job| job, keep)
    }

    /// The same for those whose jobs are part of something else.
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
            if let Some(Err(error)) = result {
                if !matches!(error, RunError::Stopped(_)) {
                    return Err(LabError::Failed {
                        label: job(item).label.clone(),
                        seed: job(item).seed,
                        error: error.clone(),
                    });
                }
            }
        }
        let whole: Option<Vec<T>> =
            results.into_iter().map(|result| result.and_then(Result::ok)).collect();
        whole.ok_or(LabError::Interrupted)
    }
}

/// Every one of `configs` (label, configuration) with each of `seeds`, configuration by
/// configuration.
pub fn jobs_of(configs: &[(String, Arc<Config>)], seeds: &[u64]) -> Vec<Job> {
    let job = |(label, config): &(String, Arc<Config>), seed| Job {
        label: label.clone(),
        config: config.clone(),
        seed,
    };
    configs.iter().flat_map(|pair| seeds.iter().map(move |&seed| job(pair, seed))).collect()
}
