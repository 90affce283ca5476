//! Threads of the program are woken when the pager's lock is free again: where they share a
//! processor with whoever wakes them, they run at once, and may fault again.

use std::sync::Arc;

use hiroma_kernel::lock::Afterwards;

use crate::core::Core;
use crate::live::Live;

/// Threads to wake once the lock is free.
pub struct Wakes {
    live: Arc<Live>,
    ranges: [(usize, usize); WAKES_MAX],
    count: usize,
}

/// Ranges that are woken after one hold of the lock; more are woken while it is held.
const WAKES_MAX: usize = 16;

impl Afterwards for Core {
    type Work = Wakes;

    fn take_work(&mut self) -> Option<Wakes> {
        // An event that was read lets the kernel go on: acted on later, it would strike content
        // that came since, and one of our own removals would pass for the program's.
        self.catch_up();
        if self.wakes.is_empty() {
            return None;
        }
        let more = self.wakes.len().saturating_sub(WAKES_MAX);
        for (addr, len) in self.wakes.drain(..more) {
            self.live.memory.wake(addr, len);
        }
        let mut ranges = [(0, 0); WAKES_MAX];
        let count = self.wakes.len();
        ranges[..count].copy_from_slice(&self.wakes);
        self.wakes.clear();
        Some(Wakes { live: self.live.clone(), ranges, count })
    }

    fn do_work(wakes: Wakes) {
        for &(addr, len) in &wakes.ranges[..wakes.count] {
            wakes.live.memory.wake(addr, len);
        }
    }
}
