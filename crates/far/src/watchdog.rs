//! No fault waits silently: the fault that waits longest is reported on request, and ends the
//! program with a message when it waits too long.
//!
//! A store can depend on the program: a file system that is being frozen (`fsfreeze(8)`, snapshots of
//! volumes and of virtual machines) waits for the program's `write(2)`, that for a page of its buffer,
//! the page for room, and room for a write to a store on the same file system. So where a fault waits
//! for room for too long, some memory beyond the limit is *lent* until blocks leave again.
//!
//! Contract: the watchdog has its own thread, which takes no lock and touches no managed memory; it
//! only reads atomics. So it also detects a thread of the pager that waits forever while it has the
//! lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hiroma_sys::cpu::{self, Cpus};

use crate::config::{Config, FAULT_THREADS_MAX, StoreSpec};
use crate::control::{ControlPage, Counter};
use crate::fatal;
use crate::live::Live;

/// What a fault waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Waits {
    /// Local memory is full, and nothing can be evicted.
    Room = 1,
    /// A block that is being written, discarded or freed.
    Busy = 2,
    /// A read from the store.
    Store = 3,
    /// The fault thread itself: it waits for the pager's lock, or a system call does not return.
    Pager = 4,
}

impl Waits {
    /// Decodes a number in the control page.
    pub fn from_number(number: u32) -> Option<Waits> {
        [Waits::Room, Waits::Busy, Waits::Store, Waits::Pager]
            .into_iter()
            .find(|&waits| waits as u32 == number)
    }
}

/// The fault that waits longest, as reported by a fault thread.
#[derive(Default)]
pub struct Oldest {
    /// When it was read (monotonic clock, ns); 0: no fault waits.
    since: AtomicU64,
    addr: AtomicU64,
    waits: AtomicU32,
    /// When the fault thread began its current round; 0: it sleeps.
    round: AtomicU64,
}

impl Oldest {
    /// Sets the oldest waiting fault.
    pub fn is(&self, since: u64, addr: usize, waits: Waits) {
        self.addr.store(addr as u64, Ordering::Relaxed);
        self.waits.store(waits as u32, Ordering::Relaxed);
        self.since.store(since, Ordering::Release);
    }

    /// No fault waits.
    pub fn none(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Release);
        }
    }

    /// The fault thread has answered all of its faults, and goes to sleep.
    pub fn rests(&self) {
        self.none();
        self.round(0);
    }

    /// The fault thread begins a round at `now`, or (0) goes to sleep.
    pub fn round(&self, now: u64) {
        self.round.store(now, Ordering::Relaxed);
    }

    /// The fault that waits longest, and for how long.
    pub fn waiting(&self, now: u64) -> Option<(Duration, usize, Waits)> {
        let since = self.since.load(Ordering::Acquire);
        let round = self.round.load(Ordering::Relaxed);
        if since != 0 {
            let waits =
                Waits::from_number(self.waits.load(Ordering::Relaxed)).unwrap_or(Waits::Busy);
            let age = Duration::from_nanos(now.saturating_sub(since));
            return Some((age, self.addr.load(Ordering::Relaxed) as usize, waits));
        }
        (round != 0).then(|| (Duration::from_nanos(now.saturating_sub(round)), 0, Waits::Pager))
    }
}

/// One for each fault thread.
#[derive(Default)]
pub struct Oldests([Oldest; FAULT_THREADS_MAX]);

impl Oldests {
    /// The entry of one fault thread.
    pub fn of(&self, index: usize) -> &Oldest {
        &self.0[index]
    }

    /// The fault that waits longest over all threads, and for how long.
    pub fn waiting(&self, now: u64) -> Option<(Duration, usize, Waits)> {
        self.0.iter().filter_map(|oldest| oldest.waiting(now)).max_by_key(|&(age, _, _)| age)
    }
}

/// Checks the oldest fault.
pub struct Watchdog {
    live: Arc<Live>,
    limit: Duration,
    /// Sum of the intervals between consecutive checks at which a fault waited: time in which this
    /// machine was stopped does not count.
    waited: Duration,
    looked: u64,
    told: bool,
    raised: bool,
    /// The processors on which the program may run.
    allowed: Option<Cpus>,
    /// What may be lent, and what had been written when it was last increased.
    lent_bytes_max: usize,
    written_bytes: u64,
}

