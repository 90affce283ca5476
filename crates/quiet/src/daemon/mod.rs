//! The daemon: observes the machine, consults the controller, reclaims in batches, logs why, and
//! restores everything at the end.

mod behind;
mod observe;
mod pauses;
mod spare;
mod state;
mod wait;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use hiroma_metrics::Endpoint;
use hiroma_policy::reclaim::{
    Batch, BatchEnd, Controller, Go, Next, PAGE_BYTES, Reason, Refusals, Refused, Settings, Verdict,
};
use hiroma_sys::cpu::{now_ns, thread_ns};
use hiroma_sys::host;
use hiroma_sys::quiet::affinity;
use hiroma_sys::quiet::files;
use hiroma_sys::quiet::memory;
use hiroma_sys::quiet::reclaim::{Mechanism, Reclaimed, is_final};
use hiroma_sys::quiet::tasks;

use crate::error::QuietError;
use crate::groups::Groups;
use crate::metrics::Metrics;
use crate::settings::{load, path, save, show};
use behind::Behind;
use observe::Observer;
use pauses::{Pauses, Telling};
use spare::Spare;
pub use state::{Lock, Pins, restore};
use wait::Changes;

/// Receives the messages for the administrator.
pub type Log = Box<dyn FnMut(&str)>;

/// The state directory of the machine's daemon.
pub const STATE: &str = "/run/hiroma/quiet";

/// Low priority, but not idle: reclaim in `SCHED_IDLE` would come too late.
const NICE: i32 = 10;
/// How often to check for a stop that arrived just before the wait began.
const WAKE_NS: u64 = 500_000_000;
/// After this many batches that the kernel reported as done without reclaiming anything, no more
/// are requested.
const HOLLOW_MAX: u32 = 3;
/// How often control groups are looked at.
const GROUPS_NS: u64 = 60_000_000_000;
/// Maximum interval between reports of what was reclaimed.
const ACCOUNT_NS: u64 = 10_000_000_000;

/// Options of the daemon.
pub struct Options {
    /// Directory for the lock, the settings, and what has to be put back.
    pub state: PathBuf,
    /// Processors reserved for programs; kswapd, kcompactd and the daemon keep off them. Empty if
    /// there are none.
    pub app_cpus: Vec<usize>,
    /// Report what would be done, and do nothing.
    pub dry_run: bool,
    /// The address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    pub log: Log,
}

/// The daemon.
pub struct Daemon {
    log: Log,
    state: PathBuf,
    dry_run: bool,
    controller: Controller,
    observer: Observer,
    looked: Looked,
    changes: Changes,
    reclaim: Option<Mechanism>,
    refusals: Refusals,
    /// Batches in a row that the kernel reported as done without reclaiming anything.
    hollow: u32,
    accounts: Vec<Account>,
    /// Drops behind streams; none if the rights for that are missing.
    behind: Option<Behind>,
    /// The dropped bytes at the last report, and when it was.
    told_behind: (u64, u64),
    /// Compaction under way: it can take seconds, in which the cache fills.
    compacting: Option<JoinHandle<io::Result<()>>>,
    /// Already reported that `compact` failed.
    cannot_compact: bool,
    /// Where reclaim runs, unless that was said.
    spare: Option<Spare>,
    /// When control groups were looked at, and what they said.
    groups: (u64, Groups),
    metrics: Metrics,
    _endpoint: Option<Endpoint>,
    /// The order matters: threads are released before the lock is.
    _pins: Pins,
    _lock: Lock,
}

/// The last observation: its time, the free memory then, and when the next is due.
struct Looked {
    at_ns: u64,
    free_pages: u64,
    next: Next,
}

/// What was done on a node since the last report, and why nothing is done now.
struct Account {
    node: u32,
    last: Reason,
    pauses: Pauses,
    why: Option<Reason>,
    since_ns: u64,
    got_pages: u64,
    batches: u64,
    cpu_ns: u64,
}

/// The means to drop what streams leave in the page cache, if this daemon has the rights for it.
fn find_behind(
    can_reclaim: bool,
    log: &mut impl FnMut(&str),
    reasons: &mut Vec<String>,
) -> Option<Behind> {
    if let Some(reason) = files::obstacle() {
        reasons.push(reason);
        return None;
    }
    let when = if can_reclaim { "where reclaim is of no use" } else { "in its place" };
    log(&format!(
        "mechanism {when}: fadvise, behind programs that read or write files from one end to the other"
    ));
    Some(Behind::default())
}

