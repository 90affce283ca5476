//! The engine on a real process: this one, with a thread that touches some of its memory
//! repeatedly.

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hiroma_hot::ledger::Entry;
use hiroma_hot::{Backend, Engine, HotError, Ledger, LedgerDir, Options, State};
use hiroma_policy::huge::{Settings, Window};
use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_sys::hot::target::{Advice, Span, Target};
use hiroma_sys::vm::{Access, Advise, Reservation, touch};
use hiroma_sys::workload::Region;
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

const LIMIT: Duration = Duration::from_secs(60);
const RANGES: usize = 12;
const HOT: usize = 4;

/// Memory of which the first ranges are touched all the time.
struct Load {
    memory: Arc<Reservation>,
    stop: Arc<AtomicBool>,
    /// The first range that is kept hot.
    first_hot: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Makes the first `pages` pages of every range present; those of the first [`HOT`] ranges are
    /// kept hot.
    fn start(pages: usize) -> Load {
        Load::with(pages, 1)
    }

    /// The same; of what is present only one in `step` pages is kept hot.
    fn with(pages: usize, step: usize) -> Load {
        let memory =
            Arc::new(Reservation::new(RANGES * EXTENT, EXTENT, Access::ReadWrite).unwrap());
        let each = move |memory: &Reservation, ranges: Range<usize>| {
            for range in ranges {
                let base = memory.base() + range * EXTENT;
                match step {
                    1 => touch(base, pages * PAGE),
                    _ => (0..pages).step_by(step).for_each(|page| touch(base + page * PAGE, PAGE)),
                }
            }
        };
        (0..RANGES).for_each(|range| touch(memory.base() + range * EXTENT, pages * PAGE));
        let stop = Arc::new(AtomicBool::new(false));
        let first_hot = Arc::new(AtomicUsize::new(0));
        let (shared, stopped, first) = (memory.clone(), stop.clone(), first_hot.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                each(&shared, first.load(Ordering::Relaxed)..HOT);
                thread::yield_now();
            }
        });
        Load { memory, stop, first_hot, thread: Some(thread) }
    }

    fn range(&self, index: usize) -> u64 {
        (self.memory.base() / EXTENT + index) as u64
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Options for tests, independent of the machine's speed.
fn options(ledger: Option<LedgerDir>) -> Options {
    let settings = Settings { growth_ppm: 1_000_000, ..Settings::default() };
    Options {
        settings,
        cpu_ppm: 500_000,
        slowdown_ppm: 500_000,
        stall_ns: u64::MAX,
        // What others do on the machine does not matter.
        waits_for_calm: false,
        backend: Some(Backend::Bpf),
        ledger,
        ..Options::default()
    }
}

/// An engine on this process; none, with a line that states the reason, where that is not possible.
fn engine(options: Options) -> Option<Engine> {
    if hiroma_hot::machine::thp_setting().as_deref() == Some("always") {
        hiroma_testkit::skip!(
            Machine,
            "with transparent huge pages set to always everything is huge from the start"
        );
        return None;
    }
    any_engine(options)
}

/// The same, also where everything is huge from the start.
fn any_engine(options: Options) -> Option<Engine> {
    match Engine::new(std::process::id(), options, now_ns()) {
        Ok(engine) => Some(engine),
        Err(
            error @ (HotError::NoBackend { .. }
            | HotError::NoHugePages { .. }
            | HotError::NotPermitted { .. }),
        ) => {
            hiroma_testkit::skip!(Machine, "{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The clock of all engines in these tests.
fn now_ns() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Steps until `done` returns true.
fn run(engine: &mut Engine, mut done: impl FnMut(&Engine) -> bool) {
    let began = Instant::now();
    while !done(engine) {
        assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {:?}", engine.ledger().totals());
        let step = engine.step(now_ns()).unwrap();
        // One of a survey and one of a pass at most: no step takes long.
        assert!(step.collapsed <= 2, "{} at once", step.collapsed);
        let wait = step.next_ns.saturating_sub(now_ns());
        thread::sleep(Duration::from_nanos(wait.min(20_000_000)));
    }
}

fn huge(engine: &Engine, load: &Load) -> BTreeSet<usize> {
    (0..RANGES)
        .filter(|&index| engine.heat().range(load.range(index)).is_some_and(|heat| heat.huge))
        .collect()
}

// One process has one set of accessed bits: the engine's tests run one after another.
#[test]
fn a_process_is_managed() {
    only_hot_ranges_become_huge();
    sparse_ranges_are_left_for_regrouping();
    read_only_pages_count_as_added_memory();
    a_dry_run_changes_nothing();
    a_second_manager_is_refused();
    cold_ranges_are_split_after_a_sleep();
    huge_pages_of_others_stay();
    freed_ranges_are_no_longer_counted();
    a_budget_with_room_is_like_none();
}

fn only_hot_ranges_become_huge() {
    let load = Load::start(PAGES_PER_EXTENT);
    let Some(mut engine) = engine(options(None)) else { return };
    let wanted: BTreeSet<usize> = (0..HOT).collect();
    run(&mut engine, |engine| wanted.is_subset(&huge(engine, &load)));
    run(&mut engine, |engine| engine.passes() >= 8);
    assert_eq!(huge(&engine, &load), wanted);
    assert!(engine.usage().huge_bytes >= (HOT * EXTENT) as u64);
    // A smaller budget releases huge pages.
    engine.set_budget(EXTENT as u64, 0);
    run(&mut engine, |engine| engine.usage().huge_bytes <= EXTENT as u64);
    engine.undo(0).unwrap();
    assert_eq!(engine.usage().huge_bytes, 0);
}

fn sparse_ranges_are_left_for_regrouping() {
    let load = Load::start(32);
    let Some(mut engine) = engine(options(None)) else { return };
    let wanted: BTreeSet<u64> = (0..HOT).map(|index| load.range(index) * EXTENT as u64).collect();
    run(&mut engine, |engine| wanted.is_subset(&engine.regroup().collect()));
    assert_eq!(huge(&engine, &load), BTreeSet::new());
    let mut active = Vec::new();
    engine.active_pages(&mut active);
    let of_first =
        active.iter().filter(|page| page.address / EXTENT as u64 == load.range(0)).count();
    // A window can end in the middle of a round of touches; an absent page is never hot.
    assert!((1..=32).contains(&of_first), "{of_first}");
}

fn read_only_pages_count_as_added_memory() {
    // Half of each range was written, and all of it is read repeatedly: the rest maps the shared
    // zero page.
    const WRITTEN: usize = PAGES_PER_EXTENT / 2;
    let load = Load::start(WRITTEN);
    let region = Region::adopt(load.memory.base(), load.memory.len()).unwrap();
    (0..RANGES).for_each(|range| {
        (0..WRITTEN).for_each(|page| region.write(range * EXTENT + page * PAGE, &[1]))
    });
    let Some(mut engine) = engine(Options { settings: Settings::default(), ..options(None) })
    else {
        return;
    };
    let read_all = || {
        for page in 0..RANGES * PAGES_PER_EXTENT {
            let _ = std::hint::black_box(region.read(page * PAGE));
        }
    };
    let run_until = |engine: &mut Engine, done: &dyn Fn(&Engine) -> bool| {
        run(engine, |engine| {
            read_all();
            done(engine)
        });
    };
    run_until(&mut engine, &|engine| engine.passes() >= 12);
    let present = |engine: &Engine, index: usize| {
        engine.heat().range(load.range(index)).map_or(0, |heat| bits_set(&heat.present))
    };
    assert_eq!(
        (0..RANGES).map(|index| present(&engine, index)).collect::<Vec<u32>>(),
        [WRITTEN as u32; RANGES]
    );
    assert_eq!((huge(&engine, &load), engine.grown_bytes()), (BTreeSet::new(), 0));
    // Where growth is allowed, it is counted.
    let added = (RANGES * (PAGES_PER_EXTENT - WRITTEN) * PAGE) as u64;
    engine.change_settings(|settings| settings.growth_ppm = 1_000_000);
    run_until(&mut engine, &|engine| huge(engine, &load).len() == RANGES);
    let grown = engine.grown_bytes();
    assert!(grown >= added, "{grown} of {added}");
    // Splitting frees the added memory or does not (before Linux 6.12); the engine knows which.
    engine.set_budget(0, 0);
    let passes = engine.passes();
    run_until(&mut engine, &|engine| {
        huge(engine, &load).is_empty() && engine.passes() > passes + 3
    });
    let missing: u64 = (0..RANGES)
        .map(|index| (PAGES_PER_EXTENT as u64 - u64::from(present(&engine, index))) * PAGE as u64)
        .sum();
    assert!(
        engine.grown_bytes() <= grown - missing && (missing > 0 || engine.grown_bytes() == grown),
        "{grown}, {missing}"
    );
    println!("of {added} bytes that collapsing added {missing} came back");
}

fn bits_set(bits: &[u64]) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

fn a_dry_run_changes_nothing() {
    let load = Load::start(PAGES_PER_EXTENT);
    let Some(mut engine) = engine(Options { dry_run: true, ..options(None) }) else { return };
    run(&mut engine, |engine| engine.ledger().totals().collapses >= HOT as u64);
    let passes = engine.passes();
    run(&mut engine, |engine| engine.passes() >= passes + 2);
    assert_eq!(huge(&engine, &load), BTreeSet::new());
}

fn a_second_manager_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = LedgerDir::at(dir.path().join("run"));
    let Some(first) = engine(options(Some(dir.clone()))) else { return };
    let second = Engine::new(std::process::id(), options(Some(dir.clone())), 0);
    let Err(error) = second else { panic!("two managers on one process") };
    assert!(
        matches!(error, HotError::Managed { manager, .. } if manager == std::process::id()),
        "{error}"
    );
    drop(first.finish(0, "asked to"));
    assert!(engine(options(Some(dir))).is_some());
}

fn cold_ranges_are_split_after_a_sleep() {
    let load = Load::start(PAGES_PER_EXTENT);
    // It settles only when nothing was left to do for a while.
    let window = Window::fixed(20_000_000);
    // With a budget that is soon used up, huge pages that are not in use are wanted elsewhere.
    let settings = Settings { budget_bytes: 60 * EXTENT as u64, ..options(None).settings };
    let waking = Options {
        settings,
        collapse_ppm: 0,
        recheck_ns: Some(1),
        recheck_ranges: 2,
        quiet_passes: 2,
        window,
        ..options(None)
    };
    let Some(mut engine) = engine(waking) else { return };
    let hot = |first: usize| (first..HOT).collect::<BTreeSet<usize>>();
    // Every check after that splits two ranges for a short time, so the set of huge ranges
    // fluctuates.
    run(&mut engine, |engine| huge(engine, &load) == hot(0));
    run(&mut engine, |engine| engine.ledger().totals().checks >= HOT as u64);
    run(&mut engine, |engine| huge(engine, &load) == hot(0));
    load.first_hot.store(2, Ordering::Relaxed);
    run(&mut engine, |engine| huge(engine, &load) == hot(2));
    // It stays so while checks go on: windows from before the change may have made one huge again
    // for a moment.
    let checks = engine.ledger().totals().checks;
    let mut cold_since = None;
    run(&mut engine, |engine| {
        let cold = huge(engine, &load).is_subset(&hot(2));
        cold_since = if cold { cold_since.or(Some(engine.passes())) } else { None };
        engine.ledger().totals().checks >= checks + 2
            && cold_since.is_some_and(|since| engine.passes() >= since + 8)
    });
}

fn huge_pages_of_others_stay() {
    const THEIRS: usize = 4;
    let memory = Reservation::new(THEIRS * EXTENT, EXTENT, Access::ReadWrite).unwrap();
    hiroma_sys::vm::fill(memory.base(), memory.len(), 1);
    let whole = Span { start: memory.base() as u64, len: memory.len() as u64 };
    let own = std::process::id();
    if let Err(error) = Target::open(own).unwrap().advise(&[whole], Advice::Collapse) {
        return hiroma_testkit::skip!(Machine, "this machine makes no huge page now: {error}");
    }
    let first = (memory.base() / EXTENT) as u64;
    let pagemap = Pagemap::open(own).unwrap();
    let are_huge = || pagemap.huge(first, first + THEIRS as u64);
    match are_huge() {
        Ok(huge) => assert!(huge),
        Err(error) => return hiroma_testkit::skip!(Machine, "no PAGEMAP_SCAN: {error}"),
    }
    for dry_run in [true, false] {
        let Some(mut engine) = any_engine(Options { dry_run, ..options(None) }) else { return };
        let began = Instant::now();
        run(&mut engine, |engine| began.elapsed() > Duration::from_secs(2) && engine.passes() >= 4);
        assert!(are_huge().unwrap(), "dry run: {dry_run}");
    }
}

fn freed_ranges_are_no_longer_counted() {
    let load = Load::start(PAGES_PER_EXTENT);
    let Some(mut engine) = engine(options(None)) else { return };
    let wanted: BTreeSet<usize> = (0..HOT).collect();
    run(&mut engine, |engine| wanted.is_subset(&huge(engine, &load)));
    let held = engine.usage().huge_bytes;
    load.first_hot.store(HOT, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(100));
    load.memory.advise(load.memory.base(), HOT * EXTENT, Advise::Drop).unwrap();
    // In one of them a page is in use again.
    touch(load.memory.base(), PAGE);
    run(&mut engine, |engine| engine.usage().huge_bytes + (HOT * EXTENT) as u64 <= held);
}

fn a_budget_with_room_is_like_none() {
    // Of each range fewer pages than the threshold are hot. As all are present, that is enough
    // where huge pages are not scarce.
    let load = Load::with(PAGES_PER_EXTENT, 5);
    let settings = Settings { budget_bytes: 1 << 40, ..options(None).settings };
    let options = Options { settings, recheck_ns: Some(1), quiet_passes: 2, ..options(None) };
    let Some(mut engine) = engine(options) else { return };
    run(&mut engine, |engine| !huge(engine, &load).is_empty());
    // It settles meanwhile.
    let began = Instant::now();
    run(&mut engine, |_| began.elapsed() > Duration::from_secs(4));
    let totals = engine.ledger().totals();
    assert_eq!((totals.checks, totals.splits), (0, 0));
}

#[test]
fn process_exit_is_not_an_error() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let made = Engine::new(child.id(), options(None), 0);
    child.kill().unwrap();
    child.wait().unwrap();
    match made {
        Ok(mut engine) => assert_eq!(engine.step(1).unwrap().state, State::Gone),
        Err(error) => hiroma_testkit::skip!(Machine, "{error}"),
    }
    let missing = Engine::new(child.id(), options(None), 0);
    assert!(matches!(missing, Err(HotError::NoProcess { .. })));
}

#[test]
fn process_that_executes_another_program_is_managed_afresh() {
    let dir = tempfile::tempdir().unwrap();
    let dir = LedgerDir::at(dir.path().join("run"));
    let mut child = Command::new("sh")
        .args(["-c", "read go; exec sleep 60"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let watching = Options { watch_only: true, ..options(Some(dir.clone())) };
    let outcome = Engine::new(child.id(), watching, now_ns()).map(|mut engine| {
        run(&mut engine, |engine| engine.passes() >= 2);
        child.stdin.take();
        let executed = || {
            let entries = Ledger::read(&dir, child.id()).unwrap();
            entries.iter().any(|entry| {
                matches!(entry, Entry::Exec { command, .. }
                if command == "sleep 60")
            })
        };
        run(&mut engine, |engine| executed() && engine.passes() >= 2);
        assert_eq!(engine.step(now_ns()).unwrap().state, State::Tracking);
        assert!(engine.heat().ranges().next().is_some(), "nothing is seen of the new program");
    });
    child.kill().unwrap();
    child.wait().unwrap();
    match outcome {
        Ok(()) => {}
        Err(error @ (HotError::NoBackend { .. } | HotError::NotPermitted { .. })) => {
            hiroma_testkit::skip!(Machine, "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn process_freeing_its_memory_counts_as_ended() {
    // Its memory is freed first, which takes a while: during that time the process still exists,
    // and looks like a kernel thread.
    let mut child = Command::new("dd")
        .args(["if=/dev/zero", "of=/dev/null", "bs=256M"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = || std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let began = Instant::now();
    while !status().contains("\nRssAnon:\t  26") {
        assert!(began.elapsed() < LIMIT, "dd does not fill its memory: {}", status());
        thread::sleep(Duration::from_millis(2));
    }
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    loop {
        assert!(began.elapsed() < LIMIT, "it does not end");
        match Engine::new(child.id(), Options { watch_only: true, ..options(None) }, 0) {
            Err(HotError::NoProcess { .. }) => break,
            Err(error) => {
                assert!(
                    error.is_gone()
                        || matches!(
                            error,
                            HotError::NotPermitted { .. } | HotError::NoBackend { .. }
                        ),
                    "{error}"
                )
            }
            Ok(_) => {}
        }
    }
    child.wait().unwrap();
}
