//! Threads of the program are woken after the pager's lock has been released: if they share a
//! processor with the thread that wakes them, they run immediately, and may fault again.

use std::sync::Arc;

use hiroma_sys::lock::Afterwards;

use crate::core::Core;
use crate::live::Live;

/// Threads to wake after the lock has been released.
pub struct Wakes {
    live: Arc<Live>,
    ranges: [(usize, usize); WAKES_MAX],
    count: usize,
}

/// Ranges that are woken after one hold of the lock; any more are woken while it is still taken.
const WAKES_MAX: usize = 16;

impl Afterwards for Core {
    type Work = Wakes;

    fn take_work(&mut self) -> Option<Wakes> {
        // Reading an event lets the kernel continue. If it were acted on later, content that
        // arrived since would be lost, and one of our own removals would count as the program's.
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
