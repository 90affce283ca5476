use super::*;
use crate::placement::Stamp;
use crate::placement::config::{FailureKind, PlacementKind};

fn placer(change: impl FnOnce(&mut PlacementConfig)) -> Placer {
    let mut config = PlacementConfig::default();
    change(&mut config);
    let around = Neighbourhood::alike([1, 1, 2, 2].into(), 64);
    Placer::new(Arc::new(Shared::new(config, around, 64, 8)), 1, 0)
}

fn commands(placer: &mut Placer, event: Event) -> Vec<Command> {
    let mut commands = Vec::new();
    placer.handle(0, event, &mut commands);
    commands
}

fn leaving(page: u64) -> Leaving {
    Leaving { page, attempts: 0, avoid: Avoid::default() }
}

fn sent(page: u64, to: u16, reserved: Option<u64>) -> Command {
    Command::Send { page: Leaving { attempts: 1, ..leaving(page) }, to: Peer(to), reserved }
}

fn asked(peer: u16, id: u64) -> Command {
    Command::AskReservation { peer: Peer(peer), id }
}

fn granted(peer: u16, id: u64) -> Event {
    Event::ReservationAnswered { peer: Peer(peer), id, granted: true }
}

fn only(placer: &mut Placer, open: u16, free: u32) {
    (0..4).for_each(|peer| {
        drop(commands(
            placer,
            Event::Told {
                peer: Peer(peer),
                stamp: Stamp::default(),
                value: if peer == open { free } else { 0 },
            },
        ))
    });
}

fn kind(hops: u16) -> PeerKind {
    PeerKind { hops, frames: 64, page_ns: 0 }
}

#[test]
fn page_goes_to_free_peer_or_disk() {
    let mut placer = placer(|_| ());
    only(&mut placer, 2, 1);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(7))), [sent(7, 2, None)]);
    only(&mut placer, 9, 0);
    assert_eq!(
        commands(&mut placer, Event::PageLeaves(leaving(7))),
        [Command::SendToDisk(leaving(7))]
    );
}

#[test]
fn node_without_peers_waits_for_nobody() {
    let informations =
        [InformationKind::OnChange, InformationKind::Periodic, InformationKind::OnDemand];
    let reservations =
        [ReservationKind::None, ReservationKind::OnDemand, ReservationKind::InAdvance];
    for (information, reservation, confirm) in informations
        .into_iter()
        .flat_map(|one| reservations.map(|other| (one, other)))
        .flat_map(|(one, other)| [(one, other, false), (one, other, true)])
    {
        let config =
            PlacementConfig { information, reservation, confirm, ..PlacementConfig::default() };
        let shared = Shared::new(config, Neighbourhood::alike([].into(), 64), 64, 8);
        let mut placer = Placer::new(Arc::new(shared), 1, 0);
        let left = commands(&mut placer, Event::PageLeaves(leaving(7)));
        assert_eq!(left, [Command::SendToDisk(leaving(7))], "{information:?} {reservation:?}");
    }
}

#[test]
fn own_sends_are_counted_only_if_configured() {
    for counted in [false, true] {
        let mut placer = placer(|config| config.count_own_sends = counted);
        only(&mut placer, 0, 1);
        commands(&mut placer, Event::PageLeaves(leaving(1)));
        assert_eq!(placer.view().free(Peer(0)), u32::from(!counted));
    }
}

#[test]
fn refused_page_is_retried_then_sent_to_disk() {
    let mut placer = placer(|config| config.attempts_max = 2);
    (1..4).for_each(|peer| {
        drop(commands(
            &mut placer,
            Event::Told { peer: Peer(peer), stamp: Stamp::default(), value: u32::from(peer == 3) },
        ))
    });
    let page = Leaving { attempts: 2, ..leaving(5) };
    let next = commands(&mut placer, Event::Refused { peer: Peer(0), page });
    assert_eq!(
        next,
        [Command::Send { page: Leaving { attempts: 3, ..page }, to: Peer(3), reserved: None }]
    );
    let page = Leaving { attempts: 3, ..page };
    assert_eq!(
        commands(&mut placer, Event::Refused { peer: Peer(3), page }),
        [Command::SendToDisk(page)]
    );
}

