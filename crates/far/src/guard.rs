//! Makes fault threads yielding and normal again; see `yielding.rs`. Only this thread changes their
//! class, except that a fault thread changes its own around a wait for its store.
//!
//! It needs the right to raise a thread from `SCHED_IDLE` (`RLIMIT_NICE` of 20, or `CAP_SYS_NICE`).
//! Without that right, or with a single processor, it does nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hiroma_policy::crowd::{Answering, Crowd};
use hiroma_sys::cpu::{self, Cpus, ThreadId};
use hiroma_sys::wait;
use hiroma_units::Nanos;

use crate::config::FAULT_THREADS_MAX;
use crate::control::Counter;
use crate::live::Live;
use crate::yielding::{CROWD_TURN, NO_CPU, Yielding};

/// Interval of the guard's checks while fault threads are yielding.
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// This many checks without a fault end the yielding state.
const CALM_LOOKS: u32 = 10;
/// How long it is not retried if other threads needed the processor; doubles each time.
const PENALTY_MIN: Nanos = Nanos::from_millis(50);
const PENALTY_MAX: Nanos = Nanos::from_millis(4000);
/// After this many faults of a crowd it is decided whether it still is one.
const JUDGED_FAULTS: u32 = 128;
/// A crowd ends when its faults have this many times fewer turns than are needed to begin one.
const CROWD_END: u32 = 2;

/// How long the guard sleeps if it is not woken.
const NOTHING_DUE: Duration = Duration::from_secs(3600);

/// Starts fault thread number `index`; returns false if that is not possible.
pub type Start = Box<dyn FnMut(usize) -> bool + Send>;

/// The guard thread.
pub struct Guarding {
    live: Arc<Live>,
    allowed: Cpus,
    start: Start,
    /// Maximum number of fault threads: as many as are allowed, or as could be started.
    most: usize,
    /// Number of fault threads that have been started.
    started: usize,
    /// The processor that the other threads were last kept off.
    kept_off: u32,
    beats: [u64; FAULT_THREADS_MAX],
    /// Consecutive checks at which a fault thread had work and made no progress (`stuck`); at which
    /// there was no work (`calm`).
    stuck: u32,
    calm: u32,
    crowd: Crowd,
    /// Faults of the crowd, and turns, that have not been evaluated yet.
    unjudged: (u32, u32),
    not_before: Nanos,
    penalty: Nanos,
}

impl Guarding {
    /// `fault_threads`: maximum number of them; none: as many as there are processors, if they
    /// prove to be faster. Returns None if this machine or the user's rights do not allow it.
    pub fn new(live: Arc<Live>, fault_threads: Option<u32>, start: Start) -> Option<Guarding> {
        let allowed = Cpus::of_this_thread()?;
        let most = fault_threads.unwrap_or(allowed.count()) as usize;
        (allowed.count() > 1 && cpu::may_raise_from_idle()).then_some(Guarding {
            live,
            allowed,
            start,
            most: most.min(FAULT_THREADS_MAX),
            started: 1,
            kept_off: NO_CPU,
            beats: [0; FAULT_THREADS_MAX],
            stuck: 0,
            calm: 0,
            crowd: if fault_threads.is_some() { Crowd::decided() } else { Crowd::default() },
            unjudged: (0, 0),
            not_before: Nanos(0),
            penalty: PENALTY_MIN,
        })
    }

    pub fn run(mut self) {
        self.live.yielding.offered.store(true, Ordering::Release);
        let yielding = &self.live.clone().yielding;
        while !self.live.stopping() {
            if yielding.is_on() || self.crowd.is_busy() {
                std::thread::sleep(LOOK_EVERY);
            } else {
                yielding.bell.wait(self.until_trial(yielding));
            }
            if yielding.is_on() {
                self.look(yielding);
            }
            let one = yielding.wanted.swap(false, Ordering::Relaxed);
            let now = Nanos(cpu::now_ns());
            if now < self.not_before {
                continue;
            }
            let faults = self.live.page.get(Counter::Faults);
            // The request stays set until it matters again, so that no thread rings the bell
            // meanwhile.
            if self.most > 1
                && now >= self.crowd.not_before()
                && yielding.crowd_wanted.swap(false, Ordering::Relaxed)
            {
                self.crowd.seen(now, faults);
            }
            match (self.crowd.look(now, faults), yielding.is_crowd()) {
                (Answering::All, false) if self.start_all() => self.enter(yielding, true),
                (Answering::All, false) => self.crowd.is_over(),
                (Answering::One, true) => self.leave(yielding),
                _ if one && !yielding.is_on() => self.enter(yielding, false),
                _ => {}
            }
        }
        if yielding.is_on() {
            self.leave(yielding);
        }
    }

