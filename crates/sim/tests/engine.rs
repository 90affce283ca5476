//! Tests of the whole engine: the same seed gives the same outcome, times match those computed by
//! hand, every policy obeys every rule, and a bug built in on purpose is found.

use std::sync::Arc;

use hiroma_policy::placement::{
    FailureKind, InformationKind, PlacementConfig, PlacementKind, ReplacementKind, ReservationKind,
    ScopeKind,
};
use hiroma_sim::{
    Canary, Config, DiskTime, FirstTouch, FrameFree, GraphLink, LatencyMatrix, NetworkGraph,
    NetworkModel, NodeClass, Outcome, PacketOrder, RunError, ScriptEvent, ScriptKind, Switching,
    TopologyKind, TraceKind, TraceRecord, Transfer, run, transfer_all,
};
use proptest::prelude::*;

mod common;

use common::{MS, back, out, outcome, replay, small};

#[test]
fn outcome_is_determined_by_seed() {
    let mut config = small();
    config.failures.mean_between_ns = 30 * MS;
    config.failures.repair_ns = 20 * MS;
    let (first, second, other) = (outcome(&config, 1), outcome(&config, 1), outcome(&config, 2));
    assert_eq!(first, second);
    assert_ne!(first.response_ns, other.response_ns);
    assert!(first.response_ns.count() > 300 && first.node_failures > 3, "{first:?}");
}

#[test]
fn checks_do_not_change_the_outcome() {
    let config = small();
    let mut unchecked = config.clone();
    unchecked.run.check = false;
    let (with, without) = (outcome(&config, 3), outcome(&unchecked, 3));
    assert!(with.checks > 10_000 && without.checks == 0);
    assert_eq!(Outcome { checks: 0, ..with }, without);
}

#[test]
fn progress_callback_can_stop_the_run() {
    let mut config = small();
    config.run.duration_ns = 60_000 * MS;
    let mut calls = 0;
    let result = run(&config, 1, &mut |progress| {
        calls += 1;
        assert!(progress.now_ns <= progress.end_ns && progress.events > 0);
        calls < 3
    });
    assert!(matches!(result, Err(RunError::Stopped(_))) && calls == 3);
}

/// A page travels `hops` links out and back on an empty network.
fn transfer(config: &mut Config) -> (u64, u64) {
    replay(config, vec![out(0, 0, 7), back(100 * MS, 0, 7)]);
    let outcome = outcome(config, 1);
    assert_eq!((outcome.transfer_ns.count, outcome.response_ns.count()), (1, 1));
    assert_eq!(outcome.response_ns.sum(), outcome.transfer_ns.sum);
    (outcome.transfer_ns.sum, outcome.transfer_hops.sum)
}

#[test]
fn idle_network_transfer_times_match_hand_calculation() {
    let mut config = small();
    // 1 byte is 10 ns: 100 bytes 1 us, a page with its head 9 us.
    (config.network.bytes_per_s, config.network.message_bytes, config.node.page_bytes) =
        (100_000_000, 100, 800);
    (
        config.network.latency_ns,
        config.network.hop_overhead_ns,
        config.network.page_overhead_ns,
        config.network.handler_ns,
    ) = (50, 200, 3000, 700);
    config.network.page_handler_ns = 40;
    for seed_like in [PlacementKind::Fill, PlacementKind::Random] {
        config.policy.placement = seed_like;
        config.network.switching = Switching::StoreAndForward;
        let (time_ns, hops) = transfer(&mut config);
        assert!((1..=2).contains(&hops));
        assert_eq!(time_ns, hops * (200 + 1000 + 50) + 700 + hops * (3200 + 9000 + 50) + 740);
        config.network.switching = Switching::CutThrough;
        let (time_ns, hops) = transfer(&mut config);
        assert_eq!(time_ns, hops * (200 + 50) + 1000 + 700 + hops * (3200 + 50) + 9000 + 740);
    }
}

#[test]
fn page_transfer_uses_links_of_its_route() {
    for (kind, dims, radius, hops) in [
        (TopologyKind::FatTree, vec![1, 1, 6], 6, 6),
        (TopologyKind::FatTree, vec![6, 1, 1], 2, 2),
        (TopologyKind::Dragonfly, vec![1, 4, 1], 3, 3),
        (TopologyKind::FullBisection, vec![6], 2, 2),
    ] {
        let mut config = small();
        (
            config.topology.kind,
            config.topology.dims,
            config.disk.count,
            config.policy.domain_radius,
        ) = (kind, dims, 1, radius);
        let (time_ns, counted) = transfer(&mut config);
        let (small_ns, page_ns) = (5_000 + 640, 5_000 + 82_560);
        assert_eq!(
            (counted, time_ns),
            (hops, hops * (small_ns + page_ns) + 2 * 5_000 + 250_000),
            "{kind:?}"
        );
    }
}

