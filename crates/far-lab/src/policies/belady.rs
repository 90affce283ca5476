//! Belady's optimum: evicts the page whose next use is latest. It knows the future.

use std::collections::BinaryHeap;

use super::Policy;
use crate::trace::{StepKind, Trace};

/// A step that never occurs.
const NEVER: u32 = u32::MAX;

/// The optimum for one trace.
pub struct Belady {
    /// For each step, the next one that touches its page before the program discards it.
    next: Vec<u32>,
    /// For each resident page, the step at which it is needed next.
    wanted: Vec<u32>,
    /// The same with the latest first, including stale entries.
    latest: BinaryHeap<(u32, u32)>,
}

/// Marks a page that is not resident; no valid step either.
const ABSENT: u32 = u32::MAX - 1;

impl Belady {
    pub fn new(trace: &Trace) -> Belady {
        let mut soonest = vec![NEVER; trace.arena_pages];
        let mut next = vec![NEVER; trace.steps.len()];
        for (at, step) in trace.steps.iter().enumerate().rev() {
            let page = step.page() as usize;
            next[at] = soonest[page];
            soonest[page] = if step.what() == StepKind::Discard { NEVER } else { at as u32 };
        }
        Belady { next, wanted: vec![ABSENT; trace.arena_pages], latest: BinaryHeap::new() }
    }

    /// Drops stale entries once they are the majority.
    fn tidy(&mut self) {
        if self.latest.len() > 4 * self.wanted.len() + 1024 {
            let wanted = &self.wanted;
            self.latest.retain(|&(next, page)| wanted[page as usize] == next);
        }
    }
}

impl Policy for Belady {
    fn hit(&mut self, at: usize, page: u32) {
        self.wanted[page as usize] = self.next[at];
        self.latest.push((self.next[at], page));
        self.tidy();
    }

    fn evict(&mut self, _incoming: u32) -> u32 {
        loop {
            let (next, page) = self.latest.pop().expect("memory that is full has pages");
            if self.wanted[page as usize] == next {
                self.wanted[page as usize] = ABSENT;
                return page;
            }
        }
    }

    fn admit(&mut self, at: usize, page: u32) {
        self.hit(at, page);
    }

    fn forget(&mut self, page: u32) {
        self.wanted[page as usize] = ABSENT;
    }
}
