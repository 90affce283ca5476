//! Links and nodes that fail and return by script.
//!
//! What is under way over a link that has failed waits for it, or takes another way. For the members
//! this is delay, of which they cannot tell the reason.

use super::{Engine, EventKind};
use crate::script::{Change, Outages};

impl Engine<'_> {
    pub(super) fn plan_script(&mut self) {
        self.outages = Outages::new(self.config, &self.topology);
        for (number, time_ns) in (1..).zip(self.outages.times_ns()) {
            self.at(time_ns, EventKind::Fail, number);
        }
    }

    /// Step `number`, from 1.
    pub(super) fn script_step(&mut self, number: u32) {
        if self.ended {
            return;
        }
        let works = |node: u32| self.nodes[node as usize].member.is_some();
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

    /// At the end of a run everything works again, so that the cluster can come to rest.
    pub(super) fn end_script(&mut self) {
        let changes = self.outages.end();
        changes.into_iter().for_each(|change| self.fails_or_returns(change));
    }
}