/// Interval of the checks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After this time a store may be waiting for workers that are last in the queue for a processor.
const WORKERS_LATE: Duration = Duration::from_millis(100);
/// On a machine that was stopped, a check comes late; more than this does not count.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// Memory is lent where a fault has waited for room for this time; and more, after the shorter one.
const LENT_AFTER: Duration = Duration::from_secs(3);
const MORE_LENT_AFTER: Duration = Duration::from_millis(100);
/// Part of the limit that is lent, or this much of a small one; and in how many steps.
const LENT_PART: u64 = 4;
const LENT_BYTES_MIN: u64 = 16 << 20;
const LENT_STEPS: usize = 16;
/// After this time a debug build checks whether a thread of the pager waits for the pager.
const BROKEN_AFTER: Duration = Duration::from_secs(1);

/// The name of a pager thread that waits in a fault on managed memory. While the fault thread waits
/// for the lock, that is the thread that has it.
fn faulting_thread() -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let read = |task: &std::fs::DirEntry, file| {
        std::fs::read_to_string(task.path().join(file)).unwrap_or_default()
    };
    let ours = tasks.filter(|task| read(task, "comm").starts_with("hiroma-"));
    ours.filter(|task| read(task, "wchan").contains("userfault"))
        .map(|task| read(&task, "comm").trim().to_owned())
        .next()
}

impl Watchdog {
    pub fn new(live: Arc<Live>, config: &Config) -> Watchdog {
        // A remote store reports its waits itself, and gives up by itself.
        let is_remote =
            |store: &StoreSpec| matches!(store, StoreSpec::Tcp { .. } | StoreSpec::Redis(_));
        let remote = config.stores.iter().any(is_remote);
        let least =
            if remote { config.store_timeout + Duration::from_secs(10) } else { Duration::ZERO };
        Watchdog {
            live,
            limit: config.fault_timeout.max(least),
            waited: Duration::ZERO,
            looked: cpu::now_ns(),
            told: false,
            raised: false,
            allowed: Cpus::of_this_thread(),
            lent_bytes_max: if config.hard_limit {
                0
            } else {
                (config.local_limit_bytes / LENT_PART).max(LENT_BYTES_MIN) as usize
            },
            written_bytes: 0,
        }
    }

    /// Runs the thread.
    pub fn run(mut self) {
        while !self.live.stopping() {
            std::thread::sleep(LOOK_EVERY);
            self.look();
        }
    }

    fn look(&mut self) {
        let now = cpu::now_ns();
        let passed = Duration::from_nanos(now - self.looked).min(LOOK_MAX);
        self.looked = now;
        let waiting = self.live.oldest.waiting(now);
        self.live.page.set_waiting(waiting);
        let Some((age, addr, waits)) = waiting else {
            self.take_back();
            (self.waited, self.told, self.raised) = (Duration::ZERO, false, false);
            return;
        };
        // Room and busy blocks may be waiting for the store, too.
        if age > WORKERS_LATE && !std::mem::replace(&mut self.raised, true) {
            cpu::raise_ring_workers();
            if let Some(allowed) = &self.allowed {
                self.live.yielding.let_go(allowed);
            }
        }
        // Limited by `age`: this can be another fault than the one that waited before.
        self.waited = (self.waited + passed).min(age);
        let is_broken =
            cfg!(debug_assertions) && waits == Waits::Pager && self.waited > BROKEN_AFTER;
        if let Some(name) = is_broken.then(faulting_thread).flatten() {
            fatal::die(&format!(
                "{name} touched managed memory and holds the pager's lock; please report this"
            ));
        }
        if waits == Waits::Room {
            self.lend();
        }
        if self.waited > self.limit {
            fatal::die(&format!(
                "{}; nothing has changed for {} s, so the program was ended rather than left hanging (--fault-timeout sets how long to wait)",
                describe(addr, waits, &self.live.page),
                self.limit.as_secs()
            ));
        }
        if self.waited > self.limit / 6 && self.waited > Duration::from_secs(2) && !self.told {
            self.told = true;
            fatal::warn(&format!("{}; waiting", describe(addr, waits, &self.live.page)));
        }
    }
}

