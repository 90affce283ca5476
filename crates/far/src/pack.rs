//! Writes small blocks to compressed memory in a yielding fault thread.
//!
//! The evictor would do it beside the program, but every page that moves while it runs interrupts
//! its processor, which costs more than compressing a page with LZ4.

use hiroma_sys::vm;
use hiroma_units::Loc;

use crate::core::Core;
use crate::extent::CLUSTER_ORDER;
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
    /// Where sectors of the block have been written.
    wrote: Vec<Loc>,
    freed: Vec<Loc>,
}

impl Packing {
    pub fn new(store: &dyn Store) -> Packing {
        Packing {
            channel: store.open_near(),
            job: Job::default(),
            is_refused: false,
            completions: Vec::with_capacity(1),
            wrote: Vec::with_capacity(1 << CLUSTER_ORDER),
            freed: Vec::with_capacity(1 << CLUSTER_ORDER),
        }
    }

    /// Chooses a staged small block. Returns false if there is none, or if compressed
    /// memory is full.
    pub fn choose(&mut self, core: &mut Core) -> bool {
        if self.channel.is_none() || !core.store.takes_now() {
            return false;
        }
        loop {
            let next = core.differing.pop_front().or_else(|| core.probation.pop_front());
            let Some((block, stamp)) = next else { return false };
            let Some(entry) = core.awaiting_write(block, stamp) else { continue };
            if entry.drains || block.is_huge() {
                core.differing.push_front((block, stamp));
                return false;
            }
            let Some((frame, _)) = core.take_for_writing(block, stamp) else { continue };
            self.job.prepare(core, block, stamp, core.frames.addr(frame));
            self.job.tier = core.promotes(block).then_some(Tier::Near);
            return true;
        }
    }

    /// Without the lock: compares the chosen block with its far copies, and writes what differs.
    pub fn write(&mut self) {
        let channel = self.channel.as_mut().expect("a block was chosen");
        let job = &mut self.job;
        job.compare();
        let moves = job.tier.is_some();
        let sector_bytes = job.block.expect("a block was chosen").bytes() / job.copies.len();
        let mut at = 0;
        while let Some((from, to)) = job.next_to_write(at, moves) {
            let mut new = [Loc(0); 1 << CLUSTER_ORDER];
            let new = &mut new[..to - from];
            let buf = vm::lend(job.addr + from * sector_bytes, (to - from) * sector_bytes);
            if channel.write(Token(0), buf, new).is_err() {
                // Unchanged content stays where it is.
                self.is_refused = (at.max(from)..job.copies.len()).any(|at| job.changed[at]);
                break;
            }
            channel.poll(&mut self.completions);
            debug_assert_eq!(self.completions.len(), 1, "compressed memory answers at once");
            self.completions.clear();
            job.wrote(from, new);
            self.wrote.extend_from_slice(new);
            job.written += (to - from) * sector_bytes;
            at = to;
        }
    }

    /// Records what was written.
    pub fn commit(&mut self, core: &mut Core) {
        if std::mem::take(&mut self.is_refused) {
            // The evictor writes all of it.
            self.freed.append(&mut self.wrote);
            self.job.give_back(core, &mut self.freed);
        } else {
            self.job.commit(core, &mut self.freed);
        }
        self.wrote.clear();
        if !self.freed.is_empty() {
            core.store.free(&self.freed);
            self.freed.clear();
        }
        core.in_flight -= 1;
        core.live.wake_fault_thread_if_waiting();
    }
}