#[test]
fn messages_queue_for_a_shared_link() {
    let mut config = small();
    config.topology.kind = TopologyKind::FullBisection;
    (config.topology.dims, config.disk.count) = (vec![2], 1);
    (
        config.network.hop_overhead_ns,
        config.network.page_overhead_ns,
        config.network.handler_ns,
        config.network.message_bytes,
    ) = (0, 0, 0, 1);
    (config.node.page_bytes, config.network.bytes_per_s, config.network.page_handler_ns) =
        (9_999, 10_000_000_000, 0);
    // Ten pages are sent together over one link at 1 us per page: the disk is not used, the last
    // page arrives after 11 us.
    config.run.count_links = true;
    replay(&mut config, (0..10).map(|page| out(0, 0, page)).collect());
    config.run.duration_ns = MS;
    let outcome = outcome(&config, 1);
    assert_eq!(
        (outcome.placed_remote, outcome.link_busy_max_ns, outcome.link_busy_ns),
        (10, 10_000, 20_000)
    );
    assert_eq!(outcome.link_bytes, [100_000, 0, 0, 100_000]);
}

/// Whole messages in order of arrival with unlimited buffers, as packets.
#[test]
fn packets_as_large_as_messages_behave_as_messages() {
    let mut rng = hiroma_policy::placement::Rng::new(3);
    for (switching, kind, dims) in [
        (Switching::StoreAndForward, TopologyKind::Torus2d, vec![4, 4]),
        (Switching::CutThrough, TopologyKind::FatTree, vec![4, 2, 2]),
        (Switching::CutThrough, TopologyKind::Dragonfly, vec![2, 2, 4]),
    ] {
        let mut config = small();
        (config.topology.kind, config.topology.dims) = (kind, dims);
        (config.network.switching, config.network.latency_ns) = (switching, 137);
        let mut start_ns = 0;
        let transfers: Vec<Transfer> = (0..5000)
            .map(|_| {
                start_ns += rng.below_u64(12_000);
                let source = rng.below(16);
                Transfer { start_ns, source, target: (source + 1 + rng.below(15)) % 16 }
            })
            .collect();
        let whole = transfer_all(&config, &transfers).unwrap();
        config.network.model = NetworkModel::Packets;
        config.network.order = PacketOrder::Fifo;
        let packets = transfer_all(&config, &transfers).unwrap();
        assert_eq!((packets.hops, &packets.neighbour_bytes), (whole.hops, &whole.neighbour_bytes));
        if switching == Switching::StoreAndForward {
            assert_eq!(packets.there_ns, whole.there_ns, "{kind:?}");
        }
        // With cut-through, which of two messages is first where both arrive at the same time may
        // differ.
        let [packets, whole] = [packets, whole].map(|result| result.there_ns);
        let taken = |there_ns: &[u64]| -> u64 {
            there_ns.iter().zip(&transfers).map(|(there_ns, one)| there_ns - one.start_ns).sum()
        };
        let ratio = taken(&packets) as f64 / taken(&whole) as f64;
        assert!((ratio - 1.0).abs() < 1e-3, "{kind:?}: {ratio}");
        assert!(taken(&whole) / 5000 > 150_000, "nothing waits: {}", taken(&whole) / 5000);
    }
}