#[test]
fn page_without_frame_follows_failure_policy() {
    for (kind, arrival) in [
        (FailureKind::Replace, Arrival::Replace),
        (FailureKind::Return, Arrival::SendBack),
        (FailureKind::Cascade, Arrival::SendOn),
        (FailureKind::Disk, Arrival::Disk),
    ] {
        let mut placer = placer(|config| config.on_failure = kind);
        assert_eq!(placer.arrival(9, 1, None), Arrival::Keep);
        commands(&mut placer, Event::Free(0));
        assert_eq!(placer.arrival(9, 1, None), arrival);
    }
}

#[test]
fn page_waits_for_all_bids_and_takes_best() {
    let mut placer = placer(|config| {
        (config.information, config.placement) =
            (InformationKind::OnDemand, PlacementKind::MostFree)
    });
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(1))), [Command::AskBids { id: 1 }]);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(2))), []);
    for (peer, free) in [(0, 1), (1, 2), (3, 0)] {
        assert_eq!(commands(&mut placer, Event::Bid { peer: Peer(peer), id: 1, free }), []);
    }
    assert_eq!(placer.waiting(), 2);
    let both = commands(&mut placer, Event::Bid { peer: Peer(2), id: 1, free: 0 });
    assert_eq!(both.len(), 2);
    assert_eq!(both[0], sent(1, 1, None), "the second page shares the answers");
}

#[test]
fn on_demand_reservation_precedes_send_and_retries_refusals() {
    let mut placer = placer(|config| {
        (config.reservation, config.placement) = (ReservationKind::OnDemand, PlacementKind::Fill)
    });
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(1))), [asked(0, 1)]);
    let refused = Event::ReservationAnswered { peer: Peer(0), id: 1, granted: false };
    assert_eq!(commands(&mut placer, refused), [asked(1, 2)]);
    let granted = Event::ReservationAnswered { peer: Peer(1), id: 2, granted: true };
    assert_eq!(commands(&mut placer, granted), [sent(1, 1, Some(2))]);
    assert_eq!(placer.waiting(), 0);
}

#[test]
fn promised_frame_is_kept_for_its_node() {
    let mut placer = placer(|config| config.on_failure = FailureKind::Return);
    commands(&mut placer, Event::Free(3));
    assert_eq!(
        commands(&mut placer, Event::ReservationAsked { node: 40, id: 5 }),
        [Command::AnswerReservation { node: 40, id: 5, granted: true }]
    );
    assert_eq!(placer.promised(), 1);
    commands(&mut placer, Event::Free(0));
    assert_eq!(
        commands(&mut placer, Event::ReservationAsked { node: 41, id: 5 }),
        [Command::AnswerReservation { node: 41, id: 5, granted: false }]
    );
    assert_eq!(placer.arrival(41, 1, None), Arrival::SendBack);
    assert_eq!(placer.arrival(40, 1, Some(5)), Arrival::Keep);
    assert_eq!((placer.promised(), placer.arrival(40, 1, Some(5))), (0, Arrival::SendBack));
}

#[test]
fn advance_reservation_uses_frame_and_requests_next() {
    let mut placer = placer(|config| {
        (config.reservation, config.placement) = (ReservationKind::InAdvance, PlacementKind::Fill)
    });
    assert_eq!(commands(&mut placer, Event::Free(33)), []);
    assert_eq!(commands(&mut placer, Event::Free(32)), [asked(0, 1)]);
    assert_eq!(commands(&mut placer, Event::Free(31)), [], "one request is under way");
    assert_eq!(commands(&mut placer, granted(0, 1)), []);
    assert_eq!(
        commands(&mut placer, Event::PageLeaves(leaving(1))),
        [sent(1, 0, Some(1)), asked(0, 2)]
    );
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(2))), [asked(0, 3)]);
    assert_eq!(commands(&mut placer, granted(0, 2)), [sent(2, 0, Some(2))]);
    commands(&mut placer, granted(0, 3));
    assert_eq!(
        commands(&mut placer, Event::Free(60)),
        [Command::ReleaseReservation { peer: Peer(0), id: 3 }]
    );
}

