//! The pager's state against a kernel, a program and a store that do what is allowed and least convenient, compared with a flat table of
//! what was written. One thread plays all of the pager's, in an order that the seed decides; the same seed gives the same schedule.
//!
//! `HIROMA_SCHEDULES=N cargo test --release -p hiroma-pager model` runs N of them, `HIROMA_SEED=S` that one alone.

mod kernel;
mod random;

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use hiroma_kernel::lock::Lock;
use hiroma_kernel::vm::{Access, Reservation};
use hiroma_policy::duplication::Duplication;
use hiroma_units::{EXTENT, PAGE};

use crate::canary;
use crate::config::{BlockSize, Config, PathChoice, ReplacementKind};
use crate::content::Key;
use crate::core::Core;
use crate::evict::Evicting;
use crate::fault::Faulting;
use crate::fetch::Prefetching;
use crate::live::{Live, Path};
use crate::service::Serving;
use crate::store::compressed::CompressedStore;
use crate::store::faulty::{FaultyStore, Plan};
use crate::store::{Purpose, Store};
pub use kernel::tell_extent;
use kernel::{ARENA_PAGES, MAPPINGS_PAGES, Model, PUMP, State};
use random::Random;

/// Steps of one schedule before it ends, and rounds in which all that was begun must end.
const STEPS: usize = 400;
const ROUNDS_MAX: usize = 20_000;

struct Schedule {
    state: Arc<Mutex<State>>,
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    faulting: Rc<RefCell<Faulting>>,
    evicting: Evicting,
    prefetching: Prefetching,
    serving: Serving,
    submitted: Vec<usize>,
    random: Random,
    room: usize,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        let mut random = Random::new(seed ^ 0x5c4e_d01e);
        let huge = random.one_in(64);
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
            replacement: if random.one_in(3) { ReplacementKind::Fifo } else { ReplacementKind::Lru },
            prefetch: !random.one_in(3),
            ..Config::default()
        };
        let arena = Arc::new(Reservation::new((ARENA_PAGES + MAPPINGS_PAGES) * PAGE, EXTENT, Access::None).expect("address space"));
        let threads = 1 + random.below(4);
        let (pages, stride) = (64 + random.below(192), if huge { 128 } else { 1 + random.below(40) });
        let mut state = State::new(random.next(), arena.base(), threads, pages, stride);
        state.has_events = path == Path::Full;
        if random.one_in(3) {
            state.map_later(ARENA_PAGES + MAPPINGS_PAGES);
        }
        let state = Arc::new(Mutex::new(state));
        let live = Arc::new(Live::for_model(&config, &arena, path, Box::new(Model::new(state.clone()))).expect("a model's life"));
        let sector_bytes = PAGE << crate::core::sector_order(block);
        let plan = Plan { delay_polls_max: random.below(4) as u64, seed: random.next(), ..Plan::default() };
        let plan = Plan { corrupt_read: canary::is_broken("verify what comes").then(|| 1 + random.below(8) as u64), ..plan };
        // Where compressed memory is a part of the limit, copies are given up.
        let is_within = random.one_in(3);
        let (size, within) = (64 << 20, CompressedStore::within);
        let inner = if is_within { within(sector_bytes, size, false) } else { CompressedStore::new(sector_bytes, size) };
        let inner = Arc::new(inner.expect("memory"));
        let store: Arc<dyn Store> = Arc::new(FaultyStore::new(inner, plan));
        let key = Key::from_bytes(&[seed as u8; 32]);
        let mut core = Core::new(&config, live.clone(), arena.clone(), store.clone(), key).expect("a state");
        let room = if huge || block == BlockSize::Auto {
            (3 + random.below(3)) * EXTENT
        } else {
            (20 + random.below(40)) * PAGE.max(sector_bytes / 4)
        };
        core.room_of_test = Some(room);
        core.duplication = Duplication::beginning(!is_within);
        core.addresses.claim(arena.base(), arena.base() + ARENA_PAGES * PAGE);
        core.regions.insert(arena.base(), Default::default());
        let core = Arc::new(Lock::new(core));
        let open = |purpose| store.open(purpose).expect("a channel");
        let faulting = Rc::new(RefCell::new(Faulting::new(core.clone(), live.clone(), open(Purpose::Read))));
        let reader = faulting.clone();
        PUMP.with(|pump| {
            *pump.borrow_mut() = Some(Box::new(move || {
                reader.borrow_mut().read_messages();
            }))
        });
        live.quiet.force(path == Path::Full && random.one_in(3));
        Schedule {
            state,
            faulting,
            evicting: Evicting::new(core.clone(), live.clone(), open(Purpose::Write)),
            prefetching: Prefetching::new(core.clone(), live.clone(), open(Purpose::Read)),
            serving: Serving::new(core.clone(), live.clone(), Arc::default(), Arc::default()),
            core,
            live,
            submitted: Vec::new(),
            random,
            room,
        }
    }

    fn program<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn wrong(&self) -> Option<String> {
        self.program(|state| state.wrong.clone())
    }

    /// What the pager's threads do at some time.
    fn pager(&mut self, which: usize) {
        match which {
            0 | 1 => drop(self.faulting.borrow_mut().turn()),
            2 => self.faulting.borrow_mut().retry(),
            3 => drop(self.evicting.choose()),
            4 => self.evicting.write_chosen(),
            5 => drop(self.evicting.poll()),
            6 => drop(self.evicting.reclaim_page_tables()),
            7 => drop(self.prefetching.turn(&mut self.submitted)),
            8 => self.answer(),
            // A second later, the kernel has done what it was about to do.
            _ if self.program(|state| state.is_discarding()) => {}
            _ => self.core.lock().try_again(),
        }
    }

    /// The thread that answers calls.
    fn answer(&mut self) {
        let Some((thread, call)) = self.program(|state| state.asked()) else { return };
        let mut answer = self.serving.answer(call);
        let mut to_zero = answer.to_zero().to_vec();
        let result = answer.result.as_ref().map_or(usize::MAX, |&result| result);
        while let Some(rest) = answer.rest() {
            answer = self.serving.answer(rest);
            to_zero.extend_from_slice(answer.to_zero());
        }
        self.program(|state| state.answered(thread, result, &to_zero));
    }

    /// What happens now and then.
    fn seldom(&mut self) {
        let mut core = self.core.lock();
        match self.random.below(6) {
            0 => {
                let room = self.room / 2 + self.random.below(self.room / 2);
                core.room_of_test = Some(room.max(2 * core.sector_bytes()));
                if core.fixed.is_none() {
                    core.room_of_test = Some(self.room);
                }
            }
            1 => core.room_of_test = Some(self.room),
            2 => core.evict_everything = !core.evict_everything,
            3 if core.live.path == Path::Full => {
                core.forked = true;
                drop(core);
                self.program(State::fork);
            }
            _ => core.granularity.set_local_extents((self.room / EXTENT) as u32 * 8),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let moves_at = self.random.one_in(24).then(|| self.random.below(STEPS));
        for step in 0..STEPS {
            if moves_at == Some(step) {
                self.program(State::move_away);
            }
            match self.random.below(40) {
                0..=17 => self.program(State::step),
                18 if self.random.one_in(4) => self.seldom(),
                kind => self.pager(kind % 10),
            }
        }
        self.core.lock().evict_everything = self.random.one_in(2);
        self.settle()?;
        self.core.lock().evict_everything = false;
        self.program(|state| state.is_ending = true);
        for round in 0.. {
            if !self.program(|state| state.read_all(round)) {
                break;
            }
            self.settle()?;
        }
        self.accounts()
    }

    /// Lets everybody run until all that was begun has ended.
    fn settle(&mut self) -> Result<(), String> {
        self.program(|state| state.is_ending = true);
        for round in 0..ROUNDS_MAX {
            self.program(State::step);
            self.pager(round % 10);
            if let Some(wrong) = self.wrong() {
                return Err(wrong);
            }
            if round % 8 == 0 && self.program(|state| state.is_idle()) {
                return Ok(());
            }
        }
        Err(format!("it hangs: {}", self.program(|state| state.describe())))
    }

    /// The books say what is there.
    fn accounts(&self) -> Result<(), String> {
        let core = self.core.lock();
        let (present, resident) = (self.program(|state| state.present()) * PAGE, core.resident_bytes);
        if present > resident {
            return Err(format!("{present} bytes are in the program's memory, {resident} on the books"));
        }
        Ok(())
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        PUMP.with(|pump| pump.borrow_mut().take());
        self.live.quiet.force(false);
    }
}

