//! Links and nodes that fail and return at given times.

use crate::engine::{Engine, EventKind};
use crate::script::{Change, Outages};

impl Engine<'_> {
    pub(super) fn plan_script(&mut self) {
        self.outages = Outages::new(self.config, &self.topology);
        for (number, time_ns) in (1..).zip(self.outages.times_ns()) {
            self.at(time_ns, EventKind::Fail, number);
        }
    }

    /// Event `number`, from 1.
    pub(super) fn script_step(&mut self, number: u32) {
        if self.ended {
            return;
        }
        let works = |node: u32| self.nodes[node as usize].up;
        let changes = self.outages.step(number as usize - 1, works);
        changes.into_iter().for_each(|change| self.fails_or_returns(change));
    }

    fn fails_or_returns(&mut self, change: Change) {
        match change {
            Change::Link(link, up) => {
                self.topology.set_up(link, up);
                if let Some(fabric) = &mut self.fabric {
                    fabric.set_up(self.now_ns, link, up, &mut self.signals);
                    self.plan_fabric();
                }
            }
            Change::Node(node, true) => self.repair(node),
            Change::Node(node, false) => self.crash(node),
        }
    }

    /// At the end of a run everything works again, so that what is under way can be finished.
    pub(super) fn end_script(&mut self) {
        let changes = self.outages.end();
        changes.into_iter().for_each(|change| self.fails_or_returns(change));
    }
}
