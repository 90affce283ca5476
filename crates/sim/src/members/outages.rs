//! Links and nodes that fail and return by script.
//!
//! What is under way over a link that has failed waits for it, or takes another way. For the members
//! this is delay, of which they cannot tell the reason.

use super::{Engine, EventKind};
use crate::script::{Outages, Scripted};

impl Engine<'_> {
    pub(super) fn plan_script(&mut self) {
        self.outages = Outages::new(self.config, &self.topology);
        for (number, time_ns) in (1..).zip(self.outages.times_ns()) {
            self.at(time_ns, EventKind::Fail, number);
        }
        // A node that is not there yet is as one in an outage, which ends when it joins.
        self.absent = self.outages.absent().clone();
        for &node in &self.absent {
            self.downs.begin(node);
        }
    }
}

impl Scripted for Engine<'_> {
    fn outages(&mut self) -> &mut Outages {
        &mut self.outages
    }

    fn set_link(&mut self, link: u32, up: bool) {
        self.topology.set_up(link, up);
        if let Some(fabric) = &mut self.fabric {
            fabric.set_up(self.now_ns, link, up, &mut self.signals);
            self.plan_fabric();
        }
    }

    fn set_node(&mut self, node: u32, up: bool) {
        if up {
            self.repair(node);
        } else {
            self.crash(node);
        }
    }
}