/// Pages are read from one disk at random times, each by a node of its own: mean time in the disk,
/// relative to its service time.
fn disk_queue(time: DiskTime, load_permille: u64) -> f64 {
    let mut config = Config::default();
    (config.topology.kind, config.topology.dims, config.disk.count) =
        (TopologyKind::FullBisection, vec![4000], 1);
    (config.network.hop_overhead_ns, config.network.page_handler_ns, config.network.handler_ns) =
        (0, 0, 0);
    (config.network.bytes_per_s, config.network.message_bytes, config.node.page_bytes) =
        (1 << 40, 1, 1);
    (config.disk.access_ns, config.disk.bytes_per_s, config.disk.time) = (1_000_000, 1 << 40, time);
    config.policy.scope = ScopeKind::Disk;
    config.disk.count = 1;
    let mut rng = hiroma_policy::placement::Rng::new(99);
    let mut records: Vec<TraceRecord> = (0..4000).map(|node| out(0, node, 1)).collect();
    // A Poisson process: that many times drawn from one long span, in order. Writing takes at most
    // 8 s.
    let span_ns = 10 * 4000 * 1_000_000 * 1000 / load_permille;
    let mut times: Vec<u64> = (0..40_000).map(|_| 20_000 * MS + rng.next_u64() % span_ns).collect();
    times.sort_unstable();
    for (number, time_ns) in times.into_iter().enumerate() {
        let node = number as u32 % 4000;
        records.push(back(time_ns, node, 1 + number as u64 / 4000));
    }
    // Each node reads ten pages, which have to be paged out before.
    let mut all: Vec<TraceRecord> =
        (0..4000).flat_map(|node| (1..=10).map(move |page| out(0, node, page))).collect();
    all.extend(records.into_iter().filter(|record| record.kind == TraceKind::PageIn));
    all.iter_mut()
        .filter(|record| record.kind == TraceKind::PageIn)
        .for_each(|record| record.time_ns += 100_000 * MS);
    replay(&mut config, all);
    config.run.duration_ns = 110_000 * MS + span_ns + 20_000 * MS;
    config.run.stuck_after_ns = 1 << 45;
    let outcome = outcome(&config, 4);
    assert_eq!(outcome.disk_fetch_ns.count, 40_000);
    outcome.disk_fetch_ns.mean().unwrap() / 1e6
}

#[test]
fn disk_behaves_as_mm1_or_md1_queue() {
    for load in [300, 600] {
        let rho = load as f64 / 1000.0;
        let (random, fixed) =
            (disk_queue(DiskTime::Exponential, load), disk_queue(DiskTime::Fixed, load));
        let (mm1, md1) = (1.0 / (1.0 - rho), 1.0 + rho / (2.0 * (1.0 - rho)));
        assert!((random / mm1 - 1.0).abs() < 0.06, "M/M/1 at {rho}: {random} ms, not {mm1}");
        assert!((fixed / md1 - 1.0).abs() < 0.03, "M/D/1 at {rho}: {fixed} ms, not {md1}");
    }
}

#[test]
fn a_program_that_fits_never_waits() {
    let mut config = small();
    config.load.virtual_pages_max = 16;
    config.load.arrivals_per_s = 5.0;
    let outcome = outcome(&config, 1);
    assert!(outcome.accesses > 0 && outcome.first_touches > 0);
    assert_eq!((outcome.response_ns.count(), outcome.page_outs, outcome.disk_accesses), (0, 0, 0));
}

#[test]
fn only_pages_that_were_written_leave() {
    let mut config = small();
    config.load.reads_per_write = 1_000_000;
    let outcome = outcome(&config, 1);
    assert!(
        outcome.clean_drops > 1000 && outcome.page_outs * 20 < outcome.clean_drops,
        "{outcome:?}"
    );
}

#[test]
fn first_touch_reads_from_disk_when_configured() {
    let mut config = small();
    config.load.first_touch = FirstTouch::Disk;
    let outcome = outcome(&config, 1);
    assert!(outcome.first_touches > 100 && outcome.disk_fetch_ns.count > 100, "{outcome:?}");
}

#[test]
fn after_draining_every_process_that_arrived_has_ended() {
    let mut config = small();
    (config.run.warmup_ns, config.run.drain) = (0, true);
    config.run.duration_ns = 50 * MS;
    let outcome = outcome(&config, 9);
    assert!(outcome.processes_arrived > 0);
}

/// A node reports that it no longer has a page, and the node that has it fails before that answer
/// arrives.
#[test]
fn page_lost_during_move_report_is_not_awaited() {
    let mut config = small();
    config.policy = PlacementConfig {
        domain_radius: 2,
        information: InformationKind::OnDemand,
        placement: PlacementKind::RoundRobin,
        on_failure: FailureKind::Replace,
        attempts_max: 3,
        ..PlacementConfig::default()
    };
    (config.network.handler_ns, config.network.multicast, config.load.arrivals_per_s) =
        (5000, false, 295.0);
    config.network.switching = Switching::StoreAndForward;
    config.node.frame_free = FrameFree::AtOnce;
    (config.run.warmup_ns, config.run.duration_ns, config.run.drain) = (5 * MS, 60 * MS, true);
    (config.failures.mean_between_ns, config.failures.repair_ns) = (10 * MS, 8 * MS);
    let outcome = outcome(&config, 15_173_167_999_807_103_899);
    assert!(outcome.node_failures > 0 && outcome.pages_lost > 0, "{outcome:?}");
}