/// Runs one schedule; what went wrong.
fn schedule(seed: u64) -> Result<[u64; 3], String> {
    crate::fatal::PANICS.with(|panics| panics.set(true));
    let mut running = None;
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let schedule = running.insert(Schedule::new(seed));
        schedule.run()?;
        Ok(schedule.program(|state| state.sums()))
    }));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_default();
        // The end that was due.
        let sums = running.and_then(|schedule| schedule.program(|state| state.moved.map(|_| state.sums())));
        sums.filter(|_| text.contains("raw mremap")).ok_or_else(|| format!("it ended: {text}"))
    })
}

/// Runs one schedule whose decisions are `tape`, as far as it reaches, for a fuzzer: ends the process if something went wrong.
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
fn schedules_differ_in_nothing_from_a_flat_table() {
    let (first, count) = match number("HIROMA_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("HIROMA_SCHEDULES").unwrap_or(1_000)),
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let work = |of: u64| {
        let mut sums = [0; 3];
        for seed in (first..first + count).filter(|seed| seed % threads == of) {
            let more = schedule(seed).unwrap_or_else(|wrong| panic!("HIROMA_SEED={seed}: {wrong}"));
            sums = std::array::from_fn(|at| sums[at] + more[at]);
        }
        sums
    };
    let [touched, discards, remaps] = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|of| scope.spawn(move || work(of))).collect();
        let all = workers.into_iter().map(|worker| worker.join().expect("a schedule went wrong"));
        all.fold([0; 3], |a: [u64; 3], b| std::array::from_fn(|at| a[at] + b[at]))
    });
    println!("{count} schedules, {touched} touches, {discards} discards, {remaps} mappings made or made longer");
    assert!(count < 100 || touched > 50 * count && discards > count && remaps > count, "the schedules do next to nothing");
}

// A minute in a release build, and many in another: `make test` runs it in one.
#[cfg(all(test, not(debug_assertions)))]
#[test]
fn each_broken_rule_is_noticed() {
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
