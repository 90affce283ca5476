//! Keeps fault threads from disturbing the scheduler while threads of the program fault densely.
//!
//! A fault is cheap when the faulting thread and the fault thread share a processor: two context
//! switches. The scheduler does not know that: it wakes the faulting thread on any idle processor,
//! and waking one that sleeps costs several times as much as the fault. A processor that runs only
//! `SCHED_IDLE` threads counts as idle. So while faults are dense, the fault thread is in that
//! class, on the processor of the faulting thread, and the pager's other threads keep off that
//! processor.
//!
//! If several threads of the program fault alternately (a *crowd*), one fault thread is not enough:
//! it is always on the wrong processor for one of them. Then there are as many as processors (at
//! most [`FAULT_THREADS_MAX`]), each yielding and each on a processor of its own.
//!
//! A yielding thread that sleeps until its store answers is a normal thread meanwhile, so that the
//! program's other threads do not keep it from the answer. A yielding thread starves where anything
//! else needs its processor. So the guard (`guard.rs`) checks whether faults that were read are
//! answered, and makes all fault threads normal again if not.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hiroma_sys::cpu::{self, Cpus, ThreadId};
use hiroma_sys::lock::Bell;
use hiroma_units::Nanos;

use crate::config::FAULT_THREADS_MAX;

/// This many faults of one thread on small blocks within this span are dense.
const DENSE_FAULTS: u32 = 24;
const DENSE_SPAN: Nanos = Nanos::from_millis(8);
/// This many faults within the same span are a crowd if at least one in [`CROWD_TURN`] comes from
/// another thread than the fault before.
const CROWD_FAULTS: u32 = 64;
pub const CROWD_TURN: u32 = 8;
/// How long a fault thread sleeps at a time while there is no crowd.
const NO_CROWD: Duration = Duration::from_secs(60);
/// No particular processor.
pub const NO_CPU: u32 = u32::MAX;

/// One fault thread, as the other threads and the guard see it.
struct Post {
    /// 0: it does not run.
    thread: AtomicU32,
    /// The processor that it has bound itself to.
    cpu: AtomicU32,
    /// Counts its rounds.
    beat: AtomicU64,
    /// It does not sleep in `poll`.
    awake: AtomicBool,
    /// Number of faults that it has read and not answered.
    in_hand: AtomicU32,
    /// Wakes it when there is a crowd.
    bell: Bell,
}

/// State shared by fault threads, the evictor and the guard.
pub struct Yielding {
    /// The guard runs and has the rights that it needs.
    pub(super) offered: AtomicBool,
    /// Faults are dense: the fault thread should be yielding.
    pub(super) wanted: AtomicBool,
    /// They come from several threads.
    pub(super) crowd_wanted: AtomicBool,
    /// Fault threads are yielding.
    pub(super) on: AtomicBool,
    /// All fault threads are active.
    pub(super) crowd: AtomicBool,
    /// The evictor is running or runnable.
    evictor_runs: AtomicBool,
    posts: [Post; FAULT_THREADS_MAX],
    /// Threads that keep off the processor of a fault thread.
    pub(super) others: [AtomicU32; 2],
    /// The thread of the last fault in a crowd; the number of faults, and the number of those from
    /// another thread than the fault before.
    last_thread: AtomicU32,
    crowd_faults: AtomicU32,
    crowd_turns: AtomicU32,
    pub(super) bell: Bell,
}

/// About two microseconds.
const PAUSE_SPINS: u32 = 64;

impl Default for Yielding {
    fn default() -> Yielding {
        let post = || Post {
            thread: AtomicU32::new(0),
            cpu: AtomicU32::new(NO_CPU),
            beat: AtomicU64::new(0),
            awake: AtomicBool::new(false),
            in_hand: AtomicU32::new(0),
            bell: Bell::default(),
        };
        Yielding {
            offered: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            crowd_wanted: AtomicBool::new(false),
            on: AtomicBool::new(false),
            crowd: AtomicBool::new(false),
            evictor_runs: AtomicBool::new(false),
            posts: std::array::from_fn(|_| post()),
            others: [const { AtomicU32::new(0) }; 2],
            last_thread: AtomicU32::new(0),
            crowd_faults: AtomicU32::new(0),
            crowd_turns: AtomicU32::new(0),
            bell: Bell::default(),
        }
    }
}

