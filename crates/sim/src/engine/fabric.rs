//! Messages in a network that has events of its own ([`crate::network::Fabric`]). A small message
//! may overtake a large one there; but those about one page between the same two nodes are received
//! in the order in which they were sent, as over one connection.

use std::collections::{BTreeMap, VecDeque};

use crate::engine::{Engine, EventKind};
use crate::message::{Message, UNKNOWN};
use crate::network::Done;

/// The time of what is reported by an event later.
const LATER: u64 = u64::MAX;

/// Messages about one page between two nodes, by what they have in common.
type About = [u32; 4];

fn about(message: &Message) -> Option<About> {
    let Message { source, target, table, page, .. } = *message;
    (table != UNKNOWN).then_some([source, target, table, page])
}

/// Messages under way about each page, in the order in which they were sent, and whether they are
/// there already.
#[derive(Debug, Default)]
pub struct InOrder(BTreeMap<About, VecDeque<(u32, bool)>>);

impl InOrder {
    fn sent(&mut self, message: &Message, slot: u32) {
        if let Some(about) = about(message) {
            self.0.entry(about).or_default().push_back((slot, false));
        }
    }

    /// Message `slot` is there. Returns the messages that can be received now.
    fn there(&mut self, message: &Message, slot: u32) -> Vec<u32> {
        let Some(about) = about(message) else { return vec![slot] };
        let Some(waiting) = self.0.get_mut(&about) else { return vec![slot] };
        waiting.iter_mut().filter(|(other, _)| *other == slot).for_each(|(_, there)| *there = true);
        let ready = waiting.iter().take_while(|(_, there)| *there).count();
        let ready: Vec<u32> = waiting.drain(..ready).map(|(slot, _)| slot).collect();
        if waiting.is_empty() {
            self.0.remove(&about);
        }
        ready
    }
}

impl Engine<'_> {
    /// As [`Engine::post`].
    pub(super) fn post_by_fabric(&mut self, message: Message) -> (u64, u32) {
        let mut route = std::mem::take(&mut self.route);
        self.topology.route(message.source, message.target, &mut route);
        let has_page = message.kind.has_page();
        let slot = self.messages.insert(message);
        let sent_ns = if route.is_empty() {
            self.arrived(slot, 0);
            self.now_ns
        } else {
            self.in_order.sent(&message, slot);
            self.send_by_fabric(slot, has_page, &route);
            LATER
        };
        self.route = route;
        (sent_ns, slot)
    }

    pub(super) fn send_by_fabric(&mut self, slot: u32, has_page: bool, route: &[u32]) {
        let Some(fabric) = &mut self.fabric else { return };
        let pages = u32::from(has_page);
        fabric.send(self.now_ns, slot, pages, route, &self.topology, &mut self.signals);
        self.plan_fabric();
    }

    /// A frame becomes free when the message `slot`, which leaves it, has been sent.
    pub(super) fn free_when_sent(&mut self, slot: u32, sent_ns: u64, frame: u32) {
        if sent_ns == LATER {
            self.frames_sent.insert(slot, frame);
        } else {
            self.at(sent_ns, EventKind::FrameFree, frame);
        }
    }

    /// An event of the network.
    pub(super) fn fabric_event(&mut self, what: u32) {
        let Some(fabric) = &mut self.fabric else { return };
        fabric.event(self.now_ns, what, &mut self.signals);
        self.plan_fabric();
        while let Some(done) = self.signals.done.pop_front() {
            match done {
                Done::Sent(slot) => {
                    if let Some(frame) = self.frames_sent.remove(&slot) {
                        self.at(self.now_ns, EventKind::FrameFree, frame);
                    }
                }
                Done::Arrived(slot) => {
                    let message = *self.messages.get(slot);
                    if message.spreads {
                        self.spread(message);
                    }
                    for slot in self.in_order.there(&message, slot) {
                        self.arrived(slot, 0);
                    }
                }
            }
        }
    }

    pub(super) fn plan_fabric(&mut self) {
        let mut wakes = std::mem::take(&mut self.signals.wakes);
        for (time_ns, what) in wakes.drain(..) {
            self.at(time_ns, EventKind::Fabric, what);
        }
        self.signals.wakes = wakes;
    }
}