    /// How long to sleep if the bell does not ring.
    fn until_trial(&self, yielding: &Yielding) -> Duration {
        let is_wanted = self.most > 1 && yielding.crowd_wanted.load(Ordering::Relaxed);
        if is_wanted {
            Duration::from_nanos(
                self.crowd.not_before().max(self.not_before).since(Nanos(cpu::now_ns())).0,
            )
        } else {
            NOTHING_DUE
        }
    }

    /// Starts as many fault threads as allowed. Returns false if there is only one.
    fn start_all(&mut self) -> bool {
        while self.started < self.most {
            if (self.start)(self.started) {
                self.started += 1;
            } else {
                self.most = self.started;
            }
        }
        self.started > 1
    }

    fn enter(&mut self, yielding: &Yielding, crowd: bool) {
        let at_work = if crowd { self.started } else { 1 };
        // With a crowd on every processor there is none to keep off.
        let kept_off =
            if at_work < self.allowed.count() as usize { yielding.cpu(0) } else { NO_CPU };
        self.keep_off(yielding, kept_off);
        let threads = (0..at_work).filter_map(|index| yielding.fault_thread(index));
        if threads.map(cpu::make_idle_class).fold(true, |all, done| all & done) {
            (self.stuck, self.calm, self.unjudged) = (0, 0, (0, 0));
            yielding.take_crowd();
            yielding.crowd.store(crowd, Ordering::Relaxed);
            yielding.on.store(true, Ordering::Relaxed);
            if crowd {
                yielding.ring_crowd();
            }
        } else {
            // Some may be yielding, and would not be checked.
            self.crowd.is_over();
            self.leave(yielding);
        }
    }

    fn leave(&mut self, yielding: &Yielding) {
        if yielding.is_crowd() && self.crowd.is_all() {
            self.crowd.is_over();
        }
        yielding.crowd.store(false, Ordering::Relaxed);
        // First, so that a thread that returns to the idle class after a wait for its store sees it
        // (`Yielding::waits_for_store`).
        yielding.on.store(false, Ordering::SeqCst);
        (0..self.started).filter_map(|index| yielding.fault_thread(index)).for_each(|thread| {
            cpu::make_normal_class(thread);
        });
        self.keep_off(yielding, NO_CPU);
    }

    /// Checks whether the fault threads make progress.
    fn look(&mut self, yielding: &Yielding) {
        let crowd = yielding.is_crowd();
        let (mut moved, mut behind, mut waits) = (false, false, false);
        for index in 0..if crowd { self.started } else { 1 } {
            let (beat, awake, in_hand) = yielding.seen(index);
            let has_moved = std::mem::replace(&mut self.beats[index], beat) != beat;
            moved |= has_moved;
            // In a crowd, one may stop while its processor computes, if no thread waits for it.
            behind |= !has_moved && if crowd { in_hand } else { awake };
            waits |= !has_moved && in_hand;
        }
        waits |= !moved && wait::readable(&[self.live.uffd_number()], 0) != 0;
        behind |= waits;
        self.stuck = if behind { self.stuck + 1 } else { 0 };
        self.calm = if moved || behind { 0 } else { self.calm + 1 };
        if moved && !crowd {
            self.keep_off(yielding, yielding.cpu(0));
        }
        if self.stuck >= 2 {
            self.leave(yielding);
            yielding.let_go(&self.allowed);
            // A program that computes instead of faulting only keeps it from evicting ahead.
            if waits {
                self.not_before = Nanos(cpu::now_ns() + self.penalty.0);
                self.penalty = Nanos((self.penalty.0 * 2).min(PENALTY_MAX.0));
            }
        } else if self.calm >= CALM_LOOKS {
            self.leave(yielding);
            self.penalty = Nanos((self.penalty.0 / 2).max(PENALTY_MIN.0));
        } else if crowd && self.is_over(yielding) {
            self.leave(yielding);
        }
    }

    /// Whether the faults of a crowd come from one thread again.
    fn is_over(&mut self, yielding: &Yielding) -> bool {
        let (faults, turns) = yielding.take_crowd();
        self.unjudged = (self.unjudged.0 + faults, self.unjudged.1 + turns);
        if self.unjudged.0 < JUDGED_FAULTS {
            return false;
        }
        let (faults, turns) = std::mem::take(&mut self.unjudged);
        turns * CROWD_TURN * CROWD_END < faults
    }

    /// Keeps the pager's other threads off a processor.
    fn keep_off(&mut self, yielding: &Yielding, cpu: u32) {
        if cpu == self.kept_off {
            return;
        }
        self.kept_off = cpu;
        let cpus = if cpu == NO_CPU { self.allowed } else { self.allowed.without(cpu as usize) };
        for other in &yielding.others {
            let thread = other.load(Ordering::Acquire);
            if thread != 0 {
                cpus.confine(ThreadId(thread));
            }
        }
        cpus.confine(cpu::this_thread());
    }
}
