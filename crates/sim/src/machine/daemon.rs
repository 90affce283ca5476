//! The daemon of a simulated machine: observes memory at intervals, and reclaims in batches that
//! take time.

use hiroma_policy::reclaim::{
    Batch, BatchEnd, Controller, Go, Next, Observation, Reason, Settings,
};

use super::memory::Memory;
use super::{COMPACT_PS, MachineOutcome, NODE_RECLAIM_PS, STEP_NS};

pub(super) struct Daemon {
    controller: Controller,
    /// The time of the next observation, and its latest time if free memory has not changed since
    /// the last one.
    look_at_ns: u64,
    next: Next,
    looked_ns: u64,
    free: u64,
    batch: Option<Under>,
    /// Pages that remain to be compacted.
    compacting: u64,
    last: Option<Reason>,
}

/// A batch under way.
struct Under {
    asked: u64,
    got: u64,
    began_ns: u64,
}

impl Daemon {
    pub(super) fn new(settings: Settings) -> Daemon {
        Daemon {
            controller: Controller::new(settings, 0),
            look_at_ns: 0,
            next: Next { after_ns: 0, changed_pages: 0, latest_ns: 0 },
            looked_ns: 0,
            free: 0,
            batch: None,
            compacting: 0,
            last: None,
        }
    }

    pub(super) fn step(
        &mut self,
        now_ns: u64,
        idle_ppm: u64,
        memory: &mut Memory,
        outcome: &mut MachineOutcome,
    ) {
        if self.batch.is_some() {
            self.work(now_ns, memory, outcome);
        } else if self.compacting > 0 {
            let step = (STEP_NS * 1000 / COMPACT_PS).min(self.compacting);
            self.compacting = if memory.compact(step) { self.compacting - step } else { 0 };
            outcome.daemon_ns += STEP_NS;
        } else if now_ns >= self.look_at_ns {
            let changed = memory.free_pages().abs_diff(self.free);
            if changed < self.next.changed_pages && now_ns < self.looked_ns + self.next.latest_ns {
                self.look_at_ns = now_ns + self.controller.settings().poll_ns;
                return;
            }
            outcome.looks += 1;
            (self.looked_ns, self.free) = (now_ns, memory.free_pages());
            let verdicts = self.controller.observe(
                now_ns,
                &Observation { nodes: vec![memory.look()], idle_ppm, stalled_ns: 0 },
            );
            for verdict in verdicts {
                self.note(now_ns, verdict.reason, outcome);
                self.begin(now_ns, verdict.batch_pages);
                self.compacting = if verdict.compact { memory.free_pages() } else { 0 };
            }
            self.next = self.controller.next();
            self.look_at_ns = now_ns + self.next.after_ns;
        }
    }

    fn begin(&mut self, now_ns: u64, asked: u64) {
        self.batch = (asked > 0).then_some(Under { asked, got: 0, began_ns: now_ns });
    }

    fn work(&mut self, now_ns: u64, memory: &mut Memory, outcome: &mut MachineOutcome) {
        let Some(under) = &mut self.batch else { return };
        let step = (STEP_NS * 1000 / NODE_RECLAIM_PS).min(under.asked - under.got);
        let some = memory.reclaim(step, outcome);
        under.got += some;
        outcome.daemon_pages += some;
        outcome.daemon_ns += STEP_NS;
        if some == step && under.got < under.asked {
            return;
        }
        let took_ns = now_ns - under.began_ns + STEP_NS;
        let end = if under.got < under.asked { BatchEnd::Short } else { BatchEnd::Whole };
        let batch = Batch {
            node: 0,
            asked_pages: under.asked,
            got_pages: under.got,
            took_ns,
            cpu_ns: took_ns,
            end,
        };
        match self.controller.batch_done(now_ns, batch) {
            Go::On(next) => self.begin(now_ns, next),
            Go::Stop(reason) => {
                self.batch = None;
                self.note(now_ns, reason, outcome);
            }
        }
    }

    fn note(&mut self, now_ns: u64, reason: Reason, outcome: &mut MachineOutcome) {
        let new = self.last.is_none_or(|last| !last.is_like(&reason));
        if reason.is_notable() && new {
            outcome.journal.push((now_ns, reason));
        }
        self.last = Some(reason);
    }
}
