//! Writes small blocks to compressed memory in a yielding fault thread.
//!
//! The evictor would do it beside the program, but every page that moves while it runs interrupts
//! its processor, which costs more than compressing a page with LZ4.

use hiroma_sys::vm;
use hiroma_units::Loc;

use crate::core::Core;
use crate::extent::Copy;
use crate::store::{Channel, Completion, Store, Tier, Token};
use crate::writeback::Job;

/// See the module's head.
pub struct Packing {
    /// None: there is no compressed memory.
    channel: Option<Box<dyn Channel>>,
    job: Job,
    /// The store has not accepted the block.
    is_refused: bool,
    completions: Vec<Completion>,
    freed: Vec<Loc>,
}

impl Packing {
    pub fn new(store: &dyn Store) -> Packing {
        Packing {
            channel: store.open_near(),
            job: Job::default(),
            is_refused: false,
            completions: Vec::with_capacity(1),
            freed: Vec::with_capacity(1),
        }
    }

    /// Chooses a staged block that is one sector. Returns false if there is none, or if compressed
    /// memory is full.
    pub fn choose(&mut self, core: &mut Core) -> bool {
        if self.channel.is_none() || !core.store.takes_now() {
            return false;
        }
        loop {
            let next = core.differing.pop_front().or_else(|| core.probation.pop_front());
            let Some((block, stamp)) = next else { return false };
            let Some(entry) = core.awaiting_write(block, stamp) else { continue };
            if entry.drains || block.order() != core.sector_order {
                core.differing.push_front((block, stamp));
                return false;
            }
            let Some((frame, _)) = core.take_for_writing(block, stamp) else { continue };
            self.job.prepare(core, block, stamp, core.frames.addr(frame));
            self.job.tier = core.promotes(block).then_some(Tier::Near);
            return true;
        }
    }

    /// Without the lock: compares the chosen block with its far copy, and writes it if it differs.
    pub fn write(&mut self) {
        let channel = self.channel.as_mut().expect("a block was chosen");
        let job = &mut self.job;
        job.compare();
        let Copy::Stored { loc, .. } = &mut job.copies[0] else { return };
        if !job.changed[0] && job.tier.is_none() {
            return;
        }
        let bytes = job.block.expect("a block was chosen").bytes();
        let mut new = [Loc(0)];
        let written = channel.write(Token(0), vm::lend(job.addr, bytes), &mut new);
        if written.is_ok() {
            (*loc, job.written) = (new[0], bytes);
            job.changed[0] = true;
            channel.poll(&mut self.completions);
            debug_assert_eq!(self.completions.len(), 1, "compressed memory answers at once");
            self.completions.clear();
        } else {
            // Unchanged content stays where it is.
            self.is_refused = job.changed[0];
        }
    }

    /// Records what was written.
    pub fn commit(&mut self, core: &mut Core) {
        if std::mem::take(&mut self.is_refused) {
            self.job.give_back(core, &mut self.freed);
        } else {
            self.job.commit(core, &mut self.freed);
        }
        if !self.freed.is_empty() {
            core.store.free(&self.freed);
            self.freed.clear();
        }
        core.in_flight -= 1;
        core.live.wake_fault_thread_if_waiting();
    }
}
