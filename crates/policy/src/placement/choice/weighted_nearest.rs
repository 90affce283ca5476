//! Free frames and distance together: most free frames per hop; of equal ones the fastest. Ties are
//! broken at random.

use std::cmp::Ordering;

use super::{Avoid, Choice, Peer, Rng, View, any_of};

/// Greatest free frames divided by hops.
#[derive(Clone, Copy, Debug)]
pub struct WeightedNearest;

impl Choice for WeightedNearest {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let hops = |peer: Peer| u64::from(view.hops()[usize::from(peer.0)].max(1));
        let better = |(a, free_a): (Peer, u32), (b, free_b): (Peer, u32)| {
            (u64::from(free_a) * hops(b))
                .cmp(&(u64::from(free_b) * hops(a)))
                .then(view.slowness(b).cmp(&view.slowness(a)))
        };
        let best = view.candidates(avoid).max_by(|a, b| better(*a, *b))?;
        any_of(view, avoid, rng, |peer, free| better((peer, free), best) == Ordering::Equal)
    }
}
