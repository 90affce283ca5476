//! Two peers are drawn at random, and the one with the greater share of its memory free gets the
//! page (Mitzenmacher 2001): nearly as even as the best choice with fresh information, and no herd
//! effect with old information. Of equally free ones the faster gets it.

use super::{Avoid, Choice, Peer, Random, Rng, View};

/// The better of two drawn at random.
#[derive(Clone, Copy, Debug)]
pub struct TwoChoices;

impl Choice for TwoChoices {
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let first = Random.choose(view, avoid, rng)?;
        let second = Random.choose(view, avoid, rng)?;
        // Shares, both multiplied by both capacities.
        let share = |of: Peer, by: Peer| u64::from(view.free(of)) * u64::from(view.capacity(by));
        let better = share(second, first)
            .cmp(&share(first, second))
            .then(view.slowness(first).cmp(&view.slowness(second)));
        Some(if better.is_gt() { second } else { first })
    }
}
