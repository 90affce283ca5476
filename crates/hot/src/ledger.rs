//! The ledger: what was done to a process, why, and what it cost.
//!
//! There is one file for each managed process, with one JSON object per line: in `/run/hiroma` for
//! root, in `$XDG_RUNTIME_DIR/hiroma` for other users. The manager of a process holds a lock on the
//! file (`flock(2)`), so that there is one manager at a time; anyone who may read the file can
//! explain the process.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hiroma_policy::huge::{Decision, Reason};
use hiroma_sys::host::dirs;
use hiroma_sys::hot::target;
use hiroma_sys::private::private_dir;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::HotError;

/// Maximum size of a ledger; later entries only count in the totals.
const BYTES_MAX: u64 = 16 << 20;

/// The directory of the ledgers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerDir(PathBuf);

impl LedgerDir {
    /// The directory of this user.
    pub fn of_this_user() -> LedgerDir {
        let uid = rustix::process::geteuid().as_raw();
        LedgerDir(match dirs::runtime() {
            _ if uid == 0 => PathBuf::from("/run/hiroma"),
            Some(dir) => dir.join("hiroma"),
            None => PathBuf::from(format!("/tmp/hiroma-{uid}")),
        })
    }

    /// A ledger directory at `path`, which has to be private.
    pub fn at(path: impl Into<PathBuf>) -> LedgerDir {
        LedgerDir(path.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, pid: u32, started: u64) -> PathBuf {
        self.0.join(format!("hot-{pid}-{started}.jsonl"))
    }

    /// The newest ledger of process `pid`, which may have ended.
    fn newest(&self, pid: u32) -> Option<PathBuf> {
        let prefix = format!("hot-{pid}-");
        let entries = fs::read_dir(&self.0).ok()?.flatten();
        let started = |entry: &fs::DirEntry| -> Option<u64> {
            entry.file_name().to_str()?.strip_prefix(&prefix)?.strip_suffix(".jsonl")?.parse().ok()
        };
        entries
            .filter_map(|entry| Some((started(&entry)?, entry.path())))
            .max()
            .map(|(_, path)| path)
    }
}

/// One line of a ledger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Entry {
    /// Managing began. A process that receives its active pages and makes huge pages itself
    /// (`told`) gets no huge pages from outside.
    Begin {
        pid: u32,
        command: String,
        manager: u32,
        backend: String,
        resident_bytes: u64,
        budget_bytes: Option<u64>,
        dry_run: bool,
        #[serde(default)]
        told: bool,
    },
    /// A range was made huge, or would have been (`dry_run`).
    Collapse {
        at_ms: u64,
        address: u64,
        hot_pages: u16,
        present_pages: u16,
        windows: u16,
        added_bytes: u64,
        /// How long the process waits if it uses its mappings meanwhile.
        took_ns: u64,
        /// How long memory was made ready before, at the manager's expense, to shorten that wait; 0
        /// if it was not.
        #[serde(default)]
        ready_ns: u64,
    },
    /// The kernel refused to collapse a range.
    Refused { at_ms: u64, address: u64, error: String },
    /// A huge page was split.
    Split { at_ms: u64, address: u64, why: String, took_ns: u64 },
    /// A huge range was split to check its pages.
    Check { at_ms: u64, address: u64 },
    /// What tracking cost since the last such entry.
    Tracking { at_ms: u64, rounds: u64, clear_ns: u64, scan_ns: u64, count_ns: u64, window_ns: u64 },
    /// Turns with and without huge pages showed what they gain.
    Trial { at_ms: u64, gain: String },
    /// The limit was changed.
    Budget { at_ms: u64, budget_bytes: u64 },
    /// Managing ended, or stopped by itself.
    End { at_ms: u64, why: String, huge_bytes: u64, resident_bytes: u64 },
}

/// Sums over all entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Totals {
    pub collapses: u64,
    pub refusals: u64,
    pub splits: u64,
    pub checks: u64,
    /// Memory that collapsing added, in bytes.
    pub added_bytes: u64,
    /// Time spent in collapses: the sum, and the longest.
    pub collapse_ns: u64,
    pub collapse_ns_max: u64,
    /// Time spent making memory ready before collapses.
    pub ready_ns: u64,
    pub split_ns: u64,
    pub rounds: u64,
    /// Processor time of tracking.
    pub clear_ns: u64,
    pub scan_ns: u64,
    pub count_ns: u64,
    /// Hot pages in collapsed ranges: that many translations became one per range.
    pub hot_pages: u64,
}

