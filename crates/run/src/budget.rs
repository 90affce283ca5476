//! Keeps the local memory of all processes of a run together within a total.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hiroma_command::show;
use hiroma_far::LOCAL_MIN;
use hiroma_far::config::Config;
use hiroma_far::control::{ControlPage, Counter, Waited};
use hiroma_policy::budget::{Budget, Process};
use hiroma_units::Bytes;

use crate::{processes, rundir};

/// Time between two divisions; pagers look for a new limit as often.
const EVERY: Duration = Duration::from_millis(50);
/// With more processes than this the time is longer in proportion.
const OFTEN: usize = 16;
/// A change by less than this part of a limit is not worth it.
const CHANGED_PART: u64 = 64;

/// The thread that divides the total, until it is dropped.
pub struct Divider {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Divider {
    /// Starts to divide the total of `config`, if it has one, among the processes whose control pages
    /// are in `dir`.
    pub fn start(config: &Config, dir: &Path) -> Option<Divider> {
        let (total_bytes, local_bytes) = (config.total_limit_bytes?, config.local_limit_bytes);
        let dir = dir.to_owned();
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let mut total = Total::new(total_bytes, local_bytes);
            let (mut last, mut wait) = (Instant::now(), EVERY);
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let count = total.divide(&dir, last.elapsed());
                last = Instant::now();
                wait = EVERY * (count / OFTEN + 1) as u32;
            }
        });
        Some(Divider { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Divider {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The join fails only after a panic, which the user has seen.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Total {
    total_bytes: u64,
    local_bytes: u64,
    budget: Budget,
    /// The limit that was requested last from each process.
    requested: BTreeMap<u32, u64>,
    /// The most that one process gets, as `hiroma ctl` has requested.
    most: BTreeMap<u32, u64>,
    has_told: bool,
}

impl Total {
    fn new(total_bytes: u64, local_bytes: u64) -> Total {
        Total {
            total_bytes,
            local_bytes,
            budget: Budget::new(total_bytes, LOCAL_MIN.0),
            requested: BTreeMap::new(),
            most: BTreeMap::new(),
            has_told: false,
        }
    }

    /// Returns the number of processes.
    fn divide(&mut self, dir: &Path, elapsed: Duration) -> usize {
        let pages: Vec<(u32, ControlPage)> = rundir::page_pids(dir)
            .into_iter()
            .filter(|&pid| processes::is_alive(pid))
            .filter_map(|pid| Some((pid, ControlPage::open(dir, pid).ok()?)))
            // A pager that is being made has no limit yet.
            .filter(|(_, page)| page.get(Counter::LimitBytes) != 0)
            .collect();
        let lives = |pid: &u32| pages.iter().any(|(other, _)| other == pid);
        self.requested.retain(|pid, _| lives(pid));
        self.most.retain(|pid, _| lives(pid));
        for (pid, page) in &pages {
            match page.requested_limit() {
                Some(bytes) if self.requested.get(pid) != Some(&bytes) => {
                    self.requested.insert(*pid, bytes);
                    self.most.insert(*pid, bytes);
                }
                // It has executed another program.
                None => drop(self.requested.remove(pid)),
                Some(_) => {}
            }
        }
        let seen: Vec<Process> = pages.iter().map(|(pid, page)| self.process(*pid, page)).collect();
        let limits = self.budget.divide(&seen, elapsed.as_nanos() as u64);
        for ((&(pid, ref page), process), &limit) in pages.iter().zip(&seen).zip(&limits) {
            let is_worth = limit.abs_diff(process.limit_bytes) > process.limit_bytes / CHANGED_PART;
            if is_worth || process.limit_bytes > process.most_bytes {
                page.request_limit(limit);
                self.requested.insert(pid, limit);
            }
        }
        self.tell(pages.len());
        pages.len()
    }

    fn process(&self, pid: u32, page: &ControlPage) -> Process {
        let snapshot = page.snapshot();
        let curve = snapshot.lost_curve().points().into_iter();
        let saves = curve.map(|(extra, left_ppm)| (extra, 1_000_000u64.saturating_sub(left_ppm)));
        Process {
            pid,
            limit_bytes: snapshot.get(Counter::LimitBytes),
            local_bytes: snapshot.get(Counter::LocalBytes),
            most_bytes: self.most.get(&pid).copied().unwrap_or(self.local_bytes),
            waited_ns: snapshot.waited(Waited::AnyFar).0,
            run_ns: processes::run_ns(pid),
            written_bytes: snapshot.get(Counter::WrittenBytes),
            // With all that is far it would wait for nothing.
            saves: saves.chain([(snapshot.get(Counter::FarBytes), 1_000_000)]).collect(),
        }
    }

    /// Tells once that there are too many processes for the total.
    fn tell(&mut self, count: usize) {
        if self.has_told || count as u64 * LOCAL_MIN.0 <= self.total_bytes {
            return;
        }
        self.has_told = true;
        show::say(&format!(
            "{count} processes may keep {LOCAL_MIN} in local memory each, the least that they work with: together more than --total {}",
            Bytes(self.total_bytes)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The page of a live process (this one), under its own number.
    fn page(dir: &Path, limit: u64, local: u64) -> ControlPage {
        let page = ControlPage::create(dir, true).unwrap();
        page.set(Counter::LimitBytes, limit * MIB);
        page.set(Counter::LocalBytes, local * MIB);
        page
    }

    #[test]
    fn a_limit_that_was_requested_otherwise_is_the_most() {
        let dir = tempfile::tempdir().unwrap();
        let page = page(dir.path(), 512, 512);
        let mut total = Total::new(256 * MIB, 512 * MIB);
        assert_eq!(total.divide(dir.path(), EVERY), 1);
        assert_eq!(page.requested_limit(), Some(256 * MIB));
        page.set(Counter::LimitBytes, 256 * MIB);
        page.request_limit(100 * MIB);
        total.divide(dir.path(), EVERY);
        page.set(Counter::LimitBytes, 100 * MIB);
        for _ in 0..5 {
            page.add(Counter::WrittenBytes, MIB);
            total.divide(dir.path(), EVERY);
            assert_eq!(page.requested_limit(), Some(100 * MIB));
        }
    }

    #[test]
    fn a_process_below_the_total_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let page = page(dir.path(), 512, 500);
        let mut total = Total::new(1024 * MIB, 512 * MIB);
        for _ in 0..3 {
            assert_eq!(total.divide(dir.path(), EVERY), 1);
        }
        assert_eq!(page.requested_limit(), None);
    }
}
