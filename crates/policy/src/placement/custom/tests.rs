use std::sync::Arc;

use super::*;
use crate::placement::choice::{AnyChoice, MostFree};
use crate::placement::hearing::Stamp;
use crate::placement::view::{Neighbourhood, PeerKind};
use crate::placement::{
    Command, Event, Leaving, PlacementConfig, PlacementKind, Placer, ReservationKind, Shared,
};

/// Passes requests on to a built-in way to choose.
#[derive(Debug)]
struct Same(AnyChoice);

impl PlacementPolicy for Same {
    fn choose(
        &mut self,
        request: &Request<'_>,
        rng: &mut Rng,
    ) -> Result<Option<Peer>, PolicyError> {
        Ok(self.0.choose(request.view(), request.avoid(), rng))
    }
}

/// Always gives the same answer.
#[derive(Debug)]
struct Fixed(Result<Option<Peer>, PolicyError>);

impl PlacementPolicy for Fixed {
    fn choose(&mut self, _: &Request<'_>, _: &mut Rng) -> Result<Option<Peer>, PolicyError> {
        self.0.clone()
    }
}

fn shared(placement: PlacementKind, reservation: ReservationKind) -> Arc<Shared> {
    let config = PlacementConfig { placement, reservation, ..PlacementConfig::default() };
    let around = Neighbourhood::alike(vec![1, 1, 2, 3].into(), 16);
    Arc::new(Shared::new(config, around, 16, 4))
}

/// What a node does with pages that leave while peers report how much they have free.
fn commands(shared: &Arc<Shared>) -> Vec<Command> {
    let mut placer = Placer::new(shared.clone(), 7, 0);
    let (mut commands, mut rng) = (Vec::new(), Rng::new(1));
    placer.handle(0, Event::Free(0), &mut commands);
    for page in 0..200 {
        let peer = Peer(rng.below(4) as u16);
        placer.handle(
            page,
            Event::Told { peer, value: rng.below(3), stamp: Stamp::default() },
            &mut commands,
        );
        let avoid = Avoid::new([Some(Peer(rng.below(4) as u16)), None]);
        placer.handle(page, Event::PageLeaves(Leaving { page, attempts: 0, avoid }), &mut commands);
    }
    commands
}

fn failure(answer: Result<Option<Peer>, PolicyError>) -> String {
    let custom = CustomPlacement::new("fixed", move || Fixed(answer.clone()));
    let shared = shared(PlacementKind::Custom(custom), ReservationKind::None);
    commands(&shared);
    shared.policy_failure().expect("the answer is wrong at some time").to_string()
}

#[test]
fn same_answers_give_the_same_commands() {
    for kind in PlacementKind::ALL {
        for reservation in
            [ReservationKind::None, ReservationKind::OnDemand, ReservationKind::InAdvance]
        {
            let custom = {
                let kind = kind.clone();
                CustomPlacement::new("same", move || Same(AnyChoice::new(&kind, None)))
            };
            let own = shared(PlacementKind::Custom(custom), reservation);
            let built_in = shared(kind.clone(), reservation);
            assert_eq!(commands(&own), commands(&built_in), "{kind:?} {reservation:?}");
            assert_eq!(own.policy_failure(), None);
        }
    }
}

#[test]
fn requests_show_what_is_known_about_each_peer() {
    let around = Neighbourhood::new(vec![1, 2, 2].into(), vec![16, 8, 64].into());
    let mut view = View::new(Arc::new(around.with_speeds(vec![300, 0, 200])));
    view.set(Peer(1), 0);
    let request = Request::new(&view, Avoid::new([None, Some(Peer(2))]));
    let brief = |peer: PeerState| {
        (peer.peer.0, peer.free, peer.capacity, peer.hops, peer.page_ns, peer.avoid)
    };
    let peers: Vec<_> = request.peers().map(brief).collect();
    let known = [(0, 16, 16, 1, 300, false), (1, 0, 8, 2, 0, false), (2, 64, 64, 2, 200, true)];
    assert_eq!(peers, known);
    assert_eq!(request.candidates().map(|peer| peer.peer).collect::<Vec<_>>(), [Peer(0)]);
}

/// A peer that joined is the nearest, and has the greatest number.
#[test]
fn peers_that_join_get_the_next_number() {
    let mut view = View::new(Arc::new(Neighbourhood::alike(vec![2, 3].into(), 16)));
    let joined = view.add(PeerKind { hops: 1, frames: 8, page_ns: 70 });
    view.set(joined, 5);
    view.set(Peer(0), 0);
    let request = Request::new(&view, Avoid::default());
    let numbers = |peers: &mut dyn Iterator<Item = PeerState>| -> Vec<(u16, u32)> {
        peers.map(|peer| (peer.peer.0, peer.page_ns)).collect()
    };
    assert_eq!(numbers(&mut request.peers()), [(2, 70), (0, 0), (1, 0)]);
    assert_eq!(numbers(&mut request.by_number()), [(0, 0), (1, 0), (2, 70)]);
    // What is refused about an answer is about the peer of that number.
    assert_eq!(refusal(&request, joined), None);
    let refused = refusal(&request, Peer(0)).expect("it has no free frame");
    assert!(refused.starts_with("chose peer 0, which has no free frame"), "{refused}");
}

#[test]
fn wrong_answers_are_named_and_end_the_choosing() {
    assert_eq!(
        failure(Ok(Some(Peer(4)))),
        "the policy `fixed` chose peer 4, and the node has 4 peers: the first is 0"
    );
    let said = failure(Ok(Some(Peer(2))));
    assert!(said.contains("chose peer 2, which"), "{said}");
    assert_eq!(failure(Err(PolicyError("gave up".to_owned()))), "the policy `fixed` gave up");
}

#[test]
fn policy_that_does_not_start_is_a_failure() {
    #[derive(Debug)]
    struct Broken;
    impl PolicySource for Broken {
        fn start(&self) -> Result<Box<dyn NodePolicies>, PolicyError> {
            Err(PolicyError("no such program".to_owned()))
        }
    }
    let custom = CustomPlacement::from_source("broken", Broken);
    let shared = shared(PlacementKind::Custom(custom), ReservationKind::None);
    assert_eq!(
        shared.policy_failure().unwrap().0,
        "the policy `broken` cannot be started: no such program"
    );
    assert!(commands(&shared).iter().all(|command| !matches!(command, Command::Send { .. })));
}

#[test]
fn each_node_has_a_policy_of_its_own() {
    #[derive(Debug, Default)]
    struct Once(bool);
    impl PlacementPolicy for Once {
        fn choose(
            &mut self,
            request: &Request<'_>,
            rng: &mut Rng,
        ) -> Result<Option<Peer>, PolicyError> {
            let first = !std::mem::replace(&mut self.0, true);
            Ok(first.then(|| MostFree.choose(request.view(), request.avoid(), rng)).flatten())
        }
    }
    let custom = CustomPlacement::new("once", Once::default);
    let shared = shared(PlacementKind::Custom(custom), ReservationKind::None);
    for _ in 0..2 {
        let sends = commands(&shared);
        let sends = sends.iter().filter(|command| matches!(command, Command::Send { .. }));
        assert_eq!(sends.count(), 1);
    }
}