impl Totals {
    /// The totals of `entries`. Of dry runs the tracking counts, the collapses do not.
    pub fn of(entries: &[Entry]) -> Totals {
        let mut totals = Totals::default();
        let mut dry = false;
        for entry in entries {
            if let Entry::Begin { dry_run, .. } = entry {
                dry = *dry_run;
            }
            if !(dry && matches!(entry, Entry::Collapse { .. })) {
                totals.add(entry);
            }
        }
        totals
    }

    /// Adds one entry.
    pub fn add(&mut self, entry: &Entry) {
        match entry {
            Entry::Collapse { hot_pages, added_bytes, took_ns, ready_ns, .. } => {
                self.ready_ns += ready_ns;
                self.collapses += 1;
                self.added_bytes += added_bytes;
                self.collapse_ns += took_ns;
                self.collapse_ns_max = self.collapse_ns_max.max(*took_ns);
                self.hot_pages += u64::from(*hot_pages);
            }
            Entry::Refused { .. } => self.refusals += 1,
            Entry::Split { took_ns, .. } => {
                self.splits += 1;
                self.split_ns += took_ns;
            }
            Entry::Check { .. } => self.checks += 1,
            Entry::Tracking { rounds, clear_ns, scan_ns, count_ns, .. } => {
                self.rounds += rounds;
                self.clear_ns += clear_ns;
                self.scan_ns += scan_ns;
                self.count_ns += count_ns;
            }
            Entry::Begin { .. }
            | Entry::Trial { .. }
            | Entry::Budget { .. }
            | Entry::End { .. } => {}
        }
    }
}

/// The ledger of a process that is being managed.
#[derive(Debug)]
pub struct Ledger {
    file: Option<File>,
    written: u64,
    totals: Totals,
}

impl Ledger {
    /// A ledger without a file: only the totals.
    pub fn in_memory() -> Ledger {
        Ledger { file: None, written: 0, totals: Totals::default() }
    }

    /// Takes the ledger of process `pid` (started at `started`, see [`target::started_at`]) and
    /// removes those of processes that have ended.
    ///
    /// # Errors
    /// [`HotError::Managed`] if another process holds it.
    pub fn take(dir: &LedgerDir, pid: u32, started: u64) -> Result<Ledger, HotError> {
        let failed = HotError::of(pid, "cannot open its ledger");
        private_dir(&dir.0).map_err(|source| HotError::Io {
            pid,
            doing: "cannot make the directory of ledgers",
            source,
        })?;
        clear_stale(dir);
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .clone();
        let mut file = options.open(dir.file(pid, started)).map_err(&failed)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(HotError::Managed { pid, manager: manager_of(&mut file).unwrap_or(0) });
        }
        let written = file.seek(SeekFrom::End(0)).map_err(&failed)?;
        Ok(Ledger { file: Some(file), written, totals: Totals::default() })
    }

    /// Appends an entry. If the disk is full, the entry is lost and the work goes on.
    pub fn note(&mut self, entry: &Entry) {
        self.totals.add(entry);
        let Some(file) = &mut self.file else { return };
        let mut line = serde_json::to_vec(entry).expect("numbers and text always become JSON");
        line.push(b'\n');
        // The end is always recorded.
        let room =
            self.written + line.len() as u64 <= BYTES_MAX || matches!(entry, Entry::End { .. });
        if room && file.write_all(&line).is_ok() {
            self.written += line.len() as u64;
        }
    }

    /// The totals of all entries since the ledger was taken.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Reads the newest ledger of process `pid`, also if another process manages it.
    pub fn read(dir: &LedgerDir, pid: u32) -> Result<Vec<Entry>, HotError> {
        let path = dir.newest(pid).ok_or(HotError::NoLedger { pid })?;
        let file = File::open(path).map_err(|source| HotError::Io {
            pid,
            doing: "cannot read its ledger",
            source,
        })?;
        // A line that is just being written is truncated; skip it.
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        Ok(lines.filter_map(|line| serde_json::from_str(&line).ok()).collect())
    }
}

/// Addresses of the ranges that are huge after `entries`, ascending, and how many of their pages
/// were hot. Decisions of dry runs do not count.
pub fn huge_ranges(entries: &[Entry]) -> BTreeMap<u64, u16> {
    let mut huge = BTreeMap::new();
    let mut dry = false;
    for entry in entries {
        match entry {
            Entry::Begin { dry_run, .. } => dry = *dry_run,
            Entry::Collapse { address, hot_pages, .. } if !dry => {
                _ = huge.insert(*address, *hot_pages)
            }
            Entry::Split { address, .. } | Entry::Check { address, .. } => _ = huge.remove(address),
            _ => {}
        }
    }
    huge
}

