//! Measurements, run by run, as stored in the file: an interrupted measurement resumes from there.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use hiroma_report::Spread;
use serde::{Deserialize, Serialize};

use crate::job::Latency;

/// Name of the arm with unlimited memory, and of its size.
pub const NATIVE: &str = "native";

/// Why a run has no time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It took longer than the patience.
    Stopped,
    /// The kernel killed it because memory ran out.
    Killed,
    /// It takes at least this number of bytes, which is more than its target.
    DoesNotFit(u64),
    /// It failed, or its output differs from the native one.
    Failed(String),
    /// This machine lacks what the arm needs, so nothing is known about the arm.
    Skipped(String),
}

/// One run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Attempt {
    /// Duration of the timed part.
    pub seconds: f64,
    /// Duration from start to end.
    pub wall_seconds: f64,
    /// Maximum memory that the kernel counted: that of the control group without the page cache of
    /// files, and the compressed memory outside of it.
    pub total_bytes: u64,
    /// Maximum of the part that was compressed outside the group.
    pub compressed_bytes: u64,
    /// Memory that a memory server took.
    pub remote_bytes: u64,
    /// Number of pages of 4 KiB that were fetched or swapped in because a thread waited for them.
    pub pages_in: u64,
    /// `hiroma run`: number of faults that fetched, and of those that only mapped a staged block again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<Faults>,
    /// Number of accesses or requests.
    pub count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// Faults on memory that is not mapped.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    pub fetched: u64,
    pub staged: u64,
}

/// One program with one size of memory in one arm.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cell {
    pub group: String,
    pub item: String,
    pub size: String,
    pub arm: String,
    /// The total that the arm may take; none where the resident part is the same in all arms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<u64>,
    /// Runs of the search for the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<(u64, Attempt)>,
    /// The resident limit that the search found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Seconds that it counts as if it failed; none where that is the patience in times native.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_seconds: Option<f64>,
    pub runs: Vec<Attempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// All cells.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cells(pub Vec<Cell>);

impl Cell {
    /// A value of each run.
    pub fn values(&self, value: impl Fn(&Attempt) -> f64) -> Vec<f64> {
        self.runs.iter().map(value).collect()
    }

    /// Whether no run is missing.
    pub fn is_done(&self, repetitions: usize) -> bool {
        self.end.is_some() || self.runs.len() >= repetitions
    }

    /// Whether it may be compared with others. A skipped cell may not.
    pub fn counts(&self) -> bool {
        !matches!(self.end, Some(End::Skipped(_))) && (self.end.is_some() || !self.runs.is_empty())
    }
}

