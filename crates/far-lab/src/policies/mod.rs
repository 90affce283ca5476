//! Which page is evicted, by policies that see every touch. No pager sees that much: their results
//! show what there is to gain.

mod adaptive;
mod belady;
mod queues;
mod recency;
#[cfg(test)]
mod tests;

use crate::costs::{Costs, PolicyOutcome};
use crate::trace::{StepKind, Trace};

pub use adaptive::Arc;
pub use belady::Belady;
pub use queues::{Clock, Fifo, S3Fifo, Sieve};
pub use recency::{Generations, Lru};

/// A policy over pages. It is informed of each touch, and returns a victim when memory is full.
pub trait Policy {
    /// A resident page is touched, by step `at`.
    fn hit(&mut self, at: usize, page: u32);

    /// Memory is full, and `incoming` is to be mapped: returns a resident page and removes it.
    fn evict(&mut self, incoming: u32) -> u32;

    /// A page becomes resident, by step `at`.
    fn admit(&mut self, at: usize, page: u32);

    /// The program has discarded a resident page.
    fn forget(&mut self, page: u32);
}

/// The policies by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Belady,
    Lru,
    Fifo,
    Clock,
    Generations,
    S3Fifo,
    Sieve,
    Arc,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Belady,
        Kind::Lru,
        Kind::Fifo,
        Kind::Clock,
        Kind::Generations,
        Kind::S3Fifo,
        Kind::Sieve,
        Kind::Arc,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Belady => "belady",
            Kind::Lru => "lru",
            Kind::Fifo => "fifo",
            Kind::Clock => "clock",
            Kind::Generations => "mglru",
            Kind::S3Fifo => "s3fifo",
            Kind::Sieve => "sieve",
            Kind::Arc => "arc",
        }
    }

    /// Runs a trace with room for `capacity` pages.
    pub fn simulate(self, trace: &Trace, capacity: usize, costs: &Costs) -> PolicyOutcome {
        let pages = trace.arena_pages;
        match self {
            Kind::Belady => simulate(trace, capacity, &mut Belady::new(trace), costs),
            Kind::Lru => simulate(trace, capacity, &mut Lru::new(pages), costs),
            Kind::Fifo => simulate(trace, capacity, &mut Fifo::new(pages), costs),
            Kind::Clock => simulate(trace, capacity, &mut Clock::new(pages), costs),
            Kind::Generations => simulate(trace, capacity, &mut Generations::new(pages), costs),
            Kind::S3Fifo => simulate(trace, capacity, &mut S3Fifo::new(pages, capacity), costs),
            Kind::Sieve => simulate(trace, capacity, &mut Sieve::new(pages), costs),
            Kind::Arc => simulate(trace, capacity, &mut Arc::new(pages, capacity), costs),
        }
    }
}

const THERE: u8 = 1;
/// Written since it became resident.
const DIRTY: u8 = 2;
/// There is a copy in the store.
const FAR: u8 = 4;

/// Runs a trace through a policy.
pub fn simulate(
    trace: &Trace,
    capacity: usize,
    policy: &mut impl Policy,
    costs: &Costs,
) -> PolicyOutcome {
    let capacity = capacity.max(1);
    let mut state = vec![0u8; trace.arena_pages];
    let (mut there, mut outcome) = (0, PolicyOutcome::default());
    for (at, step) in trace.steps.iter().enumerate() {
        let (page, what) = (step.page(), step.what());
        let before = state[page as usize];
        if what == StepKind::Discard {
            if before & THERE != 0 {
                policy.forget(page);
                there -= 1;
            }
            state[page as usize] = 0;
            continue;
        }
        let dirty = if what == StepKind::Write { DIRTY } else { 0 };
        if before & THERE != 0 {
            policy.hit(at, page);
            state[page as usize] |= dirty;
            continue;
        }
        if there == capacity {
            let victim = &mut state[policy.evict(page) as usize];
            let written = u64::from(*victim & DIRTY != 0);
            outcome.leave(costs, written, 1 - written);
            *victim = if *victim & (DIRTY | FAR) != 0 { FAR } else { 0 };
        } else {
            there += 1;
        }
        policy.admit(at, page);
        if before & FAR != 0 {
            outcome.fetch(costs, 1)
        } else {
            outcome.fresh(costs, 1)
        }
        state[page as usize] = before & FAR | THERE | dirty;
    }
    outcome
}
