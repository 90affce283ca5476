//! The ledger: what was done to a process, why, and what it cost.
//!
//! There is one file for each managed process, with one JSON object per line: in `/run/hiroma/hot`
//! for root, in `$XDG_RUNTIME_DIR/hiroma` for other users. The manager of a process holds a lock on
//! the file (`flock(2)`), so that there is one manager at a time; anyone who may read the file can
//! explain the process.

mod seldom;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hiroma_policy::huge::{Decision, Reason};
use hiroma_sys::host::dirs;
use hiroma_sys::hot::target;
use hiroma_sys::private::{guarded_dir, private_dir};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::HotError;
use seldom::{Budget, Tracking};

/// Maximum size of a ledger, and of all in a directory together, which is usually in memory; later
/// entries only count in the totals.
const BYTES_MAX: u64 = 16 << 20;
const DIR_BYTES_MAX: u64 = 64 << 20;
/// The directory is looked at after this many bytes.
const CHECK_BYTES: u64 = 64 << 10;

/// The directory of the ledgers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerDir {
    path: PathBuf,
    /// The directory around it, if others use that too.
    around: Option<PathBuf>,
}

impl LedgerDir {
    /// The directory of this user.
    pub fn of_this_user() -> LedgerDir {
        let uid = rustix::process::geteuid().as_raw();
        if uid == 0 {
            return LedgerDir::beside_others(Path::new("/run/hiroma"));
        }
        LedgerDir::at(match dirs::runtime() {
            Some(dir) => dir.join("hiroma"),
            None => PathBuf::from(format!("/tmp/hiroma-{uid}")),
        })
    }

    /// The directory in one that others use, too, and can enter.
    fn beside_others(around: &Path) -> LedgerDir {
        LedgerDir { path: around.join("hot"), around: Some(around.to_owned()) }
    }

    /// A ledger directory at `path`, which has to be private.
    pub fn at(path: impl Into<PathBuf>) -> LedgerDir {
        LedgerDir { path: path.into(), around: None }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn prepare(&self) -> std::io::Result<()> {
        self.around.as_deref().map_or(Ok(()), guarded_dir)?;
        private_dir(&self.path)
    }

    fn file(&self, pid: u32, started: u64) -> PathBuf {
        self.path.join(format!("hot-{pid}-{started}.jsonl"))
    }

    /// The newest ledger of process `pid`, which may have ended.
    fn newest(&self, pid: u32) -> Option<PathBuf> {
        let prefix = format!("hot-{pid}-");
        let entries = fs::read_dir(&self.path).ok()?.flatten();
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
    /// The process executed another program: nothing of its memory, huge pages included, is left.
    Exec { at_ms: u64, command: String },
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
            | Entry::Exec { .. }
            | Entry::End { .. } => {}
        }
    }
}

/// The ledger of a process that is being managed.
#[derive(Debug)]
pub struct Ledger {
    file: Option<File>,
    dir: Option<LedgerDir>,
    written: u64,
    /// Bytes of what was to be written.
    noted: u64,
    /// Whether the directory had room for more when `noted` was this.
    checked: (u64, bool),
    tracking: Tracking,
    budget: Budget,
    totals: Totals,
}

impl Ledger {
    /// A ledger without a file: only the totals.
    pub fn in_memory() -> Ledger {
        Ledger::with(None, None, 0)
    }

    fn with(file: Option<File>, dir: Option<LedgerDir>, written: u64) -> Ledger {
        Ledger {
            file,
            dir,
            written,
            noted: written,
            checked: (written, true),
            tracking: Tracking::none(),
            budget: Budget::default(),
            totals: Totals::default(),
        }
    }

