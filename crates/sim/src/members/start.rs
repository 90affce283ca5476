//! Nodes start, start again, and join.

use hiroma_policy::placement::member::{Event, Member};
use hiroma_policy::placement::{PeerKind, Rng};

use super::Engine;
use crate::config::Canary;
use crate::site;

impl Engine<'_> {
    /// Starts a node in its next incarnation.
    pub(super) fn start_member(&mut self, number: u32) {
        let shared = self.shared.of(number).clone();
        let domain = site::domain(&self.topology, &self.specs, number);
        let (later, first): (Vec<_>, Vec<_>) = domain
            .into_iter()
            .filter(|(other, _)| !self.absent.contains(other))
            .partition(|(other, _)| self.joined.contains(other));
        let names = first.into_iter().map(|(other, _)| other).collect();
        let same = self.config.run.canary == Canary::SameEpoch;
        let (now_ns, frames) = (self.now_ns, self.specs.of(number).frames);
        let node = &mut self.nodes[number as usize];
        node.epoch += 1;
        let seed = Rng::part(self.seed, u64::from(number) << 32 | u64::from(node.epoch)).next_u64();
        let epoch = if same { 1 } else { node.epoch };
        node.member = Some(Member::new(shared, number, epoch, names, seed, now_ns));
        node.told_free = frames;
        for (node, kind) in later {
            self.tell(number, Event::Joined { node, kind }, None);
        }
        if self.absent.remove(&number) {
            self.tell_of(number);
        }
        self.plan_tick(number);
    }

    /// A node has joined: those around it are told.
    fn tell_of(&mut self, number: u32) {
        self.joined.insert(number);
        for other in 0..self.nodes.len() as u32 {
            let Some(peer) = self.topology.peer_of(other, number) else { continue };
            let kind = PeerKind {
                hops: self.topology.peer_hops(other)[usize::from(peer.0)],
                frames: self.specs.of(number).frames,
                page_ns: self.specs.page_ns(number),
            };
            self.tell(other, Event::Joined { node: number, kind }, None);
        }
    }
}
