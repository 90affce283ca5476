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
    /// Its control page is gone: another process with this id has its own.
    is_settled: bool,
}

/// Ended processes that are no longer listed one by one.
#[derive(Default)]
struct Ended {
    count: usize,
    total: Option<Snapshot>,
    /// The largest value of each counter in one of them.
    largest: BTreeMap<usize, u64>,
}

impl Ended {
    fn add(&mut self, snapshot: &Snapshot) {
        self.count += 1;
        match &mut self.total {
            Some(total) => total.absorb(snapshot),
            total => *total = Some(snapshot.clone()),
        }
        for &counter in Counter::ALL {
            let largest = self.largest.entry(counter as usize).or_default();
            *largest = (*largest).max(snapshot.get(counter));
        }
    }
}

/// A run may start any number of processes; so many ended ones are listed.
const LISTED_MAX: usize = 1000;

/// All processes of a run that have managed memory.
pub struct Watch {
    dir: PathBuf,
    seen: BTreeMap<u32, Seen>,
    ended: Ended,
    local_bytes_max: u64,
    far_bytes_max: u64,
    short_bytes_max: u64,
}

impl Watch {
    /// Watches the control pages in `dir`.
    pub fn new(dir: PathBuf) -> Watch {
        let (seen, ended) = (BTreeMap::new(), Ended::default());
        Watch { dir, seen, ended, local_bytes_max: 0, far_bytes_max: 0, short_bytes_max: 0 }
    }

    /// Reads all control pages again.
    pub fn update(&mut self) {
        for pid in rundir::page_pids(&self.dir) {
            if self.seen.get(&pid).is_some_and(|seen| !seen.alive) && !processes::is_alive(pid) {
                continue;
            }
            // A page that is being made, or whose process has just ended, is read at the next
            // update.
            self.look_at(pid);
        }
        self.local_bytes_max = self
            .local_bytes_max
            .max(self.now(Counter::LocalBytes))
            .max(self.largest(Counter::LocalBytesMax));
        self.far_bytes_max = self
            .far_bytes_max
            .max(self.now(Counter::FarBytes))
            .max(self.largest(Counter::FarBytesMax));
        let short = |seen: &Seen| seen.snapshot.stores.short_bytes;
        let now = self.seen.values().filter(|seen| seen.alive).map(short).sum();
        // A process that has just ended may be seen now for the first time.
        let largest = self.seen.values().map(short).max().unwrap_or(0);
        self.short_bytes_max = self.short_bytes_max.max(now).max(largest);
    }

    fn look_at(&mut self, pid: u32) {
        let Ok(page) = ControlPage::open(&self.dir, pid) else { return };
        let (snapshot, alive) = (page.snapshot(), processes::is_alive(pid));
        let before = self.seen.insert(pid, Seen { snapshot, alive, is_settled: false });
        if let Some(other) = before.filter(|before| before.is_settled) {
            self.ended.add(&other.snapshot);
        }
    }

    /// Reads the pages of processes that have ended for the last time, and removes them.
    pub fn settle(&mut self, pids: &[u32]) {
        for &pid in pids {
            self.look_at(pid);
            if let Some(seen) = self.seen.get_mut(&pid) {
                (seen.alive, seen.is_settled) = (false, true);
            }
            let _ = std::fs::remove_file(ControlPage::path(&self.dir, pid));
        }
        let settled: Vec<u32> =
            self.seen.iter().filter(|(_, seen)| seen.is_settled).map(|(&pid, _)| pid).collect();
        for pid in settled.iter().take(settled.len().saturating_sub(LISTED_MAX)) {
            if let Some(seen) = self.seen.remove(pid) {
                self.ended.add(&seen.snapshot);
            }
        }
    }

    /// Number of processes.
    pub fn count(&self) -> usize {
        self.seen.len() + self.ended.count
    }

    /// The processes, by id: those that run, and a thousand of those that have ended.
    pub fn seen(&self) -> &BTreeMap<u32, Seen> {
        &self.seen
    }

    /// A gauge, summed over the processes that run.
    pub fn now(&self, gauge: Counter) -> u64 {
        self.seen.values().filter(|seen| seen.alive).map(|seen| seen.snapshot.get(gauge)).sum()
    }

    /// The largest value of a counter in one process.
    pub fn largest(&self, counter: Counter) -> u64 {
        let listed = self.seen.values().map(|seen| seen.snapshot.get(counter));
        listed.chain(self.ended.largest.get(&(counter as usize)).copied()).max().unwrap_or(0)
    }

    /// The most local memory that was seen for all processes together.
    pub fn local_bytes_max(&self) -> u64 {
        self.local_bytes_max
    }

    /// The most far memory that was seen for all processes together.
    pub fn far_bytes_max(&self) -> u64 {
        self.far_bytes_max
    }

    /// The most content that was seen with fewer copies or pieces than it should have, in all
    /// processes together.
    pub fn short_bytes_max(&self) -> u64 {
        self.short_bytes_max
    }

    /// Counts and latencies of all processes together.
    pub fn total(&self) -> Option<Snapshot> {
        let listed = self.seen.values().map(|seen| seen.snapshot.clone());
        listed.chain(self.ended.total.clone()).reduce(|mut total, next| {
            total.absorb(&next);
            total
        })
    }
}

#[cfg(test)]
mod tests {
    use hiroma_far::control::Stores;

    use super::*;

    #[test]
    fn most_that_missed_copies_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let page = ControlPage::create(dir.path(), false).unwrap();
        let mut watch = Watch::new(dir.path().to_owned());
        for (short_bytes, most) in [(0, 0), (7, 7), (5, 7), (9, 9), (0, 9)] {
            page.set_stores(Stores { short_bytes, ..Stores::default() });
            watch.update();
            assert_eq!(watch.short_bytes_max(), most);
        }
    }

    #[test]
    fn pages_of_ended_processes_go_and_their_counts_stay() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let mut watch = Watch::new(dir.path().to_owned());
        let rounds = LISTED_MAX + 20;
        for round in 0..rounds {
            let page = ControlPage::create(dir.path(), false).unwrap();
            page.add(Counter::Faults, 3);
            page.set(Counter::LocalBytesMax, if round == 7 { 900 } else { 5 });
            // Each under a number of its own, the last ones under one number.
            let pid = 1 << 30 | round.min(LISTED_MAX + 10) as u32;
            let path = |pid| ControlPage::path(dir.path(), pid);
            std::fs::rename(path(own), path(pid)).unwrap();
            watch.update();
            watch.settle(&[pid]);
            assert!(rundir::page_pids(dir.path()).is_empty());
        }
        assert_eq!((watch.count(), watch.seen().len()), (rounds, LISTED_MAX));
        assert_eq!(watch.total().unwrap().get(Counter::Faults), 3 * rounds as u64);
        assert_eq!(watch.largest(Counter::LocalBytesMax), 900);
    }
}
