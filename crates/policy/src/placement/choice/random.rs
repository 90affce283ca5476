//! Any peer with a free frame.

use super::{Avoid, Choice, Peer, Rng, View, any_of};

/// All candidates have the same probability.
#[derive(Clone, Copy, Debug)]
pub struct Random;

impl Choice for Random {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        // A few draws from all peers find a candidate nearly always, and each with the same
        // probability; otherwise candidates are counted.
        let peers = u32::try_from(view.len()).ok().filter(|&peers| peers > 0)?;
        for _ in 0..4 {
            let peer = Peer(rng.below(peers) as u16);
            if view.free(peer) > 0 && !avoid.has(peer) {
                return Some(peer);
            }
        }
        any_of(view, avoid, rng, |_, _| true)
    }
}
