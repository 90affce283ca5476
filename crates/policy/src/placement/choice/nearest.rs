//! The nearest peer with a free frame; ties are broken at random.

use super::{Avoid, Choice, Peer, Rng, View};

/// Fewest hops.
#[derive(Clone, Copy, Debug)]
pub struct Nearest;

impl Choice for Nearest {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let mut candidates = view.candidates(avoid).map(|(peer, _)| peer);
        let first = candidates.next()?;
        let hops = view.hops()[usize::from(first.0)];
        // Peers are listed nearest first: the ties follow.
        let (mut chosen, mut ties) = (first, 1);
        for peer in candidates.take_while(|peer| view.hops()[usize::from(peer.0)] == hops) {
            ties += 1;
            if rng.below(ties) == 0 {
                chosen = peer;
            }
        }
        Some(chosen)
    }
}
