//! The peer with the most free frames; of equal ones the one with the greatest share of its memory
//! free, then the fastest. Ties are broken at random, so that nodes with the same view do not all
//! choose the same peer.

use std::cmp::Reverse;

use super::{Avoid, Choice, Peer, Rng, View, best_by};

/// The most free frames.
#[derive(Clone, Copy, Debug)]
pub struct MostFree;

impl Choice for MostFree {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        // With as many free frames, the greatest share is that of the smallest peer.
        best_by(view, avoid, rng, |peer, free| {
            (free, Reverse(view.capacity(peer)), Reverse(view.slowness(peer)))
        })
    }
}
