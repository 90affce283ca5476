use super::*;
use crate::placement::config::{FailureKind, PlacementKind};

fn placer(change: impl FnOnce(&mut PlacementConfig)) -> Placer {
    let mut config = PlacementConfig::default();
    change(&mut config);
    Placer::new(Arc::new(Shared::new(config, [1, 1, 2, 2].into(), 64, 8)), 1, 0)
}

fn commands(placer: &mut Placer, event: Event) -> Vec<Command> {
    let mut commands = Vec::new();
    placer.handle(0, event, &mut commands);
    commands
}

fn leaving(page: u64) -> Leaving {
    Leaving { page, attempts: 0, avoid: Avoid::default() }
}

fn sent(page: u64, to: u16, reserved: bool) -> Command {
    Command::Send { page: Leaving { attempts: 1, ..leaving(page) }, to: Peer(to), reserved }
}

fn only(placer: &mut Placer, open: u16, free: u32) {
    (0..4).for_each(|peer| {
        drop(commands(
            placer,
            Event::Told { peer: Peer(peer), value: if peer == open { free } else { 0 } },
        ))
    });
}

#[test]
fn page_goes_to_free_peer_or_disk() {
    let mut placer = placer(|_| ());
    only(&mut placer, 2, 1);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(7))), [sent(7, 2, false)]);
    only(&mut placer, 9, 0);
    assert_eq!(
        commands(&mut placer, Event::PageLeaves(leaving(7))),
        [Command::SendToDisk(leaving(7))]
    );
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
        drop(commands(&mut placer, Event::Told { peer: Peer(peer), value: u32::from(peer == 3) }))
    });
    let page = Leaving { attempts: 2, ..leaving(5) };
    let next = commands(&mut placer, Event::Refused { peer: Peer(0), page });
    assert_eq!(
        next,
        [Command::Send { page: Leaving { attempts: 3, ..page }, to: Peer(3), reserved: false }]
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
        assert_eq!(placer.arrival(9, 1, false), Arrival::Keep);
        commands(&mut placer, Event::Free(0));
        assert_eq!(placer.arrival(9, 1, false), arrival);
    }
}

#[test]
fn page_waits_for_all_bids_and_takes_best() {
    let mut placer = placer(|config| {
        (config.information, config.placement) =
            (InformationKind::OnDemand, PlacementKind::MostFree)
    });
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(1))), [Command::AskBids]);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(2))), []);
    for (peer, free) in [(0, 1), (1, 2), (3, 0)] {
        assert_eq!(commands(&mut placer, Event::Bid { peer: Peer(peer), free }), []);
    }
    assert_eq!(placer.waiting(), 2);
    let both = commands(&mut placer, Event::Bid { peer: Peer(2), free: 0 });
    assert_eq!(both.len(), 2);
    assert_eq!(both[0], sent(1, 1, false), "the second page shares the answers");
}

#[test]
fn on_demand_reservation_precedes_send_and_retries_refusals() {
    let mut placer = placer(|config| {
        (config.reservation, config.placement) = (ReservationKind::OnDemand, PlacementKind::Fill)
    });
    assert_eq!(
        commands(&mut placer, Event::PageLeaves(leaving(1))),
        [Command::AskReservation(Peer(0))]
    );
    let refused = Event::ReservationAnswered { peer: Peer(0), granted: false };
    assert_eq!(commands(&mut placer, refused), [Command::AskReservation(Peer(1))]);
    let granted = Event::ReservationAnswered { peer: Peer(1), granted: true };
    assert_eq!(commands(&mut placer, granted), [sent(1, 1, true)]);
    assert_eq!(placer.waiting(), 0);
}

#[test]
fn promised_frame_is_kept_for_its_node() {
    let mut placer = placer(|config| config.on_failure = FailureKind::Return);
    commands(&mut placer, Event::Free(3));
    assert_eq!(
        commands(&mut placer, Event::ReservationAsked { node: 40 }),
        [Command::AnswerReservation { node: 40, granted: true }]
    );
    assert_eq!(placer.promised(), 1);
    commands(&mut placer, Event::Free(0));
    assert_eq!(
        commands(&mut placer, Event::ReservationAsked { node: 41 }),
        [Command::AnswerReservation { node: 41, granted: false }]
    );
    assert_eq!(placer.arrival(41, 1, false), Arrival::SendBack);
    assert_eq!(placer.arrival(40, 1, true), Arrival::Keep);
    assert_eq!((placer.promised(), placer.arrival(40, 1, true)), (0, Arrival::SendBack));
}

#[test]
fn advance_reservation_uses_frame_and_requests_next() {
    let mut placer = placer(|config| {
        (config.reservation, config.placement) = (ReservationKind::InAdvance, PlacementKind::Fill)
    });
    assert_eq!(commands(&mut placer, Event::Free(33)), []);
    assert_eq!(commands(&mut placer, Event::Free(32)), [Command::AskReservation(Peer(0))]);
    assert_eq!(commands(&mut placer, Event::Free(31)), [], "one request is under way");
    assert_eq!(
        commands(&mut placer, Event::ReservationAnswered { peer: Peer(0), granted: true }),
        []
    );
    assert_eq!(
        commands(&mut placer, Event::PageLeaves(leaving(1))),
        [sent(1, 0, true), Command::AskReservation(Peer(0))]
    );
    assert_eq!(
        commands(&mut placer, Event::PageLeaves(leaving(2))),
        [Command::AskReservation(Peer(0))]
    );
    let granted = Event::ReservationAnswered { peer: Peer(0), granted: true };
    assert_eq!(commands(&mut placer, granted), [sent(2, 0, true)]);
    commands(&mut placer, granted);
    assert_eq!(commands(&mut placer, Event::Free(60)), [Command::ReleaseReservation(Peer(0))]);
}

#[test]
fn advance_reservation_without_peers_falls_to_disk() {
    let mut placer = placer(|config| config.reservation = ReservationKind::InAdvance);
    only(&mut placer, 1, 3);
    let asked = commands(&mut placer, Event::PageLeaves(leaving(1)));
    assert_eq!(
        asked,
        [Command::AskReservation(Peer(1)); 2],
        "one for the page and one to have ready"
    );
    let refused = Event::ReservationAnswered { peer: Peer(1), granted: false };
    let (first, second) = (commands(&mut placer, refused), commands(&mut placer, refused));
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
            Event::Told { peer: Peer(peer), value: 3 - u32::from(peer == 2) },
        ))
    });
    assert_eq!(commands(&mut placer, Event::Free(0)), [Command::Tell(3)]);
    assert_eq!(commands(&mut placer, Event::Told { peer: Peer(1), value: 1 }), [Command::Tell(2)]);
    assert_eq!(commands(&mut placer, Event::PageLeaves(leaving(4))), [sent(4, 1, false)]);
    assert_eq!(placer.arrival(3, 1, false), Arrival::SendOn);
    assert_eq!(commands(&mut placer, Event::Free(1)), [Command::Tell(0)]);
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