impl Daemon {
    /// Finds out what the machine supports, restores what a killed daemon left, and confines the
    /// kernel's reclaiming threads.
    pub fn start(options: Options) -> Result<Daemon, QuietError> {
        let Options { state, app_cpus, dry_run, metrics: address, mut log } = options;
        let lock = Lock::take(&state)?;
        restore(&state, &lock)?
            .iter()
            .for_each(|line| log(&format!("a daemon that was killed is tidied up after: {line}")));
        let settings = load(&state)?;
        save(&state, &settings)?;
        let all = affinity::of(0).map_err(QuietError::Machine)?;
        let housekeeping: Vec<usize> =
            all.iter().copied().filter(|cpu| !app_cpus.contains(cpu)).collect();
        if housekeeping.is_empty() {
            return Err(QuietError::NoHousekeeping { list: affinity::show_list(&app_cpus) });
        }
        let mut observer = Observer::new(&housekeeping).map_err(QuietError::Machine)?;
        let first = observer.look(now_ns(), true, 0).map_err(QuietError::Machine)?;
        let nodes: Vec<u32> = first.nodes.iter().map(|node| node.id).collect();
        let (reclaim, mut reasons) = match Mechanism::probe(Path::new("/"), &nodes) {
            Ok(mechanism) => (Some(mechanism), Vec::new()),
            Err(reasons) => (None, reasons),
        };
        match &reclaim {
            Some(mechanism) if settings.early_reclaim == 0 => {
                log(&format!("not used, as early_reclaim is off: {mechanism}"))
            }
            Some(mechanism) => log(&format!("mechanism: {mechanism}")),
            None => log(&format!("no early reclaim: {}", reasons.join("; "))),
        }
        let mut pins = Pins::new(&state);
        let pinned = if app_cpus.is_empty() {
            reasons.push("kswapd is left where it is: no --app-cpus".to_owned());
            false
        } else {
            pin(&mut pins, &housekeeping, dry_run, &mut log, &mut reasons)
        };
        let behind = find_behind(reclaim.is_some(), &mut log, &mut reasons);
        if reclaim.is_none() && behind.is_none() && !pinned && !dry_run {
            return Err(QuietError::NoMechanism(reasons.join("\n")));
        }
        if !dry_run {
            keep_off(&housekeeping, &app_cpus, &mut log);
        }
        let metrics = Metrics::default();
        for name in ["node_reclaim", "memory_reclaim"] {
            metrics.mechanism(
                name,
                !dry_run && reclaim.as_ref().is_some_and(|mechanism| mechanism.name() == name),
            );
        }
        metrics.mechanism("affinity", pinned);
        metrics.mechanism("fadvise", !dry_run && behind.is_some());
        let endpoint = address.map(|address| open(address, &metrics, &mut log)).transpose()?;
        let controller = Controller::new(settings, now_ns());
        let looked = Looked { at_ns: 0, free_pages: 0, next: controller.next() };
        let changes = Changes::of(path(&state));
        let mut daemon = Daemon {
            log,
            state,
            dry_run,
            controller,
            observer,
            looked,
            changes,
            reclaim,
            refusals: Refusals::new(),
            hollow: 0,
            accounts: Vec::new(),
            behind,
            told_behind: (0, now_ns()),
            compacting: None,
            cannot_compact: false,
            spare: (app_cpus.is_empty() && !dry_run).then(|| Spare::new(all)),
            groups: (now_ns(), Groups::read()),
            metrics,
            _endpoint: endpoint,
            _pins: pins,
            _lock: lock,
        };
        daemon.decide(now_ns())?;
        Ok(daemon)
    }

