//! The peer with most free frames; ties are drawn, so that nodes with the same picture do not all
//! turn to the same peer.

use super::{Avoid, Choice, Peer, Rng, View, any_of};

/// Most free frames.
#[derive(Clone, Copy, Debug)]
pub struct MostFree;

impl Choice for MostFree {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let most = view.candidates(avoid).map(|(_, free)| free).max()?;
        any_of(view, avoid, rng, |_, free| free == most)
    }
}