fn kinds() -> impl Strategy<Value = PlacementConfig> {
    let scope = prop_oneof![
        Just(ScopeKind::Domain),
        Just(ScopeKind::Domain),
        Just(ScopeKind::Gradient),
        Just(ScopeKind::Disk)
    ];
    let information = prop_oneof![
        Just(InformationKind::Periodic),
        Just(InformationKind::OnChange),
        Just(InformationKind::OnDemand)
    ];
    let placement = prop_oneof![
        Just(PlacementKind::MostFree),
        Just(PlacementKind::Nearest),
        Just(PlacementKind::Random),
        Just(PlacementKind::WeightedNearest),
        Just(PlacementKind::TwoChoices),
        Just(PlacementKind::RoundRobin),
        Just(PlacementKind::Fill),
    ];
    let on_failure = prop_oneof![
        Just(FailureKind::Replace),
        Just(FailureKind::Return),
        Just(FailureKind::Cascade),
        Just(FailureKind::Disk)
    ];
    let reservation = prop_oneof![
        Just(ReservationKind::None),
        Just(ReservationKind::OnDemand),
        Just(ReservationKind::InAdvance)
    ];
    let replacement = prop_oneof![
        Just(ReplacementKind::Fifo),
        Just(ReplacementKind::Lru),
        Just(ReplacementKind::Lfu),
        Just(ReplacementKind::Clock)
    ];
    (
        scope,
        information,
        placement,
        on_failure,
        reservation,
        replacement,
        0u32..10,
        any::<bool>(),
        1u32..4,
    )
        .prop_map(
            |(
                scope,
                information,
                placement,
                on_failure,
                reservation,
                replacement,
                attempts_max,
                count_own_sends,
                reserve_frames,
            )| {
                PlacementConfig {
                    scope,
                    information,
                    placement,
                    on_failure,
                    reservation: if scope == ScopeKind::Gradient {
                        ReservationKind::None
                    } else {
                        reservation
                    },
                    replacement,
                    attempts_max,
                    count_own_sends,
                    reserve_frames,
                    domain_radius: 2,
                    ..PlacementConfig::default()
                }
            },
        )
}

/// Nine nodes and three switches with links of different rates, some in one direction only.
fn irregular() -> NetworkGraph {
    let mut links = Vec::new();
    let mut join = |from, to, bytes_per_s, latency_ns| {
        links.push(GraphLink { from, to, bytes_per_s, latency_ns });
    };
    for node in 0..9 {
        let (switch, rate) = (9 + node % 3, 50_000_000 * (1 + u64::from(node) % 4));
        join(node, switch, rate, 300);
        join(switch, node, 2 * rate, 700);
    }
    for (a, b) in [(9, 10), (10, 11), (11, 9), (0, 4), (4, 0)] {
        join(a, b, 80_000_000, 2000);
    }
    let names = (0..12).map(|vertex| format!("v{vertex}")).collect();
    NetworkGraph::new(9, names, links).unwrap()
}

/// Sixteen nodes in two rooms.
fn measured() -> LatencyMatrix {
    let latency_ns =
        |a: u64, b: u64| 1000 + 100 * (a * b % 5) + if a / 8 == b / 8 { 0 } else { 1500 };
    let rows: Vec<Vec<u64>> =
        (0..16).map(|a| (0..16).map(|b| latency_ns(a, b)).collect()).collect();
    LatencyMatrix::new(&rows).unwrap()
}

/// Machines of every shape with about 16 nodes, and the radius of a domain in them.
fn shapes() -> impl Strategy<Value = (TopologyKind, Vec<u32>, u32)> {
    prop_oneof![
        Just((TopologyKind::Torus2d, vec![4, 4], 2)),
        Just((TopologyKind::Torus3d, vec![3, 2, 3], 2)),
        Just((TopologyKind::FatTree, vec![4, 2, 2], 4)),
        Just((TopologyKind::FatTree, vec![3, 3, 2], 6)),
        Just((TopologyKind::Dragonfly, vec![2, 3, 3], 5)),
        Just((TopologyKind::FullBisection, vec![17], 2)),
        Just((TopologyKind::LeafSpine, vec![4, 4, 2], 4)),
        Just((TopologyKind::Graph, vec![9], 3)),
        Just((TopologyKind::Matrix, vec![16], 3)),
    ]
}