    /// Serves until `stop` is set.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), QuietError> {
        let mut look_at = now_ns();
        while !stop.load(Ordering::Relaxed) {
            if self.changes.any() {
                self.take_settings();
                look_at = now_ns();
            }
            let now = now_ns();
            if now < look_at {
                self.changes.wait((look_at - now).min(WAKE_NS));
                continue;
            }
            if self.may_rest(now) {
                look_at = now + self.controller.settings().poll_ns;
                continue;
            }
            let verdicts = self.decide(now)?;
            if verdicts.iter().any(|verdict| verdict.reclaim_pages > 0 || verdict.behind) {
                if let Some(spare) = &mut self.spare {
                    spare.mind(&mut self.log);
                }
            }
            self.drop_behind(now, &verdicts);
            self.watch_groups(now);
            for verdict in verdicts {
                self.act(verdict, stop);
            }
            look_at = now + self.looked.next.after_ns;
        }
        self.account(now_ns(), true);
        Ok(())
    }

    /// Whether too little can have changed since the last observation to justify another one.
    fn may_rest(&self, now: u64) -> bool {
        let Looked { at_ns, free_pages, next } = &self.looked;
        let changed = (host::memory::free().0 / PAGE_BYTES).abs_diff(*free_pages);
        changed < next.changed_pages && now < at_ns.saturating_add(next.latest_ns)
    }

    fn decide(&mut self, now: u64) -> Result<Vec<Verdict>, QuietError> {
        let free_pages = host::memory::free().0 / PAGE_BYTES;
        let filling = self
            .accounts
            .iter()
            .any(|account| !matches!(account.last, Reason::First | Reason::Calm { .. }));
        let dropped_pages = self.behind.as_ref().map_or(0, Behind::dropped_bytes) / PAGE_BYTES;
        let seen = self.observer.look(now, filling, dropped_pages).map_err(QuietError::Machine)?;
        let verdicts = self.controller.observe(now, &seen);
        self.looked = Looked { at_ns: now, free_pages, next: self.controller.next() };
        self.account(now, false);
        for verdict in &verdicts {
            self.note(verdict.node, verdict.reason);
            self.metrics.verdict(
                verdict.node,
                &verdict.reason,
                self.controller.fill_s(verdict.node),
            );
        }
        Ok(verdicts)
    }

    /// Drops the cache behind streams, if that was decided, or if nothing else is possible.
    fn drop_behind(&mut self, now: u64, verdicts: &[Verdict]) {
        let Some(behind) = self.behind.as_mut().filter(|_| !self.dry_run) else { return };
        let alone = |node: u32| self.reclaim.is_none() || !self.refusals.may_ask(node, now);
        let wanted =
            |verdict: &Verdict| verdict.behind || verdict.reclaim_pages > 0 && alone(verdict.node);
        let before = behind.dropped_bytes();
        behind.step(now, verdicts.iter().any(wanted)).iter().for_each(|line| (self.log)(line));
        self.metrics.dropped(behind.dropped_bytes() - before);
    }

    /// Reports what was dropped behind streams: periodically, and at the end.
    fn account_behind(&mut self, now: u64, all: bool) {
        let bytes = self.behind.as_ref().map_or(0, Behind::dropped_bytes);
        let (told_bytes, since_ns) = self.told_behind;
        if bytes == told_bytes {
            self.told_behind.1 = now;
        } else if all || now.saturating_sub(since_ns) >= ACCOUNT_NS {
            let passed_ms = now.saturating_sub(since_ns) / 1_000_000;
            (self.log)(&format!(
                "dropped {} MiB behind streams within {passed_ms} ms",
                (bytes - told_bytes) >> 20
            ));
            self.told_behind = (bytes, now);
        }
    }

    /// Reports control groups that reclaim by themselves: nothing here can keep them from it.
    fn watch_groups(&mut self, now: u64) {
        let (looked_ns, before) = &self.groups;
        if now.saturating_sub(*looked_ns) < GROUPS_NS {
            return;
        }
        let seconds = (now - looked_ns) / 1_000_000_000;
        let groups = Groups::read();
        for (path, hits) in groups.often_since(before) {
            (self.log)(&format!(
                "the control group {} reached its own limit {hits} times within {seconds} s: it reclaims whatever the machine has free; only a higher limit helps",
                path.display()
            ));
        }
        self.groups = (now, groups);
    }

    /// Carries out a verdict, batch by batch.
    fn act(&mut self, verdict: Verdict, stop: &AtomicBool) {
        if self.dry_run {
            return;
        }
        if verdict.compact {
            self.compact(verdict.node);
        }
        let Some(reclaim) = self.reclaim.clone() else { return };
        if !self.refusals.may_ask(verdict.node, now_ns()) {
            return;
        }
        let mut next = verdict.batch_pages;
        while next > 0 && !stop.load(Ordering::Relaxed) {
            let (before, began, cpu) = (self.observer.stolen(&reclaim), now_ns(), thread_ns());
            let end = match reclaim.ask(verdict.node, next * PAGE_BYTES) {
                Ok(Reclaimed::Whole) => BatchEnd::Whole,
                Ok(Reclaimed::Short) => BatchEnd::Short,
                Err(error) => return self.refused(verdict.node, &error),
            };
            if self.refusals.accepted(verdict.node) {
                (self.log)(&format!("node {}: early reclaim works again", verdict.node));
            }
            let (took_ns, cpu_ns) = (now_ns() - began, thread_ns() - cpu);
            // Often more than requested (Linux 6.18: twice as much), so that less is left to
            // request.
            let got_pages = match (before, self.observer.stolen(&reclaim)) {
                (Some(before), Some(after)) => after.saturating_sub(before),
                _ if end == BatchEnd::Whole => next,
                _ => 0,
            };
            self.hollow =
                if end == BatchEnd::Whole && got_pages == 0 { self.hollow + 1 } else { 0 };
            if self.hollow >= HOLLOW_MAX {
                return self.give_up(&format!("{reclaim} answers success and does nothing"));
            }
            if let Some(account) =
                self.accounts.iter_mut().find(|account| account.node == verdict.node)
            {
                account.why.get_or_insert(verdict.reason);
                (account.got_pages, account.batches, account.cpu_ns) =
                    (account.got_pages + got_pages, account.batches + 1, account.cpu_ns + cpu_ns);
            }
            self.metrics.batch(verdict.node, got_pages, cpu_ns);
            let batch =
                Batch { node: verdict.node, asked_pages: next, got_pages, took_ns, cpu_ns, end };
            next = match self.controller.batch_done(now_ns(), batch) {
                Go::On(pages) => pages,
                Go::Stop(reason) => {
                    if reason.is_notable() {
                        self.note(verdict.node, reason);
                    }
                    0
                }
            };
        }
    }

    /// The kernel refused to reclaim on a node: for good, or for now.
    fn refused(&mut self, node: u32, error: &io::Error) {
        match self.refusals.refused(node, now_ns(), is_final(error)) {
            Refused::GiveUp => self.give_up(&format!("node {node}: {error}")),
            Refused::Pause { is_news: true } => (self.log)(&format!(
                "node {node}: {error}: no early reclaim there for now; it is tried again every minute"
            )),
            Refused::Pause { is_news: false } => {}
        }
    }

    /// Stops early reclaim for good.
    fn give_up(&mut self, why: &str) {
        (self.log)(&format!("{why}: no more early reclaim until the daemon is started again"));
        if let Some(mechanism) = self.reclaim.take() {
            self.metrics.mechanism(mechanism.name(), false);
        }
    }

    fn compact(&mut self, node: u32) {
        if self.cannot_compact
            || self.compacting.as_ref().is_some_and(|thread| !thread.is_finished())
        {
            return;
        }
        if let Some(Ok(Err(error))) = self.compacting.take().map(JoinHandle::join) {
            (self.log)(&format!("no compaction: {error}"));
            self.cannot_compact = true;
            return;
        }
        self.metrics.compaction(node);
        // It runs on the daemon's processors, with its nice value.
        let thread = thread::Builder::new().name("hiroma-compact".to_owned());
        self.compacting = thread.spawn(move || memory::compact(Path::new("/"), node)).ok();
    }

    /// Logs why something is done or not, when that has changed and matters.
    fn note(&mut self, node: u32, reason: Reason) {
        let now = now_ns();
        let Some(account) = self.accounts.iter_mut().find(|account| account.node == node) else {
            self.accounts.push(Account {
                node,
                last: reason,
                pauses: Pauses::default(),
                why: None,
                since_ns: now,
                got_pages: 0,
                batches: 0,
                cpu_ns: 0,
            });
            return;
        };
        let is_new = !account.last.is_like(&reason);
        account.last = reason;
        let would = if self.dry_run { "(dry run) " } else { "" };
        match account.pauses.note(now, &reason) {
            Telling::Usual => {}
            Telling::Nothing => return,
            Telling::End(text) => return (self.log)(&format!("node {node}: {would}{text}")),
        }
        // Reclaim is reported later, with its amount.
        let told_later = matches!(reason, Reason::Filling { .. } | Reason::FillingBusy { .. })
            && !self.dry_run
            && self.reclaim.is_some();
        if is_new && reason.is_notable() && !told_later {
            (self.log)(&format!("node {node}: {would}{reason}"));
        }
    }

    /// Reports what was reclaimed and why: periodically, and when it is over.
    fn account(&mut self, now: u64, all: bool) {
        self.account_behind(now, all);
        for account in &mut self.accounts {
            let going_on = matches!(
                account.last,
                Reason::Filling { .. } | Reason::Enough { .. } | Reason::FillingBusy { .. }
            );
            let due = all || !going_on || now.saturating_sub(account.since_ns) >= ACCOUNT_NS;
            if account.batches == 0 {
                account.since_ns = now;
            } else if due {
                let why =
                    account.why.take().map_or(String::new(), |why| format!(", because {why}"));
                (self.log)(&format!(
                    "node {}: reclaimed {} MiB in {} batches and {} ms of processor time within {} ms{why}",
                    account.node,
                    (account.got_pages * PAGE_BYTES) >> 20,
                    account.batches,
                    account.cpu_ns / 1_000_000,
                    now.saturating_sub(account.since_ns) / 1_000_000,
                ));
                (account.got_pages, account.batches, account.cpu_ns, account.since_ns) =
                    (0, 0, 0, now);
            }
        }
    }

    /// Adopts changed settings. If they are damaged, logs that and keeps the previous ones.
    fn take_settings(&mut self) {
        match load(&self.state) {
            Ok(settings) => {
                changes(self.controller.settings(), &settings)
                    .iter()
                    .for_each(|line| (self.log)(line));
                self.controller.set_settings(settings);
            }
            Err(error) => {
                (self.log)(&format!("settings stay as they are: {error}"));
                // Rewrite them, so that it is logged once.
                let _ = save(&self.state, self.controller.settings());
            }
        }
    }
}

