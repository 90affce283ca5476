//! Reads the control pages of all processes of a run, while they live and after they have ended.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hiroma_far::control::{ControlPage, Counter, Snapshot};

use crate::{processes, rundir};

/// The last known state of one process.
pub struct Seen {
    /// Its counters.
    pub snapshot: Snapshot,
    /// Whether the process still runs.
    pub alive: bool,
}

/// All processes of a run that have managed memory.
pub struct Watch {
    dir: PathBuf,
    seen: BTreeMap<u32, Seen>,
    local_bytes_max: u64,
    far_bytes_max: u64,
}

impl Watch {
    /// Watches the control pages in `dir`.
    pub fn new(dir: PathBuf) -> Watch {
        Watch { dir, seen: BTreeMap::new(), local_bytes_max: 0, far_bytes_max: 0 }
    }

    /// Reads all control pages again.
    pub fn update(&mut self) {
        for pid in rundir::page_pids(&self.dir) {
            if self.seen.get(&pid).is_some_and(|seen| !seen.alive) && !processes::is_alive(pid) {
                continue;
            }
            // A page that is being made, or whose process has just ended, is read at the next
            // update.
            if let Ok(page) = ControlPage::open(&self.dir, pid) {
                self.seen.insert(
                    pid,
                    Seen { snapshot: page.snapshot(), alive: processes::is_alive(pid) },
                );
            }
        }
        self.local_bytes_max = self
            .local_bytes_max
            .max(self.now(Counter::LocalBytes))
            .max(self.largest(Counter::LocalBytesMax));
        self.far_bytes_max = self
            .far_bytes_max
            .max(self.now(Counter::FarBytes))
            .max(self.largest(Counter::FarBytesMax));
    }

    /// The processes, by id.
    pub fn seen(&self) -> &BTreeMap<u32, Seen> {
        &self.seen
    }

    /// A gauge, summed over the processes that run.
    pub fn now(&self, gauge: Counter) -> u64 {
        self.seen.values().filter(|seen| seen.alive).map(|seen| seen.snapshot.get(gauge)).sum()
    }

    /// The largest value of a counter in one process.
    pub fn largest(&self, counter: Counter) -> u64 {
        self.seen.values().map(|seen| seen.snapshot.get(counter)).max().unwrap_or(0)
    }

    /// The most local memory that was seen for all processes together.
    pub fn local_bytes_max(&self) -> u64 {
        self.local_bytes_max
    }

    /// The most far memory that was seen for all processes together.
    pub fn far_bytes_max(&self) -> u64 {
        self.far_bytes_max
    }

    /// Counts and latencies of all processes together.
    pub fn total(&self) -> Option<Snapshot> {
        self.seen.values().map(|seen| seen.snapshot.clone()).reduce(|mut total, next| {
            total.absorb(&next);
            total
        })
    }
}