/// Nodes of different size and speed, and attached memory.
fn mixed(config: &mut Config) {
    let last = config.topology.dims.iter().take(2).product::<u32>().min(9) - 1;
    (config.node.tier_frames, config.node.tier_access_ns) = (5, 2000);
    config.node.class = vec![
        NodeClass {
            nodes: format!("1-{}", last / 2 + 1),
            frames: Some(40),
            access_ns: Some(200),
            handler_ns: Some(100),
            tier_frames: Some(0),
            disk: Some(true),
            disk_parallel: Some(2),
            ..NodeClass::default()
        },
        NodeClass {
            nodes: format!("0, {last}"),
            frames: Some(3),
            tier_frames: Some(20),
            tier_bytes_per_s: Some(1_000_000_000),
            disk: Some(false),
            ..NodeClass::default()
        },
    ];
}

/// Links and nodes that fail and return.
fn scripted(config: &mut Config) {
    let event = |time_ns, kind, which: &str| ScriptEvent { time_ns, kind, which: which.into() };
    config.event = vec![
        event(8 * MS, ScriptKind::LinkFails, "1"),
        event(9 * MS, ScriptKind::NodeFails, "2"),
        event(9 * MS, ScriptKind::LinkFails, "3"),
        event(20 * MS, ScriptKind::NodeReturns, "2"),
        event(21 * MS, ScriptKind::LinkReturns, "1"),
        event(40 * MS, ScriptKind::NodeFails, "0"),
        event(41 * MS, ScriptKind::NodeFails, "0"),
    ];
}

/// Changes to the machine of [`small`].
fn machines() -> impl Strategy<Value = fn(&mut Config)> {
    prop_oneof![
        3 => Just((|_| ()) as fn(&mut Config)),
        1 => Just(mixed as fn(&mut Config)),
        1 => Just(scripted as fn(&mut Config)),
        1 => Just((|config| { mixed(config); scripted(config); }) as fn(&mut Config)),
    ]
}

