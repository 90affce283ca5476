//! Compares the pager's state with a flat table of what was written. A model kernel, model programs
//! and a model store do what is allowed and least convenient. A single thread plays the threads of
//! all pagers, in an order that the seed determines; the same seed gives the same schedule.
//!
//! `HIROMA_SCHEDULES=N cargo test --release -p hiroma-far model` runs N of them, `HIROMA_SEED=S`
//! that one alone.

mod fork;
mod kernel;
mod process;
mod random;
mod store;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use hiroma_policy::duplication::Duplication;
use hiroma_sys::vm::{Access, Reservation};
use hiroma_units::{EXTENT, PAGE};

use crate::canary;
use crate::config::{BlockSize, Config, PathChoice, ReplacementKind};
use crate::live::Path;
use crate::service::Call;
use crate::store::Store;
use crate::store::compressed::CompressedStore;
use crate::store::faulty::Plan;
pub use kernel::tell_extent;
use kernel::{ARENA_PAGES, MAPPINGS_PAGES, PUMPS, State};
use process::{Process, Setup};
use random::Random;
use store::Shared;

/// Steps of one schedule, and maximum number of rounds in which all pending operations must end.
const STEPS: usize = 400;
const ROUNDS_MAX: usize = 20_000;

struct Schedule {
    /// The first one is the parent of the others.
    processes: Vec<Process>,
    setup: Setup,
    /// The store that processes share after a fork, if any forks.
    shared: Option<Arc<Shared>>,
    random: Random,
    forks: usize,
    /// Sums of the events in children that have ended.
    finished: Vec<[u64; 3]>,
}

