//! The decisions of a schedule.

use std::cell::RefCell;
use std::collections::VecDeque;

use hiroma_policy::placement::Rng;

/// Random numbers of a schedule.
pub struct Random(Rng);

thread_local! {
    /// Decisions of a fuzzer; the generator continues where they end.
    pub static TAPE: RefCell<VecDeque<u8>> = const { RefCell::new(VecDeque::new()) };
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, n: usize) -> usize {
        let told = TAPE.with(|tape| tape.borrow_mut().pop_front());
        (told.map_or_else(|| self.next(), u64::from) % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