    /// Takes the ledger of process `pid` (started at `started`, see [`target::started_at`]) and
    /// removes those of processes that have ended.
    ///
    /// # Errors
    /// [`HotError::Managed`] if another process holds it.
    pub fn take(dir: &LedgerDir, pid: u32, started: u64) -> Result<Ledger, HotError> {
        let failed = HotError::of(pid, "cannot open its ledger");
        dir.prepare().map_err(|source| HotError::Io {
            pid,
            doing: "cannot make the directory of ledgers",
            source,
        })?;
        let has_room = clear_stale(dir, DIR_BYTES_MAX);
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
        let mut ledger = Ledger::with(Some(file), Some(dir.clone()), written);
        ledger.checked.1 = has_room;
        Ok(ledger)
    }

    /// Appends an entry. If the disk is full, the entry is lost and the work goes on. What tracking
    /// costs is summed and written once a minute; so are changes of the budget, if they are large.
    pub fn note(&mut self, entry: &Entry) {
        self.totals.add(entry);
        match entry {
            Entry::Tracking { at_ms, .. } => {
                self.tracking.add(entry);
                if let Some(sum) = self.tracking.due(false) {
                    self.write(&sum);
                }
                self.note_budget(*at_ms);
            }
            Entry::Budget { at_ms, budget_bytes } => {
                self.budget.change(*budget_bytes);
                self.note_budget(*at_ms);
            }
            Entry::End { .. } => {
                self.flush();
                self.write(entry);
            }
            _ => self.write(entry),
        }
    }

    fn note_budget(&mut self, at_ms: u64) {
        if let Some(budget_bytes) = self.budget.due(at_ms) {
            self.write(&Entry::Budget { at_ms, budget_bytes });
        }
    }

    fn flush(&mut self) {
        if let Some(sum) = self.tracking.due(true) {
            self.write(&sum);
        }
    }

    fn write(&mut self, entry: &Entry) {
        let Some(file) = &mut self.file else { return };
        let mut line = serde_json::to_vec(entry).expect("numbers and text always become JSON");
        line.push(b'\n');
        // What was not written counts too: room may have come since.
        self.noted += line.len() as u64;
        if self.noted >= self.checked.0 + CHECK_BYTES {
            let has_room = self.dir.as_ref().is_none_or(|dir| clear_stale(dir, DIR_BYTES_MAX));
            self.checked = (self.noted, has_room);
        }
        // Beginnings and ends are always recorded, of programs too.
        let room = self.checked.1 && self.written + line.len() as u64 <= BYTES_MAX
            || matches!(entry, Entry::Begin { .. } | Entry::End { .. } | Entry::Exec { .. });
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
        Ledger::read_file(&dir.newest(pid).ok_or(HotError::NoLedger { pid })?, pid)
    }

    /// Reads the ledger of the process `pid` that started at `started`.
    pub fn read_of(dir: &LedgerDir, pid: u32, started: u64) -> Result<Vec<Entry>, HotError> {
        let path = dir.file(pid, started);
        if !path.exists() {
            return Err(HotError::NoLedger { pid });
        }
        Ledger::read_file(&path, pid)
    }

