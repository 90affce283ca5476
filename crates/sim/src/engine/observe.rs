//! What a run was like over time, and at each node: samples at equal distances. They change nothing
//! of the run.

use crate::engine::Engine;
use crate::engine::node::Doing;
use crate::outcome::{NodeLoad, Observed, Sample};

/// Frames that are looked at in a whole run, at most: more nodes or frames, fewer samples.
const LOOKS_MAX: u64 = 50_000_000;
/// Fewer samples say nothing.
const SAMPLES_MIN: u64 = 20;

/// Takes samples.
#[derive(Debug)]
pub struct Observer {
    every_ns: u64,
    next_ns: u64,
    observed: Box<Observed>,
}

impl Observer {
    /// Takes about `samples` samples until `end_ns`, of `nodes` nodes with `frames` frames.
    pub fn new(samples: u32, end_ns: u64, nodes: u64, frames: u32) -> Self {
        let most = LOOKS_MAX / (nodes * u64::from(frames)).max(1);
        let samples = u64::from(samples).min(most.max(SAMPLES_MIN)).max(1);
        let every_ns = (end_ns / samples).max(1);
        let loads = vec![NodeLoad::default(); nodes as usize];
        let observed = Observed { loads, ..Observed::default() };
        Observer { every_ns, next_ns: every_ns, observed: Box::new(observed) }
    }

    /// What was observed.
    pub fn into_observed(self) -> Box<Observed> {
        self.observed
    }
}

impl Engine<'_> {
    /// Takes a sample if it is time for one.
    #[inline]
    pub(super) fn observe(&mut self) {
        if self.observer.as_ref().is_some_and(|observer| self.now_ns >= observer.next_ns) {
            self.take_sample();
        }
    }

    #[cold]
    fn take_sample(&mut self) {
        let Some(mut observer) = self.observer.take() else { return };
        if self.ended {
            return self.out.observed = Some(observer.into_observed());
        }
        let out = &self.out;
        observer.observed.samples.push(Sample {
            now_ns: self.now_ns,
            measured: self.measuring,
            threads: self.busy_nodes,
            waiting: self.waiting,
            frames_used: self.used_frames,
            faults: out.response_ns.count(),
            response_ns: out.response_ns.sum(),
            page_outs: out.page_outs,
            placed_remote: out.placed_remote,
            placed_disk: out.placed_disk,
        });
        if self.measuring {
            observer.observed.load_samples += 1;
            for (number, node) in self.nodes.iter().enumerate() {
                let load = &mut observer.observed.loads[number];
                load.frames_used += u64::from(node.used);
                if let Some(thread) = &node.thread {
                    load.busy += 1;
                    load.waiting += u64::from(thread.doing != Doing::Running);
                }
                let guest = |table: u32| self.tables.get(table).node != number as u32;
                let pages = node.frames.iter().filter(|frame| frame.table != super::node::NO_FRAME);
                load.guests += pages.filter(|frame| guest(frame.table)).count() as u64;
                let queue = node.extra.as_ref().map_or(0, |extra| extra.queue.len());
                load.queued += queue as u64;
            }
        }
        observer.next_ns = self.now_ns - self.now_ns % observer.every_ns + observer.every_ns;
        self.observer = Some(observer);
    }
}
