//! Processes, threads and what they touch.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trace::TraceRecord;

/// Distribution of the sizes of programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// All sizes are equally frequent (the paper's text).
    Uniform,
    /// Bell-shaped; the limits are three standard deviations from the middle (the paper's table).
    #[default]
    Normal,
}

/// The source of the content of a page that was never written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstTouch {
    /// It is zeros: nothing is transferred.
    #[default]
    Zero,
    /// It is read from disk.
    Disk,
}

/// Which nodes the threads of a process run on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadPlacement {
    /// Each on a node drawn at random.
    #[default]
    Random,
    /// On nodes with consecutive numbers, starting at one drawn at random.
    Together,
}

/// Processes, threads and what they touch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoadConfig {
    /// Processes that arrive in the whole machine, per second (Poisson).
    pub arrivals_per_s: f64,
    /// Threads of a process: mean.
    pub threads_mean: u32,
    /// Threads of a process: standard deviation.
    pub threads_sd: u32,
    /// Where they run.
    pub threads_on: ThreadPlacement,
    /// Page accesses of a thread.
    pub accesses: u32,
    /// Smallest program, pages.
    pub virtual_pages_min: u32,
    /// Largest program, pages.
    pub virtual_pages_max: u32,
    /// Distribution of the sizes in between.
    pub virtual_spread: Spread,
    /// Accesses in one phase.
    pub phase_accesses: u32,
    /// Phases that a thread is in at the same time.
    pub phases_at_once: u32,
    /// Standard deviation of the pages touched in a phase, in thousandths of the program's size.
    pub locality_permille: u32,
    /// Reads per write.
    pub reads_per_write: u32,
    /// The content of pages that were never written.
    pub first_touch: FirstTouch,
    /// Replaces all of the above: recorded page-outs and page-ins.
    #[serde(skip)]
    pub trace: Option<Arc<[TraceRecord]>>,
}

impl Default for LoadConfig {
    fn default() -> Self {
        LoadConfig {
            arrivals_per_s: 100.0,
            threads_mean: 9,
            threads_sd: 3,
            threads_on: ThreadPlacement::Random,
            accesses: 3600,
            virtual_pages_min: 1,
            virtual_pages_max: 128,
            virtual_spread: Spread::Normal,
            phase_accesses: 60,
            phases_at_once: 1,
            locality_permille: 100,
            reads_per_write: 10,
            first_touch: FirstTouch::Zero,
            trace: None,
        }
    }
}