    fn read_file(path: &Path, pid: u32) -> Result<Vec<Entry>, HotError> {
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

impl Drop for Ledger {
    fn drop(&mut self) {
        self.flush();
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
            Entry::Exec { .. } => huge.clear(),
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
/// If all together have more than `bytes_max`, the oldest of ended processes go at once. Returns
/// whether there is room for more.
fn clear_stale(dir: &LedgerDir, bytes_max: u64) -> bool {
    const KEPT: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
    let mut bytes = 0;
    let mut ended = Vec::new();
    for entry in fs::read_dir(&dir.path).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let parsed = name
            .to_str()
            .and_then(|name| name.strip_prefix("hot-")?.strip_suffix(".jsonl")?.split_once('-'));
        let Some((pid, started)) = parsed else { continue };
        let (Ok(pid), Ok(started)) = (pid.parse::<u32>(), started.parse::<u64>()) else { continue };
        let Ok(found) = entry.metadata() else { continue };
        bytes += found.len();
        if target::started_at(pid) != Some(started) {
            let changed = found.modified().unwrap_or(std::time::SystemTime::UNIX_EPOCH);
            ended.push((changed, found.len(), entry.path()));
        }
    }
    ended.sort_unstable();
    for (changed, len, path) in ended {
        let old = changed.elapsed().is_ok_and(|age| age > KEPT);
        if (old || bytes > bytes_max) && fs::remove_file(path).is_ok() {
            bytes -= len;
        }
    }
    bytes <= bytes_max
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
    use std::os::unix::fs::PermissionsExt;

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
        entries.push(Entry::Exec { at_ms: 2, command: "y".into() });
        assert_eq!(huge_ranges(&entries), BTreeMap::new());
        entries.pop();
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

    #[test]
    fn ledgers_are_private_beside_what_others_have() {
        let temp = tempfile::tempdir().unwrap();
        let around = temp.path().join("hiroma");
        fs::create_dir_all(around.join("quiet")).unwrap();
        let with = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        with(&around, 0o755);
        let dir = LedgerDir::beside_others(&around);
        drop(Ledger::take(&dir, 77, 5).unwrap());
        assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
        with(dir.path(), 0o755);
        assert!(Ledger::take(&dir, 77, 5).is_err());
        with(dir.path(), 0o700);
        with(&around, 0o777);
        assert!(Ledger::take(&dir, 77, 5).is_err());
        // The unit makes the same directory.
        let unit = include_str!("../../../contrib/systemd/hiroma-hot.service");
        assert!(unit.contains("\nRuntimeDirectory=hiroma/hot\nRuntimeDirectoryMode=0700\n"));
    }

    #[test]
    fn frequent_entries_are_summed_and_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = LedgerDir::at(dir.path().join("run"));
        let mut ledger = Ledger::take(&dir, 77, 5).unwrap();
        ledger.note(&begin(77));
        let lines = || Ledger::read(&dir, 77).unwrap().len();
        for pass in 0..1200_u64 {
            let at_ms = pass * 100;
            ledger.note(&Entry::Tracking {
                at_ms,
                rounds: 1,
                clear_ns: 2,
                scan_ns: 3,
                count_ns: 4,
                window_ns: 5,
            });
            ledger.note(&Entry::Budget { at_ms, budget_bytes: (100 + pass % 2 * 10) << 20 });
        }
        // In two minutes.
        assert_eq!(lines(), 1 + 2 + 1);
        ledger.note(&Entry::Budget { at_ms: 10, budget_bytes: 10 << 20 });
        assert_eq!(lines(), 4, "within the minute");
        drop(ledger);
        let entries = Ledger::read(&dir, 77).unwrap();
        let totals = Totals::of(&entries);
        assert_eq!(
            (totals.rounds, totals.clear_ns, totals.scan_ns, totals.count_ns),
            (1200, 2400, 3600, 4800)
        );
    }

    #[test]
    fn ended_ledgers_give_way_the_oldest_first() {
        let temp = tempfile::tempdir().unwrap();
        let dir = LedgerDir::at(temp.path().join("run"));
        let own = std::process::id();
        let started = target::started_at(own).unwrap();
        let _ledger = Ledger::take(&dir, own, started).unwrap();
        let now = std::time::SystemTime::now();
        for (pid, age_s) in [(u32::MAX - 1, 10), (u32::MAX - 2, 20), (own, 30)] {
            let started = if pid == own { started } else { 1 };
            let file = File::options().create(true).append(true).open(dir.file(pid, started));
            let mut file = file.unwrap();
            file.write_all(&[b'x'; 100]).unwrap();
            file.set_modified(now - std::time::Duration::from_secs(age_s)).unwrap();
        }
        assert!(clear_stale(&dir, 250));
        assert!(!dir.file(u32::MAX - 2, 1).exists() && dir.file(u32::MAX - 1, 1).exists());
        // What is managed stays.
        assert!(!clear_stale(&dir, 50));
        assert!(dir.file(own, started).exists() && !dir.file(u32::MAX - 1, 1).exists());
    }
}
