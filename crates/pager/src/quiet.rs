//! Keeps the fault thread out of the scheduler's way while one thread of the program faults densely.
//!
//! A fault is cheap when the faulting thread and the fault thread share a processor: two switches. The scheduler does not see that: it
//! wakes the faulting thread on any processor that is idle, and waking one that sleeps costs several times as much as the fault. A
//! processor that runs nothing but `SCHED_IDLE` counts as idle, so while faults are dense the fault thread is one of that class, on the
//! processor of the faulting thread; the pager's other threads keep off it. Such a thread starves where anything else wants its
//! processor, so the guard thread here looks every [`LOOK_EVERY`] whether it gets on, and makes it a normal thread again if not. All
//! changes are made by the guard alone. It needs the right to raise a thread from `SCHED_IDLE` (`RLIMIT_NICE` of 20, or
//! `CAP_SYS_NICE`); without that, or with one processor, nothing of this happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hiroma_kernel::cpu::{self, Cpus, ThreadId};
use hiroma_kernel::lock::Bell;
use hiroma_kernel::wait;
use hiroma_units::Nanos;

use crate::live::Live;

/// So many faults of one thread on small blocks in such a span are dense.
const DENSE_FAULTS: u32 = 24;
const DENSE_SPAN: Nanos = Nanos::from_millis(8);
/// How often the guard looks while the fault thread is quiet.
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// So many looks without a fault end it.
const CALM_LOOKS: u32 = 10;
/// For how long it is not tried again where the processor was wanted by others; doubles each time.
const PENALTY_MIN: Nanos = Nanos::from_millis(50);
const PENALTY_MAX: Nanos = Nanos::from_millis(4000);
/// "On no processor in particular."
const NO_CPU: u32 = u32::MAX;

/// What the fault thread and its guard tell each other.
pub struct Quiet {
    /// The guard is at work and may do this at all.
    offered: AtomicBool,
    /// Faults are dense: the fault thread would like to be quiet.
    wanted: AtomicBool,
    /// The fault thread is quiet.
    on: AtomicBool,
    /// The evictor is on a processor, or wants to be.
    evictor_runs: AtomicBool,
    /// Rounds of the fault thread.
    beat: AtomicU64,
    /// The fault thread does not sleep in `poll`.
    awake: AtomicBool,
    /// The fault thread; 0: it does not run yet.
    fault_thread: AtomicU32,
    /// Where the fault thread has tied itself.
    cpu: AtomicU32,
    /// Threads that keep off its processor.
    others: [AtomicU32; 2],
    bell: Bell,
}

/// About two microseconds.
const PAUSE_SPINS: u32 = 64;

impl Default for Quiet {
    fn default() -> Quiet {
        Quiet {
            offered: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            on: AtomicBool::new(false),
            evictor_runs: AtomicBool::new(false),
            beat: AtomicU64::new(0),
            awake: AtomicBool::new(false),
            fault_thread: AtomicU32::new(0),
            cpu: AtomicU32::new(NO_CPU),
            others: [const { AtomicU32::new(0) }; 2],
            bell: Bell::default(),
        }
    }
}

impl Quiet {
    /// The calling thread is the fault thread.
    pub fn i_am_the_fault_thread(&self) {
        self.fault_thread.store(cpu::this_thread().0, Ordering::Release);
    }

