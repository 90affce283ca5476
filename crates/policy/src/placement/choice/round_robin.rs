//! In turn: every page goes to the next peer that has a free frame.

use super::{Avoid, Choice, Peer, Rng, View};

/// Remembers the next peer; the first one is random, so that nodes do not move in step.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    pub(super) next: Option<u16>,
}

impl Choice for RoundRobin {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let peers = view.len() as u32;
        if peers == 0 {
            return None;
        }
        let start = *self.next.get_or_insert_with(|| rng.below(peers) as u16);
        let mut in_turn = (start..peers as u16).chain(0..start).map(Peer);
        let chosen = in_turn.find(|&peer| view.free(peer) > 0 && !avoid.has(peer))?;
        self.next = Some(((u32::from(chosen.0) + 1) % peers) as u16);
        Some(chosen)
    }
}
