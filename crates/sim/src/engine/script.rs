//! Links and nodes that fail and return at given times.

use std::collections::BTreeSet;

use crate::engine::{Engine, EventKind};
use crate::script::{self, Step, What};

/// What is to happen, and what has failed.
#[derive(Debug, Default)]
pub struct Script {
    steps: Vec<Step>,
    links_down: BTreeSet<u32>,
    nodes_down: BTreeSet<u32>,
}

impl Script {
    /// Whether a link does not work: what waits for it is not stuck.
    pub fn has_failed_links(&self) -> bool {
        !self.links_down.is_empty()
    }
}

impl Engine<'_> {
    pub(super) fn plan_script(&mut self) {
        let steps = self.config.event.iter().map(|event| script::step(event, &self.topology));
        // They were valid, or there were no engine.
        let steps: Vec<Step> = steps.filter_map(Result::ok).collect();
        for (number, step) in (1..).zip(&steps) {
            self.at(step.time_ns, EventKind::Fail, number);
        }
        self.script.steps = steps;
    }

    /// Event `number`, from 1.
    pub(super) fn script_step(&mut self, number: u32) {
        if self.ended {
            return;
        }
        let step = self.script.steps[number as usize - 1].clone();
        match step.what {
            What::Links(links) => links.into_iter().for_each(|link| self.set_link(link, step.up)),
            What::Node(node) if step.up => {
                if self.script.nodes_down.remove(&node) {
                    self.repair(node);
                }
            }
            What::Node(node) => {
                if self.nodes[node as usize].up {
                    self.script.nodes_down.insert(node);
                    self.crash(node);
                }
            }
        }
    }

    fn set_link(&mut self, link: u32, up: bool) {
        let changes = if up {
            self.script.links_down.remove(&link)
        } else {
            self.script.links_down.insert(link)
        };
        if !changes {
            return;
        }
        self.topology.set_up(link, up);
        if let Some(fabric) = &mut self.fabric {
            fabric.set_up(self.now_ns, link, up, &mut self.signals);
            self.plan_fabric();
        }
    }

    /// At the end of a run everything works again, so that what is under way can be finished.
    pub(super) fn end_script(&mut self) {
        for link in self.script.links_down.clone() {
            self.set_link(link, true);
        }
        for node in std::mem::take(&mut self.script.nodes_down) {
            self.repair(node);
        }
    }
}
