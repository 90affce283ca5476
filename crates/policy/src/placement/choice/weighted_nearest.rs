//! Free frames and distance together: most free frames per hop. Ties are broken at random.

use super::{Avoid, Choice, Peer, Rng, View, any_of};

/// Greatest free frames divided by hops.
#[derive(Clone, Copy, Debug)]
pub struct WeightedNearest;

impl Choice for WeightedNearest {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let hops = |peer: Peer| u64::from(view.hops()[usize::from(peer.0)].max(1));
        let better = |(a, free_a): &(Peer, u32), (b, free_b): &(Peer, u32)| {
            (u64::from(*free_a) * hops(*b)).cmp(&(u64::from(*free_b) * hops(*a)))
        };
        let (best, most) = view.candidates(avoid).max_by(better)?;
        any_of(view, avoid, rng, |peer, free| {
            u64::from(free) * hops(best) == u64::from(most) * hops(peer)
        })
    }
}