#[test]
fn advance_reservation_without_peers_falls_to_disk() {
    let mut placer = placer(|config| config.reservation = ReservationKind::InAdvance);
    only(&mut placer, 1, 3);
    let requests = commands(&mut placer, Event::PageLeaves(leaving(1)));
    assert_eq!(requests, [asked(1, 1), asked(1, 2)], "one for the page and one to have ready");
    let refused = |id| Event::ReservationAnswered { peer: Peer(1), id, granted: false };
    let (first, second) = (commands(&mut placer, refused(1)), commands(&mut placer, refused(2)));
    assert_eq!([first, second].concat(), [Command::SendToDisk(leaving(1))]);
    assert_eq!(placer.waiting(), 0);
}

#[test]
fn gradient_informs_neighbours_and_sends_pages_down() {
    let mut placer = placer(|config| config.scope = ScopeKind::Gradient);
    only(&mut placer, 4, 0);
    (0..4).for_each(|peer| {
        drop(commands(
            &mut placer,
            Event::Told {
                peer: Peer(peer),
                stamp: Stamp::default(),
                value: 3 - u32::from(peer == 2),
            },
        ))
    });
    assert_eq!(commands(&mut placer, Event::Free(0)), [Command::Tell { sequence: 0, value: 3 }]);
    assert_eq!(
        commands(&mut placer, Event::Told { peer: Peer(1), stamp: Stamp::default(), value: 1 }),
        [Command::Tell { sequence: 0, value: 2 }]
    );
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(4))), [sent(4, 1, None)]);
    assert_eq!(placer.arrival(3, 1, None), Arrival::SendOn);
    assert_eq!(commands(&mut placer, Event::Free(1)), [Command::Tell { sequence: 0, value: 0 }]);
}

#[test]
fn local_scope_uses_disk_and_sends_no_messages() {
    let mut placer = placer(|config| config.scope = ScopeKind::Disk);
    for free in (0..64).rev() {
        assert_eq!(commands(&mut placer, Event::Free(free)), []);
    }
    assert_eq!(
        commands(&mut placer, Event::PageLeaves(leaving(4))),
        [Command::SendToDisk(leaving(4))]
    );
}

#[test]
fn the_same_events_give_the_same_commands() {
    let run = || {
        let mut placer = placer(|config| config.placement = PlacementKind::TwoChoices);
        (0..500)
            .flat_map(|page| commands(&mut placer, Event::PageLeaves(leaving(page))))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn idle_node_is_small() {
    let placer = placer(|_| ());
    assert!(size_of::<Placer>() <= 112, "{} bytes", size_of::<Placer>());
    assert_eq!(placer.heap_bytes(), 0);
}

/// A node in a network that loses, repeats and reorders messages; it has heard peers `0..heard`.
fn confirming(heard: u16, change: impl FnOnce(&mut PlacementConfig)) -> Placer {
    let mut placer = placer(|config| {
        (config.confirm, config.placement) = (true, PlacementKind::Fill);
        change(config);
    });
    (0..heard).for_each(|peer| drop(commands(&mut placer, told(peer, 1, 1, 64))));
    placer
}

fn told(peer: u16, epoch: u32, sequence: u32, value: u32) -> Event {
    Event::Told { peer: Peer(peer), stamp: Stamp { epoch, sequence }, value }
}

/// Lets time pass up to `until_ns`; what the placer does about it, without reports.
fn pass(placer: &mut Placer, until_ns: u64) -> Vec<Command> {
    let mut all = Vec::new();
    while let Some(now_ns) = placer.deadline_ns().filter(|&now_ns| now_ns <= until_ns) {
        placer.handle(now_ns, Event::Tick, &mut all);
    }
    all.retain(|command| !matches!(command, Command::Tell { .. }));
    all
}

const ANSWER_NS: u64 = 20_000_000;

#[test]
fn lost_bid_ends_the_round_at_its_deadline() {
    let mut placer = confirming(4, |config| config.information = InformationKind::OnDemand);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(1))), [Command::AskBids { id: 1 }]);
    for peer in [0, 1, 3] {
        let free = u32::from(peer == 3);
        assert_eq!(commands(&mut placer, Event::Bid { peer: Peer(peer), id: 1, free }), []);
    }
    assert_eq!(pass(&mut placer, ANSWER_NS - 1), []);
    assert_eq!(pass(&mut placer, ANSWER_NS), [sent(1, 3, None)]);
    assert_eq!((placer.waiting(), placer.view().free(Peer(2))), (0, 0));
    let late = Event::Bid { peer: Peer(2), id: 1, free: 50 };
    assert_eq!(commands(&mut placer, late), []);
    assert_eq!(placer.view().free(Peer(2)), 0, "a late bid is not believed");
}