/// The process that manages according to the last entries, whether or not it still runs. None if
/// managing has ended.
pub fn last_manager(entries: &[Entry]) -> Option<u32> {
    let last = entries
        .iter()
        .rev()
        .find(|entry| matches!(entry, Entry::Begin { .. } | Entry::End { .. }))?;
    match last {
        Entry::Begin { manager, .. } => Some(*manager),
        _ => None,
    }
}

/// The process that wrote the last `Begin`.
fn manager_of(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    let mut managers = text.lines().filter_map(|line| match serde_json::from_str(line) {
        Ok(Entry::Begin { manager, .. }) => Some(manager),
        _ => None,
    });
    managers.next_back()
}

/// Removes ledgers of processes that ended more than a day ago; until then they can be explained.
fn clear_stale(dir: &LedgerDir) {
    const KEPT: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
    for entry in fs::read_dir(&dir.0).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let parsed = name
            .to_str()
            .and_then(|name| name.strip_prefix("hot-")?.strip_suffix(".jsonl")?.split_once('-'));
        let Some((pid, started)) = parsed else { continue };
        let (Ok(pid), Ok(started)) = (pid.parse::<u32>(), started.parse::<u64>()) else { continue };
        let old = entry
            .metadata()
            .and_then(|found| found.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT));
        if old && target::started_at(pid) != Some(started) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The text for a reason.
pub fn reason_text(reason: Reason) -> &'static str {
    match reason {
        Reason::HotEnough => "hot enough",
        Reason::TooFewHot => "too few of its pages are hot",
        Reason::Cold => "cold",
        Reason::NotYetKnown => "not watched for long enough",
        Reason::InUse => "huge and in use",
        Reason::WentCold => "it went cold",
        Reason::OverBudget => "over the budget",
        Reason::GrowsTooMuch => "it would add too much memory",
        Reason::NoFreeHugePage => "no free huge page",
        Reason::CannotBeHuge => "it cannot be huge",
        Reason::Later => "its turn comes later",
    }
}

/// The text for a decision.
pub fn decision_text(decision: Decision) -> &'static str {
    match decision {
        Decision::Collapse => "collapse",
        Decision::Regroup => "regroup",
        Decision::Split => "split",
        Decision::Leave => "leave",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(pid: u32) -> Entry {
        Entry::Begin {
            pid,
            command: "x".into(),
            manager: std::process::id(),
            backend: "bpf".into(),
            resident_bytes: 1,
            budget_bytes: None,
            dry_run: false,
            told: false,
        }
    }

    #[test]
    fn second_manager_is_refused_and_names_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let dir = LedgerDir::at(dir.path().join("run"));
        let mut first = Ledger::take(&dir, 77, 5).unwrap();
        first.note(&begin(77));
        let error = Ledger::take(&dir, 77, 5).unwrap_err();
        assert!(
            matches!(error, HotError::Managed { pid: 77, manager } if manager == std::process::id()),
            "{error}"
        );
        drop(first);
        Ledger::take(&dir, 77, 5).unwrap();
    }

    #[test]
    fn ledger_entries_are_readable_and_summed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = LedgerDir::at(dir.path().join("run"));
        assert!(matches!(Ledger::read(&dir, 77), Err(HotError::NoLedger { pid: 77 })));
        let mut ledger = Ledger::take(&dir, 77, 5).unwrap();
        ledger.note(&begin(77));
        let collapse = |took_ns| Entry::Collapse {
            at_ms: 1,
            address: 2 << 20,
            hot_pages: 200,
            present_pages: 500,
            windows: 8,
            added_bytes: 12 * 4096,
            took_ns,
            ready_ns: 0,
        };
        ledger.note(&collapse(10));
        ledger.note(&collapse(30));
        let mut entries = Ledger::read(&dir, 77).unwrap();
        assert_eq!(entries.len(), 3);
        let totals = Totals::of(&entries);
        assert_eq!(&totals, ledger.totals());
        assert_eq!(huge_ranges(&entries), BTreeMap::from([(2 << 20, 200)]));
        let Entry::Begin { dry_run, .. } = &mut entries[0] else { panic!("no beginning") };
        *dry_run = true;
        assert_eq!(
            (Totals::of(&entries), huge_ranges(&entries)),
            (Totals::default(), BTreeMap::new())
        );
        assert_eq!(
            (totals.collapses, totals.collapse_ns, totals.collapse_ns_max, totals.hot_pages),
            (2, 40, 30, 400)
        );
    }
}