impl Watchdog {
    /// A fault waits for room.
    fn lend(&mut self) {
        let lent = self.live.lent_bytes.load(Ordering::Relaxed);
        let after = if lent == 0 { LENT_AFTER } else { MORE_LENT_AFTER };
        if self.waited <= after || lent >= self.lent_bytes_max {
            return;
        }
        if lent == 0 {
            fatal::warn(&format!(
                "nothing has left local memory for {} s (is a file system frozen?): up to {} beyond the limit are used until something does",
                LENT_AFTER.as_secs(),
                hiroma_units::Bytes(self.lent_bytes_max as u64)
            ));
        }
        let more = self.lent_bytes_max.div_ceil(LENT_STEPS);
        self.live.lent_bytes.store((lent + more).min(self.lent_bytes_max), Ordering::Relaxed);
        self.written_bytes = self.live.page.get(Counter::WrittenBytes);
        self.live.wake_fault_thread();
    }

    /// No fault waits: if blocks leave again, nothing is lent any more.
    fn take_back(&self) {
        let leaves = self.live.page.get(Counter::WrittenBytes) > self.written_bytes;
        if leaves && self.live.lent_bytes.swap(0, Ordering::Relaxed) > 0 {
            self.live.evict_bell.ring();
        }
    }
}

/// One line that describes what a fault waits for.
pub fn describe(addr: usize, waits: Waits, page: &ControlPage) -> String {
    let bytes = |counter| hiroma_units::Bytes(page.get(counter));
    let what = match waits {
        Waits::Room => format!(
            "room: {} of {} are in use, and nothing leaves ({} of that locked, pinned or unreadable)",
            bytes(Counter::LocalBytes),
            bytes(Counter::LimitBytes),
            hiroma_units::Bytes(page.held_bytes())
        ),
        Waits::Busy => "its block, which is being written or discarded".to_owned(),
        Waits::Store => "the store".to_owned(),
        Waits::Pager => "the pager's lock, or for the kernel".to_owned(),
    };
    if waits == Waits::Pager {
        format!("the fault thread waits for {what}")
    } else {
        format!("a fault at {addr:#x} waits for {what}")
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use hiroma_units::EXTENT;

    use crate::config::parse_stores;
    use crate::discard::tests::fill;
    use crate::{Config, Pager};

    use super::{Oldests, Waits};

    const VICTIM: &str = "HIROMA_WATCHDOG_VICTIM";

    #[test]
    fn idle_fault_thread_reports_no_fault() {
        let oldests = Oldests::default();
        oldests.of(1).round(5);
        oldests.of(1).is(5, 0x1000, Waits::Store);
        assert!(oldests.waiting(9).is_some_and(|(_, addr, _)| addr == 0x1000));
        oldests.of(1).rests();
        assert!(oldests.waiting(u64::MAX).is_none());
    }

    /// A thread of the pager breaks the rule: it touches managed memory while it has the lock.
    #[test]
    fn victim() {
        if std::env::var_os(VICTIM).is_none() {
            return;
        }
        let stores = parse_stores("compressed:64M").unwrap();
        let fault_timeout = Duration::from_secs(3);
        let pager = Pager::start(Config {
            local_limit_bytes: 16 << 20,
            stores,
            fault_timeout,
            ..Config::default()
        })
        .unwrap();
        let addr = pager.map(EXTENT, EXTENT).unwrap();
        fill(addr);
        pager.evict_all().unwrap();
        let core = pager.core.clone();
        let breaks_it = move || {
            let _core = core.lock();
            hiroma_sys::vm::touch(addr, EXTENT);
        };
        std::thread::Builder::new()
            .name("hiroma-evil".to_owned())
            .spawn(breaks_it)
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn touching_managed_memory_under_lock_ends_the_process() {
        let mut victim = Command::new(std::env::current_exe().unwrap());
        let ended = victim
            .args(["--exact", "watchdog::tests::victim", "--nocapture"])
            .env(VICTIM, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(crate::fatal::EXIT_CODE), "{said}");
        let wanted = if cfg!(debug_assertions) {
            "hiroma-evil touched managed memory"
        } else {
            "waits for the pager's lock"
        };
        assert!(said.contains(wanted), "{said}");
    }
}