#[test]
fn repeated_bid_does_not_close_the_round() {
    let mut placer = confirming(4, |config| config.information = InformationKind::OnDemand);
    commands(&mut placer, Event::PageLeaves(leaving(1)));
    for _ in 0..4 {
        assert_eq!(commands(&mut placer, Event::Bid { peer: Peer(0), id: 1, free: 0 }), []);
    }
    assert_eq!(placer.waiting(), 1);
}

#[test]
fn lost_answer_to_a_reservation_is_overcome() {
    let mut placer = confirming(2, |config| config.reservation = ReservationKind::OnDemand);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(1))), [asked(0, 1)]);
    let release = |peer, id| Command::ReleaseReservation { peer: Peer(peer), id };
    assert_eq!(pass(&mut placer, ANSWER_NS), [release(0, 1), asked(1, 2)]);
    let gave_up = Command::SendToDisk(Leaving { attempts: 2, ..leaving(1) });
    assert_eq!(pass(&mut placer, 2 * ANSWER_NS), [release(1, 2), gave_up]);
    assert_eq!(commands(&mut placer, granted(0, 1)), [release(0, 1)], "too late");
}

#[test]
fn page_does_not_wait_for_ever_for_a_frame_in_advance() {
    let mut placer = confirming(1, |config| config.reservation = ReservationKind::InAdvance);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(1))), [asked(0, 1), asked(0, 2)]);
    let all = pass(&mut placer, 10 * ANSWER_NS);
    assert_eq!(all.last(), Some(&Command::SendToDisk(leaving(1))), "{all:?}");
    assert_eq!(placer.waiting(), 0);
}

#[test]
fn repeated_requests_promise_one_frame_until_the_lease_ends() {
    let mut placer = confirming(0, |config| config.lease_ns = 900);
    for _ in 0..62 {
        assert_eq!(
            commands(&mut placer, Event::ReservationAsked { node: 40, id: 5 }),
            [Command::AnswerReservation { node: 40, id: 5, granted: true }]
        );
    }
    assert_eq!(placer.promised(), 1);
    pass(&mut placer, 899);
    assert_eq!(placer.promised(), 1);
    pass(&mut placer, 900);
    assert_eq!(placer.promised(), 0);
}

#[test]
fn reordered_and_repeated_reports_are_not_believed() {
    let mut placer = confirming(0, |_| ());
    let believed = [(1, 1, 9), (1, 3, 0), (1, 2, 9), (1, 1, 9), (2, 1, 7), (1, 4, 5)];
    let views = believed.map(|(epoch, sequence, value)| {
        commands(&mut placer, told(0, epoch, sequence, value));
        placer.view().free(Peer(0))
    });
    assert_eq!(views, [9, 0, 0, 0, 7, 7]);
}

#[test]
fn peer_that_was_never_heard_is_unknown() {
    let mut placer = confirming(0, |_| ());
    let page = leaving(3);
    assert_eq!(commands(&mut placer, Event::PageLeaves(page)), [Command::SendToDisk(page)]);
    commands(&mut placer, told(2, 1, 1, 5));
    assert_eq!(commands(&mut placer, Event::PageLeaves(page)), [sent(3, 2, None)]);
}

#[test]
fn silent_suspected_and_restarted_peers_become_unknown() {
    let mut placer = confirming(3, |config| config.refresh_ns = 1000);
    commands(&mut placer, Event::Suspected(Peer(0)));
    commands(&mut placer, Event::Heard { peer: Peer(1), epoch: 2 });
    assert_eq!([0, 1, 2].map(|peer| placer.view().free(Peer(peer))), [0, 0, 64]);
    pass(&mut placer, 3000);
    assert_eq!(placer.view().free(Peer(2)), 64);
    pass(&mut placer, 6000);
    assert_eq!(placer.view().free(Peer(2)), 0);
}

