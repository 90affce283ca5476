//! Messages under way: sent, forwarded, arrived.

use hiroma_policy::placement::{Event, Peer, Stamp};

use crate::engine::{Engine, EventKind};
use crate::message::{Kind, Message};

impl Engine<'_> {
    /// Sends a message. Returns when the sender has sent everything, ns, and the message's number.
    pub(super) fn post(&mut self, mut message: Message) -> (u64, u32) {
        self.checker.sent();
        self.count(message.kind);
        if self.fabric.is_some() {
            return self.post_by_fabric(message);
        }
        message.at = self.topology.start(message.source);
        let first = self.topology.next(message.at, message.source, message.target);
        match first {
            Some((link, next)) => {
                let hop = self.network.send(self.now_ns, link, message.kind.has_page());
                message.at = next;
                let slot = self.messages.insert(message);
                self.at(hop.on_ns, EventKind::Hop, slot);
                (hop.sent_ns, slot)
            }
            None => {
                let slot = self.messages.insert(message);
                self.arrived(slot, 0);
                (self.now_ns, slot)
            }
        }
    }

    /// Sends a message to the whole domain of a node.
    pub(super) fn post_to_peers(&mut self, kind: Kind, node: u32, value: u32) {
        if kind == Kind::Told && self.config.network.free_information {
            self.tell_at_once(node, value);
            return;
        }
        if self.config.network.multicast && self.spread(Message::new(kind, node, node, value)) {
            return;
        }
        for peer in 0..self.shared.of(node).peers() {
            let target = self.topology.peer(node, Peer(peer));
            self.post(Message::new(kind, node, target, value));
        }
    }

    /// Reports the free frames of a node to its domain without a message.
    fn tell_at_once(&mut self, node: u32, value: u32) {
        for peer in 0..self.shared.of(node).peers() {
            let target = self.topology.peer(node, Peer(peer));
            let teller =
                self.topology.peer_of(target, node).filter(|_| self.nodes[target as usize].up);
            if let Some(peer) = teller {
                // In a domain this has no consequences: the node only knows more.
                self.nodes[target as usize].placer.handle(
                    self.now_ns,
                    Event::Told { peer, stamp: Stamp::default(), value },
                    &mut Vec::new(),
                );
            }
        }
    }

    /// Forwards a message for a domain from its present node. Returns whether there is a tree for
    /// that.
    pub(super) fn spread(&mut self, message: Message) -> bool {
        let Some((ways, count)) = self.topology.spread(message.source, message.target) else {
            return false;
        };
        for &(link, next) in &ways[..count] {
            self.checker.sent();
            self.count(message.kind);
            let slot =
                self.messages.insert(Message { at: next, target: next, spreads: true, ..message });
            if self.fabric.is_some() {
                self.send_by_fabric(slot, false, &[link]);
                continue;
            }
            let hop = self.network.send(self.now_ns, link, false);
            self.at(hop.on_ns, EventKind::Hop, slot);
        }
        true
    }

    fn count(&mut self, kind: Kind) {
        if !self.measuring {
            return;
        }
        let counts = &mut self.out.messages;
        let count = match kind {
            Kind::Told | Kind::Restarted => &mut counts.information,
            Kind::BidAsked | Kind::Bid => &mut counts.bids,
            Kind::ReservationAsked | Kind::ReservationAnswered | Kind::ReservationReleased => {
                &mut counts.reservations
            }
            Kind::PageOut | Kind::PageBack | Kind::PageToDisk => &mut counts.pages_out,
            Kind::Fetch | Kind::FetchFromDisk | Kind::NotHere => &mut counts.requests,
            Kind::PageIn => &mut counts.pages_in,
            Kind::Placed | Kind::Discard | Kind::Taken => &mut counts.bookkeeping,
        };
        *count += 1;
    }

    /// A message is at the next node or switch of its route.
    #[inline]
    pub(super) fn hop(&mut self, slot: u32) {
        let Message { kind, at, source, target, spreads, .. } = *self.messages.get(slot);
        let has_page = kind.has_page();
        match self.topology.next(at, source, target) {
            Some((link, next)) => {
                let forward_ns = self.forward_ns[usize::from(has_page)];
                if forward_ns > 0 {
                    let done_ns = self.occupy(at, self.now_ns, forward_ns);
                    self.at(done_ns, EventKind::Forward, slot);
                    return;
                }
                self.onto(slot, link, next, has_page);
            }
            None => {
                if spreads {
                    let message = *self.messages.get(slot);
                    self.spread(message);
                }
                self.arrived(slot, self.network.tail_ns(has_page));
            }
        }
    }

    /// The processor of the node where a message is has forwarded it.
    pub(super) fn next_link(&mut self, slot: u32) {
        let Message { kind, at, source, target, .. } = *self.messages.get(slot);
        if let Some((link, next)) = self.topology.next(at, source, target) {
            self.onto(slot, link, next, kind.has_page());
        }
    }

    /// Sends a message over its next link.
    #[inline]
    fn onto(&mut self, slot: u32, link: u32, next: u32, has_page: bool) {
        self.messages.get_mut(slot).at = next;
        let hop = self.network.send(self.now_ns, link, has_page);
        self.at(hop.on_ns, EventKind::Hop, slot);
    }

    /// A message is at its receiver, all of it in `tail_ns`: it waits for the handler.
    #[inline]
    pub(super) fn arrived(&mut self, slot: u32, tail_ns: u64) {
        let message = self.messages.get(slot);
        let (target, has_page) = (message.target, message.kind.has_page());
        let spec = self.specs.of(target);
        let work_ns = spec.handler_ns + if has_page { spec.page_handler_ns } else { 0 };
        let done_ns = self.occupy(target, self.now_ns + tail_ns, work_ns);
        self.at(done_ns, EventKind::Deliver, slot);
    }

    /// The processor of a node works for a message that is there at `there_ns`. Returns when it has
    /// done so, ns.
    #[inline]
    fn occupy(&mut self, node: u32, there_ns: u64, work_ns: u64) -> u64 {
        if self.measuring {
            self.out.handler_busy_ns += work_ns;
        }
        let node = &mut self.nodes[node as usize];
        node.handler_free_ns = node.handler_free_ns.max(there_ns) + work_ns;
        node.handler_free_ns
    }
}
