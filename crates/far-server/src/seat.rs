//! The processor on which a connection's thread runs while a client on this machine waits for one
//! small reply after the other.
//!
//! Spinning for the next request on the client's processor would keep the client from sending it.
//! Sleeping there is no better with two processors: the other one halts, and waking it costs more
//! than the reply (`docs/internals/far-memory.md`). So the thread moves to another processor, and
//! is allowed on all of its processors again once the requests have ended.

use std::time::{Duration, Instant};

use hiroma_sys::cpu::{self, Cpus};

/// This many small replies in a row on the client's processor justify a move.
const ANSWERS_BESIDE: u32 = 32;
/// A client does not wait for individual replies larger than this: it streams.
const SMALL_BYTES_MAX: u32 = 64 << 10;
/// The scheduler moves the client too; minimum time between moves after it.
const MOVE_PAUSE: Duration = Duration::from_millis(50);

/// See the module's head.
pub struct Seat {
    /// The processors on which the thread may run; none if they are not known, or there is only
    /// one.
    home: Option<Cpus>,
    answers_beside: u32,
    moved_at: Option<Instant>,
}

impl Seat {
    /// The seat of the calling thread.
    pub fn new() -> Seat {
        Seat {
            home: Cpus::of_this_thread().filter(|cpus| cpus.count() > 1),
            answers_beside: 0,
            moved_at: None,
        }
    }

    /// A reply with `bytes` of content was sent.
    pub fn answered(&mut self, bytes: u32) {
        self.answers_beside =
            if bytes <= SMALL_BYTES_MAX { self.answers_beside.saturating_add(1) } else { 0 };
    }

    /// Called before a wait; `is_beside`: the client was on this processor when it last sent. Returns
    /// whether the thread is beside its client; if that has lasted for a while, the thread moves
    /// away.
    pub fn is_beside_client(&mut self, is_beside: bool) -> bool {
        if !is_beside {
            self.answers_beside = 0;
            return false;
        }
        let pausing = self.moved_at.is_some_and(|at| at.elapsed() < MOVE_PAUSE);
        let Some(home) = self.home.filter(|_| self.answers_beside >= ANSWERS_BESIDE && !pausing)
        else {
            return true;
        };
        self.moved_at = Some(Instant::now());
        self.answers_beside = 0;
        !home.without(cpu::this_processor()).confine(cpu::this_thread())
    }

    /// The sequence of small requests has ended.
    pub fn come_home(&mut self) {
        self.answers_beside = 0;
        if let (Some(home), Some(_)) = (self.home, self.moved_at.take()) {
            home.confine(cpu::this_thread());
        }
    }
}