impl Cells {
    /// Reads the cells from the file of an earlier measurement.
    pub fn load(path: &Path) -> Result<Cells> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let file: serde_json::Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        ensure!(
            file.get("cells").is_some(),
            "{} has no `cells`: it is not of `hiroma bench real`",
            path.display()
        );
        serde_json::from_value(file["cells"].clone())
            .with_context(|| format!("the cells of {}", path.display()))
    }

    /// Forgets skipped cells: they may be possible now.
    pub fn forget_skipped(&mut self) {
        self.0
            .iter_mut()
            .filter(|cell| matches!(cell.end, Some(End::Skipped(_))))
            .for_each(|cell| cell.end = None);
    }

    /// Finds a cell.
    pub fn find(&self, group: &str, item: &str, size: &str, arm: &str) -> Option<&Cell> {
        self.0.iter().find(|cell| {
            (&*cell.group, &*cell.item, &*cell.size, &*cell.arm) == (group, item, size, arm)
        })
    }

    /// Finds a cell, or adds it.
    pub fn at(&mut self, group: &str, item: &str, size: &str, arm: &str) -> &mut Cell {
        let found = self.0.iter().position(|cell| {
            (&*cell.group, &*cell.item, &*cell.size, &*cell.arm) == (group, item, size, arm)
        });
        let at = found.unwrap_or_else(|| {
            let [group, item, size, arm] = [group, item, size, arm].map(str::to_owned);
            self.0.push(Cell { group, item, size, arm, ..Cell::default() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// The native runs of an item.
    pub fn native(&self, group: &str, item: &str) -> Option<&Cell> {
        self.find(group, item, NATIVE, NATIVE).filter(|cell| !cell.runs.is_empty())
    }

    /// Seconds of the runs of a cell. A cell that did not finish counts as `patience` times native.
    pub fn seconds(&self, cell: &Cell, patience: f64) -> Option<Vec<f64>> {
        if !cell.counts() {
            return None;
        }
        if cell.end.is_none() {
            return Some(cell.values(|run| run.seconds));
        }
        if let Some(seconds) = cell.failed_seconds {
            return Some(vec![seconds]);
        }
        Some(vec![self.native_seconds(cell)? * patience])
    }

    /// Ratio of the times of two cells. Runs that took longer than `patience` times native, and were
    /// not stopped because native runs scatter, count as those that were.
    pub fn ratio(&self, over: &Cell, under: &Cell, patience: f64) -> Option<Spread> {
        let counted = |cell: &Cell| -> Option<Vec<f64>> {
            let native = self.native_seconds(cell).filter(|_| cell.failed_seconds.is_none());
            let most = native.map_or(f64::INFINITY, |native| native * patience);
            Some(self.seconds(cell, patience)?.into_iter().map(|time| time.min(most)).collect())
        };
        Spread::of_ratio(&counted(over)?, &counted(under)?)
    }

    fn native_seconds(&self, cell: &Cell) -> Option<f64> {
        let native = self.native(&cell.group, &cell.item)?;
        Some(Spread::of(&native.values(|run| run.seconds))?.median)
    }
}

/// The geometric mean.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty())
        .then(|| (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp())
}

impl End {
    /// Text for a table cell.
    pub fn to_text(&self, patience: f64) -> String {
        match self {
            End::Stopped => format!("> {patience}"),
            End::Killed => "killed".to_owned(),
            End::DoesNotFit(bytes) => format!("needs {} MB", bytes / 1_000_000),
            End::Failed(_) => "failed".to_owned(),
            End::Skipped(_) => "skipped".to_owned(),
        }
    }

    /// All details.
    pub fn reason(&self) -> String {
        match self {
            End::Failed(reason) => format!("failed: {reason}"),
            End::Skipped(reason) => format!("skipped: {reason}"),
            End::DoesNotFit(bytes) => format!("takes {} MB at the least", bytes / 1_000_000),
            End::Killed => "killed for want of memory".to_owned(),
            End::Stopped => "stopped".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(seconds: f64) -> Attempt {
        Attempt { seconds, ..Attempt::default() }
    }

    #[test]
    fn unfinished_runs_count_as_the_time_limit() {
        let mut cells = Cells::default();
        cells.at("programs", "a", NATIVE, NATIVE).runs = vec![ran(1.0), ran(3.0)];
        cells.at("programs", "a", "50%", "zram").end = Some(End::Killed);
        cells.at("programs", "a", "50%", "tcp").end = Some(End::Stopped);
        cells.at("programs", "a", "50%", "default").runs = vec![ran(4.0), ran(6.0)];
        cells.at("programs", "a", "50%", "zswap").end = Some(End::Skipped("no zswap".into()));
        let cell = |arm| cells.find("programs", "a", "50%", arm).unwrap();
        assert_eq!(cells.seconds(cell("zram"), 13.0), Some(vec![26.0]));
        assert_eq!(cells.seconds(cell("zswap"), 13.0), None);
        assert_eq!(cells.ratio(cell("default"), cell("zram"), 13.0).unwrap().median, 5.0 / 26.0);
        assert_eq!(cells.ratio(cell("tcp"), cell("zram"), 13.0).unwrap().median, 1.0);
        assert!(cells.ratio(cell("default"), cell("zswap"), 13.0).is_none());
        // One that was slower, and not stopped.
        cells.at("programs", "a", "50%", "blind").runs = vec![ran(30.0)];
        let cell = |arm| cells.find("programs", "a", "50%", arm).unwrap();
        assert_eq!(cells.ratio(cell("blind"), cell("zram"), 13.0).unwrap().median, 1.0);
        // Loads are not limited by native runs.
        cells.at("programs", "a", "50%", "blind").failed_seconds = Some(60.0);
        let cell = |arm| cells.find("programs", "a", "50%", arm).unwrap();
        assert_eq!(cells.ratio(cell("blind"), cell("zram"), 13.0).unwrap().median, 30.0 / 26.0);
        assert_eq!(End::Stopped.to_text(13.0), "> 13");
    }

    #[test]
    fn means_are_geometric_and_need_values() {
        assert!((mean(&[0.5, 2.0, 8.0]).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn results_file_is_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("real.json");
        let mut cells = Cells::default();
        let cell = cells.at("programs", "a", "50%", "zram");
        (cell.tries, cell.limit_bytes) = (vec![(7, ran(1.0))], Some(7));
        cell.runs.push(ran(2.0));
        cells.at("programs", "b", "50%", "zram").end = Some(End::Failed("why".into()));
        std::fs::write(&path, serde_json::json!({ "results": [], "cells": cells }).to_string())
            .unwrap();
        let mut loaded = Cells::load(&path).unwrap();
        assert_eq!(loaded, cells);
        loaded.at("programs", "a", "50%", "zram").runs.push(ran(3.0));
        assert_eq!(loaded.0.len(), 2);
        assert!(loaded.0[0].is_done(2) && !loaded.0[0].is_done(3) && loaded.0[1].is_done(3));
        std::fs::write(&path, "{\"results\": []}").unwrap();
        assert!(Cells::load(&path).unwrap_err().to_string().contains("bench real"));
    }
}
