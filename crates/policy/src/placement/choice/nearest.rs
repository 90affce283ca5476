//! The nearest peer with a free frame; of equally near ones the fastest. Ties are broken at random.

use super::{Avoid, Choice, Peer, Rng, View};

/// Fewest hops.
#[derive(Clone, Copy, Debug)]
pub struct Nearest;

impl Choice for Nearest {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let mut candidates = view.candidates(avoid).map(|(peer, _)| peer);
        let first = candidates.next()?;
        let hops = view.hops()[usize::from(first.0)];
        // Peers are listed nearest first: those that are as near follow.
        let (mut chosen, mut slowness, mut ties) = (first, view.slowness(first), 1);
        for peer in candidates.take_while(|peer| view.hops()[usize::from(peer.0)] == hops) {
            let of_peer = view.slowness(peer);
            if of_peer < slowness {
                (chosen, slowness, ties) = (peer, of_peer, 1);
            } else if of_peer == slowness {
                ties += 1;
                if rng.below(ties) == 0 {
                    chosen = peer;
                }
            }
        }
        Some(chosen)
    }
}
