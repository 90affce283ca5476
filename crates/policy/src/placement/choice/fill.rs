//! One peer after the other: the first in the list until it has no free frame. Pages of a node stay
//! together.

use super::{Avoid, Choice, Peer, Rng, View};

/// The first candidate in the order of the list.
#[derive(Clone, Copy, Debug)]
pub struct Fill;

impl Choice for Fill {
    fn choose(&mut self, view: &View, avoid: Avoid, _: &mut Rng) -> Option<Peer> {
        view.candidates(avoid).next().map(|(peer, _)| peer)
    }
}