    /// The calling thread works for the pager beside the fault thread.
    pub fn i_work_beside_it(&self) {
        let me = cpu::this_thread().0;
        let _ = self.others.iter().find(|other| other.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    }

    /// The fault thread goes round once more.
    pub fn round(&self) {
        self.beat.fetch_add(1, Ordering::Relaxed);
    }

    /// The fault thread goes to sleep, or has been woken.
    pub fn awake(&self, awake: bool) {
        self.awake.store(awake, Ordering::Relaxed);
    }

    /// The fault thread has tied itself to the processor of the faulting thread.
    pub fn stays_on(&self, cpu: usize) {
        self.cpu.store(cpu as u32, Ordering::Relaxed);
    }

    /// A moment, for the fault thread to look again. A quiet one spins: whoever is woken on its processor takes its place at once, and
    /// `sched_yield` in the idle class has kept threads of the kernel from running, for seconds (Linux 6.18).
    pub fn pause(&self) {
        if self.is_on() {
            (0..PAUSE_SPINS).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::yield_now();
        }
    }

    /// The evictor runs, or goes to sleep.
    pub fn evictor_runs(&self, runs: bool) {
        self.evictor_runs.store(runs, Ordering::Relaxed);
    }

    /// Whether the evictor runs.
    pub fn does_evictor_run(&self) -> bool {
        self.evictor_runs.load(Ordering::Relaxed)
    }

    /// Whether the fault thread is quiet.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Makes the fault thread do the evictor's small work, or not.
    #[cfg(any(test, feature = "model"))]
    pub fn force(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Ends the guard.
    pub fn stop(&self) {
        self.bell.ring();
    }
}

/// Sees whether faults are dense. Belongs to the fault thread.
#[derive(Default)]
pub struct Density {
    thread: u32,
    since: Nanos,
    faults: u32,
}

impl Density {
    /// A fault of `thread` on a small block at `now`.
    pub fn on_fault(&mut self, quiet: &Quiet, thread: u32, now: Nanos) {
        if quiet.is_on() || !quiet.offered.load(Ordering::Relaxed) {
            return;
        }
        if self.thread != thread || now.since(self.since) > DENSE_SPAN {
            (self.thread, self.since, self.faults) = (thread, now, 0);
        }
        self.faults += 1;
        if self.faults >= DENSE_FAULTS {
            self.faults = 0;
            quiet.wanted.store(true, Ordering::Relaxed);
            quiet.bell.ring();
        }
    }
}

/// The guard thread.
pub struct Guarding {
    live: Arc<Live>,
    allowed: Cpus,
    /// Where the others were last kept off.
    kept_off: u32,
    beat: u64,
    /// Looks in a row at which the fault thread had work and had not moved; at which it had none.
    stuck: u32,
    calm: u32,
    not_before: Nanos,
    penalty: Nanos,
}

impl Guarding {
    /// None: not on this machine, or not for this user.
    pub fn new(live: Arc<Live>) -> Option<Guarding> {
        let allowed = Cpus::of_this_thread()?;
        (allowed.count() > 1 && cpu::may_raise_from_idle()).then_some(Guarding {
            live,
            allowed,
            kept_off: NO_CPU,
            beat: 0,
            stuck: 0,
            calm: 0,
            not_before: Nanos(0),
            penalty: PENALTY_MIN,
        })
    }

    pub fn run(mut self) {
        self.live.quiet.offered.store(true, Ordering::Release);
        let quiet = &self.live.clone().quiet;
        while !self.live.stopping() {
            if quiet.on.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_EVERY);
                self.look(quiet);
            } else {
                quiet.bell.wait(Duration::from_secs(3600));
                if quiet.wanted.swap(false, Ordering::Relaxed) && cpu::now_ns() >= self.not_before.0 {
                    self.enter(quiet);
                }
            }
        }
        if quiet.on.load(Ordering::Relaxed) {
            self.leave(quiet);
        }
    }

    fn fault_thread(quiet: &Quiet) -> Option<ThreadId> {
        Some(quiet.fault_thread.load(Ordering::Acquire)).filter(|&thread| thread != 0).map(ThreadId)
    }

    fn enter(&mut self, quiet: &Quiet) {
        let Some(thread) = Self::fault_thread(quiet) else { return };
        self.keep_off(quiet, quiet.cpu.load(Ordering::Relaxed));
        if cpu::make_idle_class(thread) {
            (self.stuck, self.calm, self.beat) = (0, 0, quiet.beat.load(Ordering::Relaxed));
            quiet.on.store(true, Ordering::Relaxed);
        }
    }

    fn leave(&mut self, quiet: &Quiet) {
        if let Some(thread) = Self::fault_thread(quiet) {
            cpu::make_normal_class(thread);
        }
        self.keep_off(quiet, NO_CPU);
        quiet.on.store(false, Ordering::Relaxed);
    }

    /// Whether the fault thread gets on.
    fn look(&mut self, quiet: &Quiet) {
        let beat = quiet.beat.load(Ordering::Relaxed);
        if beat != self.beat {
            (self.beat, self.stuck, self.calm) = (beat, 0, 0);
            self.keep_off(quiet, quiet.cpu.load(Ordering::Relaxed));
            return;
        }
        let work = quiet.awake.load(Ordering::Relaxed) || wait::readable(&[self.live.uffd_number()], 0) != 0;
        if work {
            (self.stuck, self.calm) = (self.stuck + 1, 0);
        } else {
            (self.stuck, self.calm) = (0, self.calm + 1);
        }
        if self.stuck >= 2 {
            self.leave(quiet);
            self.not_before = Nanos(cpu::now_ns() + self.penalty.0);
            self.penalty = Nanos((self.penalty.0 * 2).min(PENALTY_MAX.0));
        } else if self.calm >= CALM_LOOKS {
            self.leave(quiet);
            self.penalty = Nanos((self.penalty.0 / 2).max(PENALTY_MIN.0));
        }
    }

    /// Keeps the pager's other threads off a processor.
    fn keep_off(&mut self, quiet: &Quiet, cpu: u32) {
        if cpu == self.kept_off {
            return;
        }
        self.kept_off = cpu;
        let cpus = if cpu == NO_CPU { self.allowed } else { self.allowed.without(cpu as usize) };
        for other in &quiet.others {
            let thread = other.load(Ordering::Acquire);
            if thread != 0 {
                cpus.confine(ThreadId(thread));
            }
        }
        cpus.confine(cpu::this_thread());
    }
}