impl Setup {
    fn new(seed: u64, random: &mut Random, huge: bool) -> Setup {
        let path = if random.one_in(5) { Path::Fallback } else { Path::Full };
        let block = match random.below(6) {
            _ if huge => BlockSize::Auto,
            0 => BlockSize::Auto,
            1 => BlockSize::Fixed(16 << 10),
            2 => BlockSize::Fixed(64 << 10),
            3 => BlockSize::Fixed(8 << 10),
            _ => BlockSize::Fixed(4 << 10),
        };
        let config = Config {
            local_limit_bytes: 64 << 20,
            block,
            path: if path == Path::Full { PathChoice::Full } else { PathChoice::Fallback },
            replacement: if random.one_in(3) {
                ReplacementKind::Fifo
            } else {
                ReplacementKind::Lru
            },
            prefetch: !random.one_in(3),
            ..Config::default()
        };
        let arena = Reservation::new((ARENA_PAGES + MAPPINGS_PAGES) * PAGE, EXTENT, Access::None)
            .expect("address space");
        let plan = Plan {
            delay_polls_max: random.below(4) as u64,
            seed: random.next(),
            ..Plan::default()
        };
        // Together, or in advance: what a thread waits for can be read.
        let ahead = Plan {
            fail_read_in: if seed % 3 == 0 { 3 } else { 0 },
            fail_sectors: 1,
            seed,
            ..Plan::default()
        };
        let plan = Plan { fail_read_in: ahead.fail_read_in, fail_sectors: 2, ..plan };
        let plan = Plan {
            corrupt_read: canary::is_broken("verify what comes")
                .then(|| 1 + random.below(8) as u64),
            ..plan
        };
        let sector_bytes = PAGE << crate::core::sector_order(block);
        let room = if huge || block == BlockSize::Auto {
            (3 + random.below(3)) * EXTENT
        } else {
            (20 + random.below(40)) * PAGE.max(sector_bytes / 4)
        };
        let (arena, key) = (Arc::new(arena), [seed as u8; 32]);
        Setup { config, path, arena, plan, ahead, room, key }
    }
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        PUMPS.with(|pumps| pumps.borrow_mut().clear());
        let mut random = Random::new(seed ^ 0x5c4e_d01e);
        let huge = random.one_in(64);
        let setup = Setup::new(seed, &mut random, huge);
        let threads = 1 + random.below(4);
        let (pages, stride) =
            (64 + random.below(192), if huge { 128 } else { 1 + random.below(40) });
        let mut state = State::new(random.next(), setup.arena.base(), threads, pages, stride);
        state.has_events = setup.path == Path::Full;
        if random.one_in(3) {
            state.map_later(ARENA_PAGES + MAPPINGS_PAGES);
        }
        let sector_bytes = PAGE << crate::core::sector_order(setup.config.block);
        let shared = (!huge && random.one_in(3)).then(|| Arc::new(Shared::new(sector_bytes)));
        state.maps_over = shared.is_none() && random.one_in(3);
        // If compressed memory is a part of the limit, copies are given up.
        let is_within = shared.is_none() && random.one_in(3);
        let inner: Arc<dyn Store> = match &shared {
            Some(shared) => shared.clone(),
            None if is_within => {
                Arc::new(CompressedStore::within(sector_bytes, 64 << 20, false).expect("memory"))
            }
            None => Arc::new(CompressedStore::new(sector_bytes, 64 << 20).expect("memory")),
        };
        let process = Process::new(&setup, 0, state, inner, |core, _| {
            core.room_of_test = Some(setup.room);
            core.duplication = Duplication::beginning(!is_within);
            let base = setup.arena.base();
            core.addresses.claim(base, base + ARENA_PAGES * PAGE);
            core.regions.insert(base, Default::default());
        });
        let mut schedule = Schedule {
            processes: vec![process],
            setup,
            shared,
            random,
            forks: 0,
            finished: Vec::new(),
        };
        if schedule.shared.is_some() && schedule.random.one_in(2) {
            let (start, end) = schedule.processes[0].program(State::choose_wiped);
            let _ = schedule.processes[0].serving.answer(Call::WipeOnFork { start, end, on: true });
        }
        schedule
    }

    fn run(&mut self) -> Result<(), String> {
        let moves_at = self.random.one_in(24).then(|| self.random.below(STEPS));
        let steps = if self.shared.is_some() { 2 * STEPS } else { STEPS };
        for step in 0..steps {
            if moves_at == Some(step) {
                self.processes[0].program(State::move_away);
            }
            if self.shared.is_some() && self.random.one_in(150) {
                match self.processes.len() {
                    1 => self.fork()?,
                    2 if self.random.one_in(2) => self.fork()?,
                    _ => self.end_child(),
                }
            }
            let of = self.random.below(self.processes.len());
            match self.random.below(40) {
                0..=17 => self.processes[of].program(State::step),
                18 if self.random.one_in(4) => self.processes[of].seldom(),
                19 if self.random.one_in(4) => self.processes[of].accessed(),
                kind => self.processes[of].pager(kind % 10),
            }
        }
        for process in &self.processes {
            process.core.lock().evict_everything = self.random.one_in(2);
        }
        self.settle()?;
        self.processes.iter().for_each(|process| process.core.lock().evict_everything = false);
        for round in 0.. {
            // All processes must begin to read, so `any` would stop too early: count them.
            let reading = self
                .processes
                .iter()
                .filter(|process| process.program(|state| state.read_all(round)))
                .count();
            if reading == 0 {
                break;
            }
            self.settle()?;
        }
        self.processes.iter().try_for_each(Process::accounts)
    }

    /// Lets all processes run until every pending operation has ended.
    fn settle(&mut self) -> Result<(), String> {
        self.processes.iter().for_each(|process| process.program(|state| state.is_ending = true));
        for round in 0..ROUNDS_MAX {
            for process in &mut self.processes {
                process.program(State::step);
                process.pager(round % 10);
                if let Some(wrong) = process.wrong() {
                    return Err(wrong);
                }
            }
            if round % 8 == 0
                && self.processes.iter().all(|process| process.program(|state| state.is_idle()))
            {
                return Ok(());
            }
        }
        let doing: Vec<String> = self
            .processes
            .iter()
            .map(|process| process.program(|state| state.describe()))
            .collect();
        Err(format!("it hangs: {}", doing.join(" and ")))
    }

    /// Number of events of the kinds that every schedule should have.
    fn sums(&self) -> [u64; 4] {
        let running = self.processes.iter().map(|process| process.program(|state| state.sums()));
        let [touched, discards, remaps] = self
            .finished
            .iter()
            .copied()
            .chain(running)
            .fold([0; 3], |a: [u64; 3], b| std::array::from_fn(|at| a[at] + b[at]));
        [touched, discards, remaps, self.forks as u64]
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        PUMPS.with(|pumps| pumps.borrow_mut().clear());
        self.processes.iter().for_each(|process| process.live.yielding.force(false, false));
    }
}

