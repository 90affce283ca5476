//! A grid of settings, each point with several seeds: planned from a file, run in shards anywhere,
//! stored point by point, merged.

mod merge;
mod plan;
pub mod scripts;
mod store;

pub use merge::Merged;
pub use plan::{Cell, Plan, Point, Shard};
pub use store::{Gap, Gaps, Store, StoreError};

use crate::figures::Figures;
use crate::lab::{Job, Lab, LabError};

/// Why a sweep was not finished. Completed points remain stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lab(#[from] LabError),
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Points that were stored before.
    pub kept: usize,
    /// Points that were run now.
    pub run: usize,
}

/// The runs of `shard` that are missing in `store`.
pub fn missing(plan: &Plan, shard: Shard, store: &Store) -> Vec<usize> {
    let of_shard = (0..plan.points()).filter(|&point| shard.has(point));
    of_shard.filter(|&point| !store.has(plan.point(point))).collect()
}

/// Runs the missing points, and stores each as soon as it is done.
pub fn run(plan: &Plan, shard: Shard, store: &Store, lab: &Lab<'_>) -> Result<Done, SweepError> {
    store.note_shards(shard)?;
    let points = missing(plan, shard, store);
    let of_shard = (0..plan.points()).filter(|&point| shard.has(point)).count();
    let jobs: Vec<(Point, Job)> =
        points.iter().map(|&point| (plan.point(point), plan.job(point))).collect();
    let saved = lab.each(
        &jobs,
        |(_, job)| job,
        |(point, _), outcome| store.save(*point, &Figures::of(&outcome)),
    )?;
    saved.into_iter().collect::<Result<Vec<()>, StoreError>>()?;
    Ok(Done { kept: of_shard - points.len(), run: points.len() })
}
