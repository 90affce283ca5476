//! Samples of the cluster.

use super::Engine;
use super::node::Doing;
use crate::outcome::{NodeLoad, Sample};

impl Engine<'_> {
    /// Takes a sample if it is time for one.
    pub(super) fn observe(&mut self) {
        if !self.observer.as_ref().is_some_and(|observer| observer.is_due(self.now_ns)) {
            return;
        }
        let Some(mut observer) = self.observer.take() else { return };
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
        let (node, pieces) = (&self.nodes[number], self.pieces());
        let waits = node.thread.as_ref().map(|thread| thread.doing != Doing::Running);
        NodeLoad {
            frames_used: node.used(pieces).into(),
            guests: node.guest_slots.div_ceil(pieces).into(),
            busy: waits.is_some().into(),
            waiting: (waits == Some(true)).into(),
            queued: node.queue.len() as u64,
        }
    }
}
