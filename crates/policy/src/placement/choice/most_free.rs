//! The peer with the most free frames. Ties are broken at random, so that nodes with the same view
//! do not all choose the same peer.

use super::{Avoid, Choice, Peer, Rng, View, any_of};

/// The most free frames.
#[derive(Clone, Copy, Debug)]
pub struct MostFree;

impl Choice for MostFree {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let most = view.candidates(avoid).map(|(_, free)| free).max()?;
        any_of(view, avoid, rng, |_, free| free == most)
    }
}
