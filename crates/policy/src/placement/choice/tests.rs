use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::view::Neighbourhood;
use super::*;
use crate::placement::Rng;

fn view(frees: &[u32], mut hops: Vec<u16>) -> View {
    hops.resize(frees.len(), 9);
    hops.sort_unstable();
    let mut view = View::new(Arc::new(Neighbourhood::alike(hops.into(), 64)));
    frees.iter().enumerate().for_each(|(place, &free)| view.set(Peer(place as u16), free));
    view
}

/// All peers that the rule allows, found by exhaustive search.
fn allowed(kind: &PlacementKind, view: &View, avoid: Avoid) -> BTreeSet<u16> {
    let peers: Vec<u16> = (0..view.len() as u16)
        .filter(|&peer| view.free(Peer(peer)) > 0 && !avoid.has(Peer(peer)))
        .collect();
    let hops = |peer: u16| u64::from(view.hops()[usize::from(peer)]);
    let free = |peer: u16| u64::from(view.free(Peer(peer)));
    let no_better = |better: &dyn Fn(u16, u16) -> bool| {
        peers
            .iter()
            .copied()
            .filter(|&peer| !peers.iter().any(|&other| better(other, peer)))
            .collect()
    };
    match kind {
        PlacementKind::MostFree => no_better(&|a, b| free(a) > free(b)),
        PlacementKind::Nearest => no_better(&|a, b| hops(a) < hops(b)),
        PlacementKind::WeightedNearest => no_better(&|a, b| free(a) * hops(b) > free(b) * hops(a)),
        PlacementKind::Fill => peers.iter().copied().take(1).collect(),
        PlacementKind::Random | PlacementKind::TwoChoices | PlacementKind::RoundRobin => {
            peers.iter().copied().collect()
        }
        PlacementKind::Custom(_) => unreachable!("it has no rule"),
    }
}

proptest! {
    #[test]
    fn each_choice_obeys_its_rule(
        frees in prop::collection::vec(prop_oneof![Just(0u32), 0u32..4, Just(64)], 0..50),
        hops in prop::collection::vec(1u16..6, 50),
        avoid in prop::array::uniform2(prop::option::of((0u16..50).prop_map(Peer))),
        seed in any::<u64>(),
    ) {
        let view = view(&frees, hops[..frees.len()].to_vec());
        let avoid = Avoid::new(avoid);
        for kind in PlacementKind::ALL {
            let (mut choice, mut rng) = (AnyChoice::new(&kind, None), Rng::new(seed));
            let allowed = allowed(&kind, &view, avoid);
            for _ in 0..5 {
                match choice.choose(&view, avoid, &mut rng) {
                    Some(peer) => prop_assert!(allowed.contains(&peer.0), "{kind:?} chose {peer:?} of {allowed:?}"),
                    None => prop_assert!(allowed.is_empty(), "{kind:?} chose nobody of {allowed:?}"),
                }
            }
        }
    }

    #[test]
    fn ties_are_broken_evenly(frees in prop::collection::vec(0u32..3, 1..12), hops in prop::collection::vec(1u16..3, 12), seed in any::<u64>()) {
        let view = view(&frees, hops[..frees.len()].to_vec());
        for kind in PlacementKind::ALL {
            if matches!(kind, PlacementKind::TwoChoices) { continue; }
            let (mut choice, mut rng) = (AnyChoice::new(&kind, None), Rng::new(seed));
            let seen: BTreeSet<u16> = (0..600).filter_map(|_| choice.choose(&view, Avoid::default(), &mut rng)).map(|peer| peer.0).collect();
            prop_assert_eq!(seen, allowed(&kind, &view, Avoid::default()), "{:?}", kind);
        }
    }
}

#[test]
fn round_robin_skips_full_peers() {
    let view = view(&[1, 0, 2, 5], vec![]);
    let (mut choice, mut rng) = (RoundRobin { next: Some(2) }, Rng::new(1));
    let turns: Vec<u16> =
        (0..6).map(|_| choice.choose(&view, Avoid::default(), &mut rng).unwrap().0).collect();
    assert_eq!(turns, [2, 3, 0, 2, 3, 0]);
}

#[test]
fn two_choices_prefer_the_better_peer() {
    let view = view(&[1, 10], vec![]);
    let mut rng = Rng::new(5);
    let better = (0..1000)
        .filter(|_| TwoChoices.choose(&view, Avoid::default(), &mut rng) == Some(Peer(1)))
        .count();
    assert!((700..800).contains(&better), "{better} of 1000; three quarters are expected");
}
