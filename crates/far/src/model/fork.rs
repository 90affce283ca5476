//! Forks: the parent's pager prepares and continues, and a child's begins, with the product's own
//! code. What the kernel copies in between (the tables and the content of frames) is copied here.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hiroma_sys::lock::Lock;

use super::Schedule;
use super::kernel::State;
use super::process::Process;
use crate::canary;
use crate::fork;

/// Maximum number of rounds in which pending operations must end.
const ROUNDS_MAX: usize = 5_000;
/// Number of times that a thread tries to fork with its pages in memory.
const TRIES: usize = 20;

impl Process {
    /// Lets the process run until `is_so` returns true. Returns false if that never happened.
    fn run_until(&mut self, is_so: impl Fn(&Process) -> bool) -> bool {
        for round in 0..ROUNDS_MAX {
            if is_so(self) {
                return true;
            }
            self.program(State::step);
            self.pager(round % 10);
        }
        false
    }

    /// Stops the pager with the pages `keep` in memory. Returns false if they were never in memory
    /// at the same time.
    fn stand_still(&mut self, at: usize, keep: [usize; 2]) -> Result<bool, String> {
        let addrs = keep.map(|page| AtomicUsize::new(self.program(|state| state.addr_of(page))));
        for _ in 0..TRIES {
            for page in keep {
                self.program(|state| state.touch_before_fork(at, page));
                if !self.run_until(|process| process.program(|state| state.is_forking(at))) {
                    return Err("a thread waits for ever before it forks".to_owned());
                }
            }
            if !canary::is_broken("nothing under way in a fork") {
                self.core.lock().quiesce = true;
                if !self.run_until(|process| process.core.lock().in_flight == 0) {
                    return Err("a fork waits for ever".to_owned());
                }
            }
            if fork::prepare(&self.core, &addrs) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Schedule {
    /// Forks the first process.
    pub(super) fn fork(&mut self) -> Result<(), String> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let parent = &mut self.processes[0];
        let Some((at, keep)) = parent.program(State::begin_fork) else { return Ok(()) };
        if parent.stand_still(at, keep)? {
            let (number, inner) = (self.forks + 1, Arc::new(shared.of_child()));
            (0..self.random.below(8)).for_each(|_| parent.program(State::step));
            let state = parent.program(|state| state.child(at, number));
            let of_parent = parent.core.resume_held();
            let mut child = Process::new(&self.setup, number, state, inner, |core, state| {
                of_parent.copy_to(core);
                let place = |addr| of_parent.frames.addr_in(&core.frames, addr);
                let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                parent.program(|of_parent| state.holes_of(of_parent, place));
                state.touch_kept(&keep);
                state.touch_early(|page| core.reads_as_zeros(page));
                drop(state);
                core.adopted();
                core.take_over_touched().expect("only what reads as zeros was touched");
            });
            child.fork = of_parent.forks_made;
            Lock::hold(of_parent);
            (0..self.random.below(8)).for_each(|_| parent.program(State::step));
            fork::go_on_in_parent(&parent.core, &parent.live);
            self.processes.push(child);
            self.forks += 1;
        }
        self.processes[0].program(|state| state.end_fork(at));
        Ok(())
    }

    /// Ends a child; its parent's pager notices.
    pub(super) fn end_child(&mut self) {
        let Some(child) = self.processes.len().checked_sub(1).filter(|&last| last > 0) else {
            return;
        };
        let gone = self.processes.swap_remove(1 + self.random.below(child));
        self.finished.push(gone.program(|state| state.sums()));
        self.processes[0].core.lock().new_forks.retain(|fork| fork.number != gone.fork);
    }
}