/// Runs one schedule. The error describes what went wrong.
fn schedule(seed: u64) -> Result<[u64; 4], String> {
    crate::fatal::PANICS.with(|panics| panics.set(true));
    let mut running = None;
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let schedule = running.insert(Schedule::new(seed));
        schedule.run()?;
        Ok(schedule.sums())
    }));
    outcome.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_default();
        // The expected end.
        let sums = running
            .filter(|schedule| schedule.processes[0].program(|state| state.moved.is_some()))
            .map(|schedule| schedule.sums());
        sums.filter(|_| text.contains("raw mremap")).ok_or_else(|| format!("it ended: {text}"))
    })
}

/// Runs one schedule whose decisions are the bytes of `tape`, and random after its end, for a
/// fuzzer. Panics if something went wrong.
pub fn fuzz(tape: &[u8]) {
    random::TAPE.with(|current| *current.borrow_mut() = tape.iter().copied().collect());
    if let Err(wrong) = schedule(tape.len() as u64) {
        panic!("{wrong}");
    }
}

#[cfg(test)]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn schedules_match_a_flat_table() {
    let (first, count) = match number("HIROMA_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("HIROMA_SCHEDULES").unwrap_or(1_000)),
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let work = |of: u64| {
        let mut sums = [0; 4];
        for seed in (first..first + count).filter(|seed| seed % threads == of) {
            let more = schedule(seed).map_err(|wrong| format!("HIROMA_SEED={seed}: {wrong}"))?;
            sums = std::array::from_fn(|at| sums[at] + more[at]);
        }
        Ok::<_, String>(sums)
    };
    let [touched, discards, remaps, forks] = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|of| scope.spawn(move || work(of))).collect();
        let all = workers.into_iter().map(|worker| {
            worker.join().expect("it does not panic").unwrap_or_else(|wrong| {
                // The hook that prints panics may have been removed by the other test.
                println!("{wrong}");
                panic!("{wrong}")
            })
        });
        all.fold([0; 4], |a: [u64; 4], b| std::array::from_fn(|at| a[at] + b[at]))
    });
    println!(
        "{count} schedules, {touched} touches, {discards} discards, {remaps} mappings made or made longer, {forks} forks"
    );
    assert!(
        count < 100
            || touched > 50 * count && discards > count && remaps > count && 4 * forks > count,
        "the schedules do next to nothing"
    );
}

// It takes a minute in a release build, and many in a debug build: `make test` runs it in release.
#[cfg(all(test, not(debug_assertions)))]
#[test]
fn each_broken_rule_is_detected() {
    let most = 60_000;
    std::panic::set_hook(Box::new(|_| {}));
    let is_noticed = |rule: &&&'static str| {
        canary::break_rule(Some(rule));
        let found = (1..most).find_map(|seed| schedule(seed).err().map(|wrong| (seed, wrong)));
        canary::break_rule(None);
        match &found {
            Some((seed, wrong)) => println!("{rule}: schedule {seed}: {wrong}"),
            None => println!("{rule}: not noticed in {most} schedules"),
        }
        found.is_some()
    };
    let unnoticed: Vec<_> = canary::RULES.iter().filter(|rule| !is_noticed(rule)).collect();
    let _ = std::panic::take_hook();
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}
