//! Two peers are drawn at random, and the one with more free frames gets the page (Mitzenmacher
//! 2001): nearly as even as the best choice with fresh information, and no herd effect with old
//! information.

use super::{Avoid, Choice, Peer, Random, Rng, View};

/// The better of two drawn at random.
#[derive(Clone, Copy, Debug)]
pub struct TwoChoices;

impl Choice for TwoChoices {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let first = Random.choose(view, avoid, rng)?;
        let second = Random.choose(view, avoid, rng)?;
        Some(if view.free(second) > view.free(first) { second } else { first })
    }
}