impl Yielding {
    /// Registers the calling thread as fault thread number `index`.
    pub fn i_am_fault_thread(&self, index: usize) {
        cpu::keep_io_class();
        self.posts[index].thread.store(cpu::this_thread().0, Ordering::Release);
    }

    /// Registers the calling thread as a pager thread other than the fault threads.
    pub fn i_work_beside_it(&self) {
        let me = cpu::this_thread().0;
        let _ = self.others.iter().find(|other| {
            other.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
    }

    /// A fault thread begins another round.
    pub fn round(&self, index: usize) {
        self.posts[index].beat.fetch_add(1, Ordering::Relaxed);
    }

    /// A fault thread goes to sleep, or has been woken.
    pub fn awake(&self, index: usize, awake: bool) {
        self.posts[index].awake.store(awake, Ordering::Relaxed);
    }

    /// A fault thread has read this many faults.
    pub fn takes(&self, index: usize, faults: usize) {
        self.posts[index].in_hand.fetch_add(faults as u32, Ordering::Relaxed);
    }

    /// A fault thread has answered one fault, or put it off.
    pub fn gives(&self, index: usize) {
        self.posts[index].in_hand.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reserves a processor for a fault thread. Returns false if another fault thread is on it.
    pub fn take_cpu(&self, index: usize, cpu: usize) -> bool {
        let is_there = |(other, post): (usize, &Post)| {
            other != index && post.cpu.load(Ordering::Relaxed) == cpu as u32
        };
        if self.is_crowd() && self.posts.iter().enumerate().any(is_there) {
            return false;
        }
        self.posts[index].cpu.store(cpu as u32, Ordering::Relaxed);
        true
    }

    /// Lets the fault threads run on any of these processors: on the one that they are bound to,
    /// other threads get all of the time. They bind themselves again when they follow a fault.
    pub fn let_go(&self, allowed: &Cpus) {
        for (index, post) in self.posts.iter().enumerate() {
            if let Some(thread) = self.fault_thread(index) {
                post.cpu.store(NO_CPU, Ordering::Relaxed);
                allowed.confine(thread);
            }
        }
    }

    /// Runs `sleep`, which returns when a store answers, as a normal thread.
    pub fn waits_for_store<T>(&self, sleep: impl FnOnce() -> T) -> T {
        let was_on = self.is_on();
        if was_on {
            cpu::make_normal_class(cpu::this_thread());
        }
        let ready = sleep();
        if was_on && self.on.load(Ordering::SeqCst) {
            cpu::make_idle_class(cpu::this_thread());
            // The guard first clears `on`, and then makes all threads normal.
            if !self.on.load(Ordering::SeqCst) {
                cpu::make_normal_class(cpu::this_thread());
            }
        }
        ready
    }

    /// Waits a moment before a fault thread polls again. A yielding one spins: a thread that is woken
    /// on its processor preempts it immediately, and `sched_yield` in the idle class has kept
    /// kernel threads from running for seconds (Linux 6.18).
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

    /// Whether fault threads are yielding.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether all fault threads are active.
    pub fn is_crowd(&self) -> bool {
        self.crowd.load(Ordering::Relaxed)
    }

    /// Whether faults have come from several threads of the program lately.
    pub fn has_several(&self) -> bool {
        self.crowd_wanted.load(Ordering::Relaxed)
    }

    /// Whether a fault thread that has been started runs. Waits a moment for that.
    pub fn has_come(&self, index: usize) -> bool {
        let mut looks = 0..1000;
        while self.fault_thread(index).is_none() && looks.next().is_some() {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.fault_thread(index).is_some()
    }

    /// Blocks a fault thread while there is no crowd.
    pub fn wait_for_crowd(&self, index: usize) {
        if !self.is_crowd() {
            self.posts[index].bell.wait(NO_CROWD);
        }
    }

    /// Makes the fault thread do the evictor's work on small blocks, or not.
    #[cfg(any(test, feature = "model"))]
    pub fn force(&self, on: bool, crowd: bool) {
        self.on.store(on, Ordering::Relaxed);
        self.crowd.store(crowd, Ordering::Relaxed);
    }

    /// Stops the guard, and the fault threads that wait for a crowd.
    pub fn stop(&self) {
        self.bell.ring();
        self.ring_crowd();
    }

    /// Wakes the fault threads that wait for a crowd.
    pub(super) fn ring_crowd(&self) {
        self.posts.iter().for_each(|post| post.bell.ring());
    }

    /// A fault thread, if it runs.
    pub(super) fn fault_thread(&self, index: usize) -> Option<ThreadId> {
        Some(self.posts[index].thread.load(Ordering::Acquire))
            .filter(|&thread| thread != 0)
            .map(ThreadId)
    }

    /// The processor that a fault thread has bound itself to.
    pub fn cpu(&self, index: usize) -> u32 {
        self.posts[index].cpu.load(Ordering::Relaxed)
    }

    /// A fault thread's number of rounds; whether it is awake; whether it has read faults that are
    /// not answered.
    pub(super) fn seen(&self, index: usize) -> (u64, bool, bool) {
        let post = &self.posts[index];
        (
            post.beat.load(Ordering::Relaxed),
            post.awake.load(Ordering::Relaxed),
            post.in_hand.load(Ordering::Relaxed) != 0,
        )
    }

    /// Faults of the crowd since the last call, and how many came from another thread than the
    /// fault before.
    pub(super) fn take_crowd(&self) -> (u32, u32) {
        (self.crowd_faults.swap(0, Ordering::Relaxed), self.crowd_turns.swap(0, Ordering::Relaxed))
    }
}

/// Detects whether faults are dense. Used by the first fault thread.
#[derive(Default)]
pub struct Density {
    /// Faults of one thread in a row.
    thread: u32,
    since: Nanos,
    faults: u32,
    /// Faults of all threads, and changes of thread among them.
    all_since: Nanos,
    all: u32,
    turns: u32,
}

impl Density {
    /// Counts a fault of `thread` on a small block at `now`.
    pub fn on_fault(&mut self, yielding: &Yielding, thread: u32, now: Nanos) {
        if yielding.is_crowd() {
            let before = yielding.last_thread.swap(thread, Ordering::Relaxed);
            yielding.crowd_faults.fetch_add(1, Ordering::Relaxed);
            yielding.crowd_turns.fetch_add(u32::from(before != thread), Ordering::Relaxed);
            return;
        }
        if !yielding.offered.load(Ordering::Relaxed) {
            return;
        }
        let is_turn = self.thread != thread;
        if is_turn || now.since(self.since) > DENSE_SPAN {
            (self.thread, self.since, self.faults) = (thread, now, 0);
        }
        if now.since(self.all_since) > DENSE_SPAN {
            (self.all_since, self.all, self.turns) = (now, 0, 0);
        }
        self.faults += 1;
        self.all += 1;
        self.turns += u32::from(is_turn);
        if self.all >= CROWD_FAULTS {
            let is_crowd = self.turns * CROWD_TURN >= self.all;
            (self.all_since, self.all, self.turns) = (now, 0, 0);
            if is_crowd && !yielding.crowd_wanted.swap(true, Ordering::Relaxed) {
                yielding.bell.ring();
            }
        }
        if self.faults >= DENSE_FAULTS && !yielding.is_on() {
            self.faults = 0;
            yielding.wanted.store(true, Ordering::Relaxed);
            yielding.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use hiroma_sys::cpu;

    use crate::config::parse_stores;
    use crate::{Config, Pager};

    #[test]
    fn idle_fault_threads_keep_best_effort_io_class() {
        let pager = Pager::start(Config {
            stores: parse_stores("compressed:64M").unwrap(),
            ..Config::default()
        })
        .unwrap();
        let yielding = &pager.core.lock().live.clone().yielding;
        assert!(yielding.has_come(0));
        let thread = yielding.fault_thread(0).unwrap();
        cpu::make_idle_class(thread);
        assert_eq!(cpu::io_class(thread), 2);
        pager.stop();
    }
}