#[test]
fn what_was_told_is_told_again() {
    let mut placer = confirming(0, |config| config.refresh_ns = 1000);
    let mut all = Vec::new();
    while let Some(now_ns) = placer.deadline_ns().filter(|&now_ns| now_ns <= 10_000) {
        placer.handle(now_ns, Event::Tick, &mut all);
    }
    let numbers: Vec<u32> = all
        .iter()
        .map(|command| match command {
            Command::Tell { sequence, value: 64 } => *sequence,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, (1..=10).collect::<Vec<u32>>());
}

#[test]
fn peers_join_and_return_under_the_same_name() {
    let mut placer = confirming(4, |_| ());
    let peer = placer.join(None, kind(1));
    assert_eq!((peer, placer.view().free(peer)), (Peer(4), 0));
    commands(&mut placer, told(4, 1, 1, 9));
    assert_eq!(placer.view().free(peer), 9);
    assert_eq!(placer.join(Some(peer), kind(2)), peer);
    assert_eq!((placer.view().free(peer), placer.view().hops()[4]), (0, 2));
    commands(&mut placer, Event::Left(peer));
    commands(&mut placer, told(4, 1, 2, 9));
    assert_eq!(placer.view().free(peer), 0, "it has left");
    placer.join(Some(peer), kind(2));
    commands(&mut placer, told(4, 1, 3, 9));
    assert_eq!(placer.view().free(peer), 9);
}

#[test]
fn nobody_waits_for_bids_of_peers_that_left() {
    let mut placer = confirming(0, |config| config.information = InformationKind::OnDemand);
    let page = Leaving { page: 7, attempts: 0, avoid: Avoid::default() };
    let ask = |placer: &mut Placer| {
        let asked = commands(placer, Event::PageLeaves(page));
        let [Command::AskBids { id }] = asked[..] else { panic!("{asked:?}") };
        let bid = |peer| Event::Bid { peer: Peer(peer), id, free: 3 };
        (0..3).flat_map(|peer| commands(placer, bid(peer))).collect::<Vec<_>>()
    };
    assert_eq!(ask(&mut placer), [], "one bid is missing");
    let sent = commands(&mut placer, Event::Left(Peer(3)));
    assert!(matches!(sent[..], [Command::Send { to: Peer(0), .. }]), "{sent:?}");
    let sent = ask(&mut placer);
    assert!(matches!(sent[..], [Command::Send { to: Peer(0), .. }]), "{sent:?}");
    (0..3).for_each(|peer| drop(commands(&mut placer, Event::Left(Peer(peer)))));
    let disk = commands(&mut placer, Event::PageLeaves(page));
    assert!(matches!(disk[..], [Command::SendToDisk(_)]), "{disk:?}");
}

#[test]
fn peers_that_join_are_in_the_order_of_their_distance() {
    let order = |placer: &Placer| -> Vec<u16> {
        placer.view().nearest_first().map(|peer| peer.0).collect()
    };
    let mut placer = confirming(0, |_| ());
    placer.join(None, kind(3));
    let near = placer.join(None, kind(1));
    assert_eq!(order(&placer), [0, 1, 5, 2, 3, 4]);
    commands(&mut placer, told(2, 1, 1, 9));
    commands(&mut placer, told(5, 1, 1, 9));
    let first = placer.view().candidates(Avoid::default()).next();
    assert_eq!(first, Some((near, 9)));
    placer.join(Some(near), kind(4));
    assert_eq!(order(&placer), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn draining_node_offers_nothing() {
    let mut placer = confirming(0, |_| ());
    let told = commands(&mut placer, Event::Draining(true));
    assert_eq!(told, [Command::Tell { sequence: 1, value: 0 }]);
    assert_ne!(placer.arrival(9, 1, None), Arrival::Keep);
    let asked = commands(&mut placer, Event::ReservationAsked { node: 9, id: 1 });
    assert_eq!(asked, [Command::AnswerReservation { node: 9, id: 1, granted: false }]);
    commands(&mut placer, Event::Draining(false));
    assert_eq!(placer.arrival(9, 1, None), Arrival::Keep);
}