/// Serves metrics at an address.
fn open(address: SocketAddr, metrics: &Metrics, log: &mut Log) -> Result<Endpoint, QuietError> {
    let endpoint = Endpoint::open(address, metrics.registry())
        .map_err(|source| QuietError::Metrics { address, source })?;
    log(&format!("metrics are at http://{}/metrics", endpoint.address()));
    Ok(endpoint)
}

/// Confines kswapd and kcompactd to the housekeeping processors. Returns whether any was confined.
fn pin(
    pins: &mut Pins,
    housekeeping: &[usize],
    dry_run: bool,
    log: &mut Log,
    reasons: &mut Vec<String>,
) -> bool {
    let list = affinity::show_list(housekeeping);
    let mut any = false;
    for task in tasks::reclaimers().iter().filter(|task| task.kind != tasks::TaskKind::Khugepaged) {
        if dry_run {
            log(&format!("(dry run) {} would be confined to processors {list}", task.name));
            continue;
        }
        match pins.confine(task.tid, &task.name, housekeeping) {
            Ok(()) => {
                log(&format!("{} is confined to processors {list}", task.name));
                any = true;
            }
            Err(reason) => {
                log(&format!("{reason}: it stays where it is"));
                reasons.push(reason);
            }
        }
    }
    any
}

/// Makes the daemon yield: to programs on their processors, and to others on the rest.
fn keep_off(housekeeping: &[usize], app_cpus: &[usize], log: &mut Log) {
    if !app_cpus.is_empty() {
        if let Err(error) = affinity::confine(0, housekeeping) {
            log(&format!(
                "the daemon cannot be confined to processors {}: {error}",
                affinity::show_list(housekeeping)
            ));
        }
    } else if housekeeping.len() == 1 {
        log(
            "there is one processor only: reclaim takes its time from programs, sooner rather than later",
        );
    }
    if let Err(error) = affinity::be_nice(NICE) {
        log(&format!("the daemon cannot be made nice: {error}"));
    }
}

fn changes(before: &Settings, after: &Settings) -> Vec<String> {
    let pairs = before.all().into_iter().zip(after.all());
    let changed = pairs.filter(|(before, after)| before.1 != after.1);
    changed
        .map(|(before, after)| {
            format!(
                "{} is {} now, was {}",
                after.0,
                show(after.0, after.1),
                show(before.0, before.1)
            )
        })
        .collect()
}
