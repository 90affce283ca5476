//! Which node of the domain gets a page (section 2.3): one file per way to choose.

mod fill;
mod most_free;
mod nearest;
mod random;
mod round_robin;
mod two_choices;
mod weighted_nearest;

pub use fill::Fill;
pub use most_free::MostFree;
pub use nearest::Nearest;
pub use random::Random;
pub use round_robin::RoundRobin;
pub use two_choices::TwoChoices;
pub use weighted_nearest::WeightedNearest;

use std::sync::Arc;

use super::Rng;
use super::config::PlacementKind;
use super::custom::{Custom, CustomRun};
use super::view::{Avoid, Peer, View};

/// A way to choose among the peers that have a free frame as far as known.
pub trait Choice {
    /// The peer that gets the next page; none if no peer has a free frame.
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer>;
}

/// Any of the ways to choose.
#[derive(Debug)]
pub enum AnyChoice {
    /// See [`MostFree`].
    MostFree(MostFree),
    /// See [`Nearest`].
    Nearest(Nearest),
    /// See [`Random`].
    Random(Random),
    /// See [`WeightedNearest`].
    WeightedNearest(WeightedNearest),
    /// See [`TwoChoices`].
    TwoChoices(TwoChoices),
    /// See [`RoundRobin`].
    RoundRobin(RoundRobin),
    /// See [`Fill`].
    Fill(Fill),
    /// See [`Custom`].
    Custom(Box<Custom>),
}

impl AnyChoice {
    /// The way to choose that `kind` names; `custom` is what was started for a custom one.
    pub fn new(kind: &PlacementKind, custom: Option<&Arc<CustomRun>>) -> Self {
        match kind {
            PlacementKind::MostFree => AnyChoice::MostFree(MostFree),
            PlacementKind::Nearest => AnyChoice::Nearest(Nearest),
            PlacementKind::Random => AnyChoice::Random(Random),
            PlacementKind::WeightedNearest => AnyChoice::WeightedNearest(WeightedNearest),
            PlacementKind::TwoChoices => AnyChoice::TwoChoices(TwoChoices),
            PlacementKind::RoundRobin => AnyChoice::RoundRobin(RoundRobin::default()),
            PlacementKind::Fill => AnyChoice::Fill(Fill),
            PlacementKind::Custom(placement) => {
                let run = custom.cloned().unwrap_or_else(|| Arc::new(CustomRun::start(placement)));
                AnyChoice::Custom(Box::new(Custom::new(run)))
            }
        }
    }
}

impl Choice for AnyChoice {
    #[inline]
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        match self {
            AnyChoice::MostFree(choice) => choice.choose(view, avoid, rng),
            AnyChoice::Nearest(choice) => choice.choose(view, avoid, rng),
            AnyChoice::Random(choice) => choice.choose(view, avoid, rng),
            AnyChoice::WeightedNearest(choice) => choice.choose(view, avoid, rng),
            AnyChoice::TwoChoices(choice) => choice.choose(view, avoid, rng),
            AnyChoice::RoundRobin(choice) => choice.choose(view, avoid, rng),
            AnyChoice::Fill(choice) => choice.choose(view, avoid, rng),
            AnyChoice::Custom(choice) => choice.choose(view, avoid, rng),
        }
    }
}

/// One of the best candidates by `rank`, each with the same probability.
fn best_by<R: Ord>(
    view: &View,
    avoid: Avoid,
    rng: &mut Rng,
    rank: impl Fn(Peer, u32) -> R,
) -> Option<Peer> {
    let best = view.candidates(avoid).map(|(peer, free)| rank(peer, free)).max()?;
    any_of(view, avoid, rng, |peer, free| rank(peer, free) == best)
}

/// One of the candidates that `best` accepts, each with the same probability: two passes, one
/// random number.
fn any_of(
    view: &View,
    avoid: Avoid,
    rng: &mut Rng,
    best: impl Fn(Peer, u32) -> bool,
) -> Option<Peer> {
    let matching = || view.candidates(avoid).filter(|&(peer, free)| best(peer, free));
    let count = matching().count();
    let pick = if count > 1 { rng.below(count as u32) as usize } else { 0 };
    matching().nth(pick).map(|(peer, _)| peer)
}

#[cfg(test)]
mod tests;