/// Changes to the network of [`small`]: one for each model.
fn networks() -> impl Strategy<Value = fn(&mut Config)> {
    prop_oneof![
        Just((|_| ()) as fn(&mut Config)),
        Just((|config| config.network.model = NetworkModel::Fair) as fn(&mut Config)),
        Just((|config| config.network.model = NetworkModel::Packets) as fn(&mut Config)),
        Just(
            (|config| {
                config.network.model = NetworkModel::Packets;
                (config.network.packet_bytes, config.network.buffer_bytes) = (1000, 1000);
            }) as fn(&mut Config)
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_mix_keeps_invariants_and_completes(
        policy in kinds(), seed in any::<u64>(), fails in any::<bool>(), rate in 50u32..300, shape in shapes(),
        handler_ns in prop_oneof![Just(0u64), Just(5000)], cut_through in any::<bool>(), multicast in any::<bool>(),
        frame_free in prop_oneof![Just(FrameFree::AtOnce), Just(FrameFree::Sent), Just(FrameFree::Arrived), Just(FrameFree::Placed)],
        network in networks(), machine in machines(),
    ) {
        let mut config = small();
        let (kind, dims, radius) = shape;
        (config.topology.kind, config.topology.dims) = (kind, dims);
        match kind {
            TopologyKind::Graph => config.topology.graph = Some(Arc::new(irregular())),
            TopologyKind::Matrix => config.topology.latencies = Some(Arc::new(measured())),
            _ => (),
        }
        config.policy = PlacementConfig { domain_radius: radius, ..policy };
        if !matches!(kind, TopologyKind::Torus2d | TopologyKind::Torus3d) && config.policy.scope == ScopeKind::Gradient {
            config.policy.scope = ScopeKind::Domain;
        }
        network(&mut config);
        machine(&mut config);
        config.network.switching = if cut_through { Switching::CutThrough } else { Switching::StoreAndForward };
        config.network.multicast = multicast;
        config.load.arrivals_per_s = rate.into();
        config.network.handler_ns = handler_ns;
        config.node.frame_free = frame_free;
        (config.run.warmup_ns, config.run.duration_ns, config.run.drain) = (5 * MS, 60 * MS, true);
        if fails {
            (config.failures.mean_between_ns, config.failures.repair_ns) = (10 * MS, 8 * MS);
        }
        match run(&config, seed, &mut |_| true) {
            Ok(outcome) => prop_assert!(outcome.checks > 0),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn any_recording_is_replayed_to_its_end(
        policy in kinds(), seed in any::<u64>(),
        steps in prop::collection::vec((0u64..1000, 0u32..16, any::<bool>(), 0u64..30), 0..500),
    ) {
        let mut config = small();
        config.policy = policy;
        config.node.frames = 4;
        let mut time_ns = 0;
        let records = steps.into_iter().map(|(gap, node, is_out, page)| {
            time_ns += gap * 1000;
            if is_out { out(time_ns, node, page) } else { back(time_ns, node, page) }
        });
        replay(&mut config, records.collect());
        match run(&config, seed, &mut |_| true) {
            Ok(outcome) => prop_assert!(outcome.response_ns.count() <= 500),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

#[test]
fn every_canary_is_caught_and_described() {
    let caught = |canary: Canary, change: &dyn Fn(&mut Config)| {
        // As every command runs it: without draining.
        let mut config = small();
        (config.run.canary, config.run.drain) = (canary, false);
        change(&mut config);
        match run(&config, 1, &mut |_| true) {
            Ok(_) => panic!("{canary:?} is not caught"),
            Err(error) => error,
        }
    };
    let wrong = |error: RunError| match error {
        RunError::Wrong(violation) => violation.what,
        other => panic!("{other}"),
    };
    assert!(wrong(caught(Canary::LosePage, &|_| ())).contains("was lost at node"));
    assert!(wrong(caught(Canary::KeepCopy, &|_| ())).contains("is taken from Frame"));
    assert!(
        wrong(caught(Canary::OverfillNode, &|config| config.load.arrivals_per_s = 200.0))
            .contains("pages in 16 frames")
    );
    assert!(
        wrong(caught(Canary::StaleContent, &|config| config.policy.scope = ScopeKind::Disk))
            .contains("was written")
    );
    assert!(matches!(caught(Canary::DropAnswer, &|_| ()), RunError::Stuck(_)));
    assert!(wrong(caught(Canary::VanishPage, &|_| ())).contains("is at Moving"));
    let told = caught(Canary::SkipPlaced, &|_| ());
    assert!(
        matches!(&told, RunError::Wrong(wrong) if wrong.what.contains("owner believes"))
            || matches!(told, RunError::Stuck(_)),
        "{told}"
    );
    // Where all frames of a node are in use for nothing, its thread waits for one.
    for canary in [Canary::LeakFrame, Canary::KeepGuestFrame] {
        let told = caught(canary, &|_| ()).to_string();
        assert!(told.contains("frames in use for") || told.contains("WaitsForFrame"), "{told}");
    }
    let told = wrong(caught(Canary::DropDiscard, &|_| ()));
    assert!(told.contains("nobody discards it"), "{told}");
    let told = wrong(caught(Canary::KeepReservation, &|config| {
        (config.policy.placement, config.policy.reservation) =
            (PlacementKind::TwoChoices, ReservationKind::InAdvance);
    }));
    assert!(told.contains("has promised"), "{told}");
}

/// The result of a run of a small configuration, in a few numbers that nearly every change of
/// behaviour changes.
fn golden(outcome: &Outcome) -> [u64; 8] {
    [
        outcome.events,
        outcome.response_ns.count(),
        outcome.response_ns.sum(),
        outcome.transfer_hops.sum,
        outcome.page_outs,
        outcome.repeated_page_outs,
        outcome.messages.total(),
        outcome.link_busy_ns,
    ]
}

#[test]
fn small_configurations_give_recorded_outcomes() {
    let torus = small();
    let mut tree = small();
    (tree.topology.kind, tree.topology.dims) = (TopologyKind::FatTree, vec![4, 2, 2]);
    (tree.policy.domain_radius, tree.policy.placement, tree.policy.reservation) =
        (6, PlacementKind::TwoChoices, ReservationKind::InAdvance);
    tree.network.switching = Switching::CutThrough;
    let came_to = [golden(&outcome(&torus, 1)), golden(&outcome(&tree, 1))];
    assert_eq!(
        came_to,
        [
            [24289, 668, 3496593560, 721, 1254, 63, 7426, 286134972],
            [82147, 652, 3575246939, 2048, 1237, 0, 12660, 879717760],
        ]
    );
}
