//! Samples of the machine.

use crate::engine::Engine;
use crate::engine::node::{Doing, NO_FRAME};
use crate::outcome::{NodeLoad, Sample};

impl Engine<'_> {
    /// Takes a sample if it is time for one.
    #[inline]
    pub(super) fn observe(&mut self) {
        if self.observer.as_ref().is_some_and(|observer| observer.is_due(self.now_ns)) {
            self.take_sample();
        }
    }

    #[cold]
    fn take_sample(&mut self) {
        let Some(mut observer) = self.observer.take() else { return };
        if self.ended {
            return self.out.observed = Some(observer.into_observed());
        }
        let sample = Sample {
            threads: self.busy_nodes,
            waiting: self.waiting,
            frames_used: self.used_frames,
            ..Sample::of(&self.out, self.now_ns, self.measuring)
        };
        observer.add(sample, |number| self.load(number));
        self.observer = Some(observer);
    }

    fn load(&self, number: usize) -> NodeLoad {
        let node = &self.nodes[number];
        let waits = node.thread.as_ref().map(|thread| thread.doing != Doing::Running);
        let guest = |table: u32| self.tables.get(table).node != number as u32;
        let pages = node.frames.iter().filter(|frame| frame.table != NO_FRAME);
        NodeLoad {
            frames_used: node.used.into(),
            guests: pages.filter(|frame| guest(frame.table)).count() as u64,
            busy: waits.is_some().into(),
            waiting: (waits == Some(true)).into(),
            queued: node.extra.as_ref().map_or(0, |extra| extra.queue.len()) as u64,
        }
    }
}
