//! A process: a program, its memory, and the threads of its pager.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use hiroma_policy::clusters::Clusters;
use hiroma_policy::loss::bucket;
use hiroma_policy::sharing::{Seen, Sharing, Waits};
use hiroma_sys::lock::Lock;
use hiroma_sys::vm::Reservation;
use hiroma_units::{EXTENT, ExtentNo, PAGE, PAGES_PER_EXTENT};

use super::kernel::{ARENA_PAGES, Model, PUMPS, State};
use super::random::Random;
use crate::config::Config;
use crate::content::Key;
use crate::core::Core;
use crate::evict::Evicting;
use crate::fault::Faulting;
use crate::fetch::Prefetching;
use crate::live::{Live, Path};
use crate::service::Serving;
use crate::store::faulty::{FaultyStore, Plan};
use crate::store::{Purpose, Store};

/// What all processes of a schedule share.
pub struct Setup {
    pub config: Config,
    pub path: Path,
    pub arena: Arc<Reservation>,
    pub plan: Plan,
    /// What the thread that prefetches meets in addition.
    pub ahead: Plan,
    pub room: usize,
    pub key: [u8; 32],
}

pub struct Process {
    pub state: Arc<Mutex<State>>,
    pub core: Arc<Lock<Core>>,
    pub live: Arc<Live>,
    faulting: Rc<RefCell<Faulting>>,
    /// A second fault thread, if there is a crowd.
    beside: Option<Faulting>,
    evicting: Evicting,
    prefetching: Prefetching,
    pub serving: Serving,
    submitted: Vec<usize>,
    random: Random,
    /// The sharing policy of a pager that demotes.
    demoting: Sharing,
    room: usize,
    /// The number of its fork in its parent's pager.
    pub fork: u64,
}

impl Process {
    /// A process whose pager's tables are filled by `fill`.
    pub fn new(
        setup: &Setup,
        number: usize,
        state: State,
        inner: Arc<dyn Store>,
        fill: impl FnOnce(&mut Core, &Mutex<State>),
    ) -> Process {
        let mut random = Random::new(setup.plan.seed ^ number as u64);
        let state = Arc::new(Mutex::new(state));
        let memory = Box::new(Model::new(state.clone(), number));
        let live = Arc::new(
            Live::for_model(&setup.config, &setup.arena, setup.path, memory)
                .expect("a model's life"),
        );
        let store: Arc<dyn Store> = Arc::new(FaultyStore::new(inner, setup.plan.clone()));
        let key = Key::from_bytes(&setup.key);
        let mut core =
            Core::new(&setup.config, live.clone(), setup.arena.clone(), store.clone(), key)
                .expect("a state");
        // Few pages are used; both sizes of small blocks are to be seen.
        core.clusters = Clusters::new(6);
        fill(&mut core, &state);
        let core = Arc::new(Lock::new(core));
        let open = |purpose| store.open(purpose).expect("a channel");
        let ahead = FaultyStore::new(store.clone(), setup.ahead.clone());
        let ahead = ahead.open(Purpose::Read).expect("a channel");
        let faulting = Rc::new(RefCell::new(Faulting::new(
            0,
            core.clone(),
            live.clone(),
            open(Purpose::Read),
        )));
        let reader = faulting.clone();
        let pump = Rc::new(move || {
            reader.borrow_mut().read_messages();
        });
        PUMPS.with(|pumps| pumps.borrow_mut().push(pump));
        let (is_yielding, crowd) = (setup.path == Path::Full && random.one_in(3), random.one_in(3));
        live.yielding.force(is_yielding, crowd);
        let beside =
            crowd.then(|| Faulting::new(1, core.clone(), live.clone(), open(Purpose::Read)));
        Process {
            state,
            faulting,
            beside,
            evicting: Evicting::new(core.clone(), live.clone(), open(Purpose::Write)),
            prefetching: Prefetching::new(core.clone(), live.clone(), ahead),
            serving: Serving::new(core.clone(), live.clone(), Arc::default(), Arc::default()),
            core,
            live,
            submitted: Vec::new(),
            random,
            demoting: demoting(),
            room: setup.room,
            fork: 0,
        }
    }

    pub fn program<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub fn wrong(&self) -> Option<String> {
        self.program(|state| state.wrong.clone())
    }

    /// One step of one of the pager's threads.
    pub fn pager(&mut self, which: usize) {
        match which {
            0 if self.beside.is_some() => drop(self.beside.as_mut().map(Faulting::turn)),
            0 | 1 => drop(self.faulting.borrow_mut().turn()),
            2 => self.faulting.borrow_mut().retry(),
            3 => {
                if self.random.one_in(16) {
                    self.core.lock().begin_drain();
                    let sharing =
                        if self.random.one_in(2) { self.demoting.clone() } else { Sharing::new() };
                    self.core.lock().sharing = sharing;
                }
                let _ = self.evicting.choose();
            }
            4 => self.evicting.write_chosen(),
            5 => drop(self.evicting.poll()),
            6 => drop(self.evicting.reclaim_page_tables()),
            7 => drop(self.prefetching.turn(&mut self.submitted)),
            8 => self.answer(),
            // A second later, the kernel has acted on its events.
            _ if self.random.one_in(2) || self.program(|state| state.is_discarding()) => {}
            _ => self.core.lock().try_again(true),
        }
    }

    /// One step of the thread that serves calls.
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

    /// Rare events.
    pub fn seldom(&mut self) {
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

    /// Accessed bits, right or wrong, of some extent.
    pub fn accessed(&mut self) {
        let mut core = self.core.lock();
        let extent = ExtentNo(self.random.below(ARENA_PAGES / PAGES_PER_EXTENT) as u32);
        let kind = self.random.below(3);
        let bits = std::array::from_fn(|_| match kind {
            0 => u64::MAX,
            1 => self.random.next(),
            // Whole clusters.
            _ => (self.random.next() & 0x0101_0101_0101_0101) * 0xff,
        });
        core.take_accessed(extent, &bits);
        core.split_blurred();
    }

    /// Verifies that the pager's accounts match the memory.
    pub fn accounts(&self) -> Result<(), String> {
        let core = self.core.lock();
        let (present, resident) =
            (self.program(|state| state.present()) * PAGE, core.resident_bytes);
        if present > resident {
            return Err(format!(
                "{present} bytes are in the program's memory, {resident} on the books"
            ));
        }
        Ok(())
    }
}

/// A sharing policy after fetches that a little more local memory would have spared.
fn demoting() -> Sharing {
    const MIB: u64 = 1 << 20;
    let mut sharing = Sharing::new();
    for round in 1..=4 {
        (0..64).for_each(|_| sharing.on_fetch(bucket(Some(MIB)), 4096));
        let waits = |ns| Waits { count: round * 100, total_ns: round * 100 * ns };
        let (near, behind) = (waits(10_000), waits(90_000));
        sharing.observe(&Seen {
            near,
            behind,
            near_bytes: 30 * MIB,
            absent_bytes: 150 * MIB,
            limit_bytes: 128 * MIB,
            ..Seen::default()
        });
    }
    assert!(sharing.demotes());
    sharing
}
