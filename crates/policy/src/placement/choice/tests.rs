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

/// Peers with free frames, all frames, hops and speed.
fn unlike(peers: &[(u32, u32, u16, u32)]) -> View {
    let hops = peers.iter().map(|peer| peer.2).collect();
    let around = Neighbourhood::new(hops, peers.iter().map(|peer| peer.1).collect());
    let around = around.with_speeds(peers.iter().map(|peer| peer.3).collect());
    let mut view = View::new(Arc::new(around));
    (0..).zip(peers).for_each(|(place, peer)| view.set(Peer(place), peer.0));
    view
}

/// How often each peer is chosen, of 1000 times.
fn chosen(kind: &PlacementKind, view: &View) -> Vec<u32> {
    let (mut choice, mut rng) = (AnyChoice::new(kind, None), Rng::new(9));
    let mut counts = vec![0; view.len()];
    for _ in 0..1000 {
        let peer = choice.choose(view, Avoid::default(), &mut rng).expect("some are free");
        counts[usize::from(peer.0)] += 1;
    }
    counts
}

#[test]
fn of_equal_peers_the_fastest_gets_the_page() {
    let who = |kind: PlacementKind, peers: &[(u32, u32, u16, u32)]| {
        let counts = chosen(&kind, &unlike(peers));
        (0..peers.len()).filter(|&peer| counts[peer] > 0).collect::<Vec<_>>()
    };
    // The speed of the last but one is unknown; the last is farther, or has less free.
    let near = [(5, 64, 1, 300), (3, 64, 1, 100), (9, 64, 1, 100), (9, 64, 1, 0), (9, 64, 2, 1)];
    assert_eq!(who(PlacementKind::Nearest, &near), [1, 2]);
    let free = [(5, 64, 1, 300), (5, 64, 1, 100), (5, 64, 1, 0), (4, 64, 1, 1), (5, 64, 9, 100)];
    assert_eq!(who(PlacementKind::MostFree, &free), [1, 4]);
    let per_hop = [(4, 64, 1, 300), (8, 64, 2, 100), (8, 64, 2, 0), (7, 64, 2, 1)];
    assert_eq!(who(PlacementKind::WeightedNearest, &per_hop), [1]);
    let two = chosen(&PlacementKind::TwoChoices, &unlike(&[(32, 64, 1, 300), (4, 8, 1, 100)]));
    assert!((700..800).contains(&two[1]), "{two:?}; three quarters are expected");
    // Where others are chosen for another reason, speed does not matter.
    assert_eq!(who(PlacementKind::Random, &near).len(), 5);
}

#[test]
fn frames_are_compared_with_all_frames_of_a_peer() {
    let unlike = unlike(&[(6, 64, 1, 0), (6, 8, 1, 0), (5, 5, 1, 0)]);
    assert_eq!(chosen(&PlacementKind::MostFree, &unlike), [0, 1000, 0]);
    let two = chosen(&PlacementKind::TwoChoices, &unlike);
    // All free, three quarters free, and a tenth: five, three and one of nine pairs.
    assert!(two[2] > two[1] && two[1] > 2 * two[0], "{two:?}");
}

#[test]
fn peers_of_the_same_speed_are_chosen_as_if_it_were_unknown() {
    let with = |page_ns| {
        let peers: Vec<_> = (0..9).map(|at| (at % 4, 16, 1 + at as u16 / 3, page_ns)).collect();
        unlike(&peers)
    };
    for kind in PlacementKind::ALL {
        assert_eq!(chosen(&kind, &with(700)), chosen(&kind, &with(0)), "{kind:?}");
    }
}
