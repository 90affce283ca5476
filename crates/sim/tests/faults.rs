//! The cluster with faults: whatever messages are lost, repeated and reordered, links cut and nodes
//! failing, no page is lost that a copy survives, none is in two versions, nobody waits for ever,
//! and nothing is left over.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use hiroma_policy::placement::{
    CustomPlacement, FailureKind, InformationKind, Peer, PlacementConfig, PlacementKind,
    PlacementPolicy, PolicyError, ReplacementKind, Request, ReservationKind, Rng, ScopeKind,
};
use hiroma_sim::{
    Canary, Config, GraphLink, LatencyMatrix, NetworkGraph, NetworkModel, NodeClass, OutageConfig,
    PartitionConfig, RunError, ScriptEvent, ScriptKind, TopologyKind, TraceKind, TraceRecord, run,
};

const MS: u64 = 1_000_000;

/// A small cluster under load, without faults.
fn small() -> Config {
    let mut config = Config::default();
    (config.topology.kind, config.topology.dims) = (TopologyKind::FullBisection, vec![6]);
    config.policy = PlacementConfig {
        confirm: true,
        domain_radius: 2,
        answer_ns: 10 * MS,
        refresh_ns: 50 * MS,
        lease_ns: 1_000 * MS,
        give_up_ns: 5_000 * MS,
        ..PlacementConfig::default()
    };
    config.node.frames = 12;
    (config.disk.count, config.disk.bytes_per_s) = (2, 50_000_000);
    (config.load.arrivals_per_s, config.load.threads_mean, config.load.threads_sd) = (30.0, 3, 1);
    (config.load.accesses, config.load.virtual_pages_max) = (600, 24);
    config.load.reads_per_write = 2;
    (config.run.warmup_ns, config.run.duration_ns) = (10 * MS, 400 * MS);
    config.run.stuck_after_ns = 8_000 * MS;
    config
}

#[test]
fn quiet_cluster_confirms_everything() {
    let config = small();
    let outcome = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.placed_remote > 10, "{outcome:?}");
    assert_eq!(outcome.pages_lost, 0);
    // Nodes at one switch are two links apart.
    let hops = outcome.transfer_hops;
    assert!(hops.count > 10 && hops.sum == 2 * hops.count, "{hops:?}");
    let work = outcome.handler_use();
    assert!((0.001..1.0).contains(&work), "{work}");
}

#[test]
fn faults_are_counted_while_the_run_is_measured() {
    let mut config = small();
    config.faults.loss = 0.1;
    let counted = |config: &Config| {
        let outcome = run(config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
        (outcome.faults.lost, outcome.messages.total())
    };
    let (lost, _) = counted(&config);
    // The same run, of which only the end is measured.
    (config.run.warmup_ns, config.run.duration_ns) = (390 * MS, 20 * MS);
    let (at_the_end, messages) = counted(&config);
    assert!(at_the_end * 4 < lost && at_the_end * 4 < messages, "{at_the_end} of {lost}");
}

fn outage(node: u32, from_ms: u64, until_ms: u64) -> OutageConfig {
    OutageConfig { node, from_ns: from_ms * MS, until_ns: until_ms * MS }
}

#[test]
fn a_node_returns_after_the_last_of_its_outages() {
    let mut config = small();
    config.faults.crashes = vec![outage(1, 20, 60), outage(1, 30, 300), outage(1, 100, 120)];
    let event = |time_ms, kind| ScriptEvent { time_ns: time_ms * MS, kind, which: "1".into() };
    config.event = vec![event(50, ScriptKind::NodeFails), event(200, ScriptKind::NodeReturns)];
    let outcome = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.node_failures, 1, "it worked in between");
}

#[test]
fn repairs_of_random_failures_end_no_outage_by_script() {
    for confirm in [true, false] {
        let mut config = small();
        config.policy.confirm = confirm;
        (config.failures.mean_between_ns, config.failures.repair_ns) = (MS, 30 * MS);
        let fails = |node: u32| ScriptEvent {
            time_ns: 50 * MS,
            kind: ScriptKind::NodeFails,
            which: node.to_string(),
        };
        config.event = (0..6).map(fails).collect();
        (config.run.warmup_ns, config.run.duration_ns) = (60 * MS, 300 * MS);
        let outcome = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.node_failures, 0, "with confirm = {confirm}");
    }
}

#[test]
fn a_node_that_restarts_in_a_drain_takes_no_guests() {
    let mut config = small();
    config.faults.crashes = vec![outage(2, 5, 15)];
    config.faults.drains = vec![outage(2, 10, 1_000), outage(2, 20, 100)];
    (config.run.warmup_ns, config.run.samples) = (30 * MS, 100);
    let outcome = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    let loads = outcome.observed.expect("it was asked for").loads;
    let guests: Vec<u64> = loads.iter().map(|load| load.guests).collect();
    assert!(guests[2] == 0 && guests.iter().sum::<u64>() > 20, "{guests:?}");
}

#[test]
fn attached_memory_answers_faults_without_the_network() {
    let mut config = small();
    (config.node.tier_frames, config.node.tier_access_ns) = (12, 3_000);
    config.node.tier_bytes_per_s = 8_192_000_000;
    let with = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    // Programs have 24 pages at most, and a node has 12 frames and 12 behind them.
    assert!(with.tier_fetches > 50 && with.tier_stores >= with.tier_fetches, "{with:?}");
    assert_eq!((with.page_outs, with.disk_accesses, with.placed_remote), (0, 0, 0));
    // 3 us, and 1 us for the bytes.
    assert_eq!(with.response_ns.mean(), Some(4000.0));
    assert_eq!(with.response_tier_ns, 4000 * with.tier_fetches);
    // With less behind them, what does not fit leaves, and comes back.
    config.node.tier_frames = 1;
    config.faults.loss = 0.05;
    let some = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    assert!(some.tier_fetches > 20 && some.page_outs > 50, "{some:?}");
    assert!(some.placed_remote > 20 && some.transfer_ns.count > 20, "{some:?}");
    assert_eq!(some.pages_lost, 0);
}

/// Two clients that page out, fetch most of it back, and page out again.
fn recording(seed: u64) -> Vec<TraceRecord> {
    let mut rng = Rng::part(seed, 0x7ace);
    let record =
        |time_ms: u64, node, kind, page| TraceRecord { time_ns: time_ms * MS, node, kind, page };
    let mut records = Vec::new();
    for time_ms in 60..200 {
        for node in [0, 3] {
            let kind = if rng.below(2) == 0 { TraceKind::PageOut } else { TraceKind::PageIn };
            records.push(record(time_ms, node, kind, u64::from(rng.below(30))));
        }
    }
    records
}

#[test]
fn recordings_give_the_same_faults_with_confirmed_messages() {
    let mut config = small();
    config.load.trace = Some(recording(1).into());
    (config.run.warmup_ns, config.run.drain) = (0, true);
    let confirmed = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    config.policy.confirm = false;
    let trusting = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    let counts = |of: &hiroma_sim::Outcome| {
        (of.page_outs, of.replay_skipped, of.first_touches, of.response_ns.count())
    };
    assert_eq!(counts(&confirmed), counts(&trusting));
    assert!(confirmed.page_outs > 50 && confirmed.transfer_ns.count > 20, "{confirmed:?}");
    config.faults.crashes = vec![outage(1, 20, 60)];
    let Err(RunError::Config(problems)) = run(&config, 1, &mut |_| true) else { panic!("it runs") };
    assert_eq!(problems[0].field, "faults.crashes");
}

#[test]
fn schedules_with_faults_of_recordings_come_to_their_end() {
    run_all(|seed| {
        let mut config = schedule(seed);
        config.load.trace = Some(recording(seed).into());
        (config.run.warmup_ns, config.run.drain) = (0, true);
        config.faults.crashes.clear();
        config.failures.mean_between_ns = 0;
        config
    });
}

fn join(time_ms: u64, node: u32) -> ScriptEvent {
    ScriptEvent { time_ns: time_ms * MS, kind: ScriptKind::NodeJoins, which: node.to_string() }
}

#[test]
fn the_frames_of_a_node_that_joins_come_to_be_used() {
    let guests = |from_ms: u64, until_ms: u64| {
        let mut config = small();
        config.load.arrivals_per_s = 60.0;
        config.faults.loss = 0.05;
        config.event = vec![join(200, 4)];
        (config.run.warmup_ns, config.run.samples) = (from_ms * MS, 200);
        config.run.duration_ns = (until_ms - from_ms) * MS;
        // Whatever is lost, stale or left over would be an error.
        let outcome = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((outcome.pages_lost, outcome.node_failures), (0, 0));
        let loads = outcome.observed.expect("it was asked for").loads;
        loads.iter().map(|load| load.guests).collect::<Vec<u64>>()
    };
    let (before, after) = (guests(10, 199), guests(260, 500));
    assert!(before[4] == 0 && before.iter().sum::<u64>() > 100, "{before:?}");
    assert!(after[4] > 20, "{after:?}");
}

/// Notes what it sees of the peer that has 20 frames, and of how many peers.
#[derive(Debug)]
struct Watching(Arc<Mutex<BTreeSet<(usize, u16, u32)>>>);

impl PlacementPolicy for Watching {
    fn choose(&mut self, request: &Request<'_>, _: &mut Rng) -> Result<Option<Peer>, PolicyError> {
        let mut seen = self.0.lock().expect("no panic");
        let new = request.peers().find(|peer| peer.capacity == 20);
        seen.extend(new.map(|new| (request.len(), new.hops, new.page_ns)));
        Ok(request.candidates().max_by_key(|peer| peer.free).map(|peer| peer.peer))
    }
}

#[test]
fn a_node_that_joins_is_known_at_its_distance_with_its_frames_and_speed() {
    let mut config = small();
    (config.topology.kind, config.topology.dims) = (TopologyKind::Torus2d, vec![4, 2]);
    config.policy.domain_radius = 3;
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let noted = seen.clone();
    config.policy.placement =
        PlacementKind::Custom(CustomPlacement::new("watching", move || Watching(noted.clone())));
    config.node.class = vec![NodeClass {
        nodes: "5".into(),
        frames: Some(20),
        page_handler_ns: Some(1_000),
        ..NodeClass::default()
    }];
    config.event = vec![join(100, 5)];
    // One that restarts knows the node that joined, too.
    config.faults.crashes = vec![outage(1, 150, 160)];
    run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.lock().expect("no panic");
    // 8256 bytes at 100 MB/s, 5 us for any message and 1 us for a page.
    let at = |hops| (7, hops, 88_560);
    assert_eq!(*seen, BTreeSet::from([at(1), at(2), at(3)]));
}

#[test]
fn nodes_that_cannot_join_are_refused() {
    let told = |change: &dyn Fn(&mut Config)| {
        let mut config = small();
        config.event = vec![join(100, 4)];
        change(&mut config);
        let problems = config.validate().err().unwrap_or_default();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(told(&|_| ()), "");
    let refused = told(&|config| config.policy.confirm = false);
    assert!(
        refused.starts_with("event: nodes join where messages are confirmed; set"),
        "{refused}"
    );
    let refused = told(&|config| config.event.push(join(200, 4)));
    assert_eq!(refused, "event[1]: node 4 joins twice; use node_returns");
    let refused = told(&|config| {
        config.event[0].time_ns = 50 * MS;
        let kind = ScriptKind::NodeFails;
        config.event.insert(0, ScriptEvent { time_ns: 20 * MS, kind, which: "4".into() });
    });
    assert_eq!(refused, "event[0]: node 4 is not there before it joins at 50000000 ns");
    let refused = told(&|config| config.event = (0..6).map(|node| join(5, node)).collect());
    assert_eq!(refused, "event: all nodes join; leave one that is there before");
}

/// Links of a node that fail for longer than any wait: what waits for them is not stuck.
#[test]
fn who_waits_for_a_failed_link_is_not_stuck() {
    let mut config = small();
    config.policy.give_up_ns = 300 * MS;
    config.run.stuck_after_ns = 500 * MS;
    config.run.duration_ns = 4_000 * MS;
    let event = |time_ms, kind, link: u32| ScriptEvent {
        time_ns: time_ms * MS,
        kind,
        which: link.to_string(),
    };
    // All links into the network and out of it.
    config.event = (0..12)
        .flat_map(|link| {
            [event(300, ScriptKind::LinkFails, link), event(3_000, ScriptKind::LinkReturns, link)]
        })
        .collect();
    run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_run_can_be_ended_while_its_nodes_start() {
    let mut config = small();
    config.topology.dims = vec![1 << 15];
    let mut looks = 0;
    let stopped = run(&config, 1, &mut |progress| {
        looks += 1;
        progress.events > 0
    });
    assert!(matches!(stopped, Err(RunError::Stopped(_))) && looks == 1, "{looks} {stopped:?}");
}

/// A schedule: policies, redundancy and faults drawn from its seed.
fn schedule(seed: u64) -> Config {
    let mut rng = Rng::part(seed, 0x5c4e);
    let mut pick = |count: u32| rng.below(count);
    let mut config = small();
    let policy = &mut config.policy;
    policy.information =
        [InformationKind::OnChange, InformationKind::Periodic, InformationKind::OnDemand]
            [pick(3) as usize];
    policy.placement = PlacementKind::ALL[pick(PlacementKind::ALL.len() as u32) as usize].clone();
    policy.on_failure =
        [FailureKind::Cascade, FailureKind::Return, FailureKind::Replace, FailureKind::Disk]
            [pick(4) as usize];
    policy.reservation =
        [ReservationKind::None, ReservationKind::OnDemand, ReservationKind::InAdvance]
            [pick(3) as usize];
    policy.replacement =
        [ReplacementKind::Lru, ReplacementKind::Fifo, ReplacementKind::Lfu, ReplacementKind::Clock]
            [pick(4) as usize];
    match pick(6) {
        0 => policy.copies = 2,
        1 => policy.copies = 3,
        2 => policy.parity = vec![2, 1],
        3 => policy.parity = vec![2, 2],
        _ => (),
    }
    if pick(8) == 0 {
        policy.scope = ScopeKind::Gradient;
        policy.reservation = ReservationKind::None;
        (config.topology.kind, config.topology.dims) = (TopologyKind::Torus2d, vec![3, 2]);
    }
    config.load.arrivals_per_s = f64::from(10 + pick(60));
    config.run.drain = pick(2) == 0;
    let faults = &mut config.faults;
    faults.loss = f64::from(pick(4)) * 0.05;
    faults.duplicate = f64::from(pick(3)) * 0.1;
    faults.reorder = f64::from(pick(3)) * 0.2;
    faults.reorder_ns = u64::from(1 + pick(20)) * MS;
    faults.delay = f64::from(pick(2)) * 0.03;
    faults.delay_ns = 40 * MS;
    faults.wrong_suspicions_per_s = f64::from(pick(2)) * 20.0;
    faults.detect_ns = u64::from(pick(2)) * 20 * MS;
    for _ in 0..pick(3) {
        let from_ns = u64::from(pick(300)) * MS;
        let until_ns = from_ns + u64::from(1 + pick(300)) * MS;
        let groups = vec![(0..6).filter(|_| pick(2) == 0).collect::<Vec<u32>>()];
        if !groups[0].is_empty() {
            faults.partitions.push(PartitionConfig { from_ns, until_ns, groups });
        }
    }
    let outage = |pick: &mut dyn FnMut(u32) -> u32| {
        let from_ns = u64::from(pick(350)) * MS;
        let until_ns = from_ns + u64::from(1 + pick(200)) * MS;
        OutageConfig { node: pick(6), from_ns, until_ns }
    };
    if pick(3) == 0 {
        faults.crashes = (0..1 + pick(2)).map(|_| outage(&mut pick)).collect();
    }
    if pick(4) == 0 {
        faults.drains = vec![outage(&mut pick)];
    }
    if pick(4) == 0 {
        config.failures.mean_between_ns = 100 * MS;
        config.failures.repair_ns = 60 * MS;
    }
    config
}

fn link(from: u32, to: u32) -> GraphLink {
    GraphLink {
        from,
        to,
        bytes_per_s: 40_000_000 + u64::from(from) * 10_000_000,
        latency_ns: 2_000,
    }
}

/// Six nodes at two switches with two links between them, and a short way between two nodes.
fn graph() -> NetworkGraph {
    let ends = [(0, 6), (1, 6), (2, 6), (3, 7), (4, 7), (5, 7), (6, 7), (6, 7), (2, 3)];
    let links = ends.iter().flat_map(|&(a, b)| [link(a, b), link(b, a)]).collect();
    let names = ["a", "b", "c", "d", "e", "f", "left", "right"].map(str::to_owned);
    NetworkGraph::new(6, names.to_vec(), links).expect("all reach all")
}

/// As [`schedule`], on networks, nodes and disks that differ, with links and nodes that fail by script.
fn unlike(seed: u64) -> Config {
    let mut config = schedule(seed);
    let mut rng = Rng::part(seed, 0x0de5);
    let mut pick = |count: u32| rng.below(count);
    let topology = &mut config.topology;
    // A gradient needs a torus.
    let kinds = if config.policy.scope == ScopeKind::Gradient { 0 } else { 4 };
    let links: &[&str] = match pick(4) + 4 - kinds {
        0 => {
            (topology.kind, topology.dims) = (TopologyKind::Graph, vec![6]);
            topology.graph = Some(Arc::new(graph()));
            &["left - right", "c - d", "a -> left", "e - right"]
        }
        1 => {
            (topology.kind, topology.dims) = (TopologyKind::LeafSpine, vec![2, 3, 2]);
            topology.uplink_bytes_per_s = 25_000_000;
            &["0", "5", "9"]
        }
        2 => {
            (topology.kind, topology.dims) = (TopologyKind::Matrix, vec![6]);
            let row = |from: u64| (0..6).map(|to| 10_000 * (1 + (from * 7 + to * 3) % 5)).collect();
            let rows: Vec<Vec<u64>> = (0..6).map(row).collect();
            topology.latencies = Some(Arc::new(LatencyMatrix::new(&rows).expect("a square")));
            &["3"]
        }
        _ => &["1", "4"],
    };
    let network = &mut config.network;
    match pick(4) {
        0 => network.model = NetworkModel::Fair,
        1 => {
            (network.model, network.packet_bytes) = (NetworkModel::Packets, 1500);
            network.buffer_bytes = u64::from(pick(2)) * 6000;
        }
        _ => (),
    }
    if pick(3) == 0 {
        let small = NodeClass { nodes: "1-2".into(), frames: Some(5), ..NodeClass::default() };
        let slow = NodeClass {
            nodes: "4".into(),
            access_ns: Some(9_000),
            handler_ns: Some(50_000),
            disk: Some(true),
            disk_bytes_per_s: Some(5_000_000),
            ..NodeClass::default()
        };
        config.node.class = vec![small, slow];
    }
    for _ in 0..pick(3) {
        let (from_ns, for_ns) = (u64::from(pick(350)) * MS, u64::from(1 + pick(200)) * MS);
        let is_link = pick(2) == 0;
        let which = if is_link { links[pick(links.len() as u32) as usize] } else { "5" };
        let kinds = if is_link {
            [ScriptKind::LinkFails, ScriptKind::LinkReturns]
        } else {
            [ScriptKind::NodeFails, ScriptKind::NodeReturns]
        };
        // One in four does not return.
        let times = [Some(from_ns), (pick(4) > 0).then_some(from_ns + for_ns)];
        for (kind, time_ns) in kinds.into_iter().zip(times) {
            let Some(time_ns) = time_ns else { continue };
            config.event.push(ScriptEvent { time_ns, kind, which: which.to_owned() });
        }
    }
    if pick(4) == 0 {
        config.event.push(join(u64::from(pick(380)), 3));
    }
    if pick(3) == 0 {
        config.node.tier_frames = 1 + pick(8);
        config.node.tier_access_ns = u64::from(pick(3)) * 20_000;
    }
    config
}

/// `HIROMA_SCHEDULES` sets how many schedules are run, `HIROMA_SCHEDULE` the first one.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs many schedules; none may go wrong.
fn run_all(schedule: fn(u64) -> Config) {
    // Without optimization, a schedule takes ten times as long.
    let ordinary = if cfg!(debug_assertions) { 1000 } else { 10_000 };
    let (first, count) = (number("HIROMA_SCHEDULE", 0), number("HIROMA_SCHEDULES", ordinary));
    let next = std::sync::atomic::AtomicU64::new(first);
    let wrong = std::sync::Mutex::new(Vec::new());
    let work = || {
        let mut checks = 0;
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed >= first + count || wrong.lock().expect("no panic").len() >= 10 {
                return checks;
            }
            match run(&schedule(seed), seed, &mut |_| true) {
                Ok(outcome) => checks += outcome.checks,
                Err(error) => {
                    wrong.lock().expect("no panic").push(format!("schedule {seed}: {error}"))
                }
            }
        }
    };
    let checks: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checks > 100 * count, "{checks} checks");
}

#[test]
fn schedules_with_faults_lose_nothing_and_come_to_rest() {
    run_all(schedule);
}

#[test]
fn schedules_with_faults_on_unlike_networks_and_nodes() {
    run_all(unlike);
}

/// As [`schedule`], with deadlines so short that a run is longer than any wait may be.
fn hasty(seed: u64) -> Config {
    let mut config = schedule(seed);
    (config.policy.answer_ns, config.policy.attempts_max) = (2 * MS, 2);
    config.policy.give_up_ns = 1_200 * MS;
    config
}

#[test]
fn schedules_with_faults_end_every_wait_at_its_deadline() {
    run_all(hasty);
}

#[test]
fn a_message_that_is_delayed_delays_no_other() {
    let mut config = small();
    // Retries replace what is late.
    (config.faults.delay, config.faults.delay_ns) = (0.03, 300 * MS);
    let outcome = run(&config, 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    let mean_ms = outcome.transfer_ns.mean().expect("pages come back") / 1e6;
    let delayed = outcome.faults.delayed;
    assert!(delayed > 20 && mean_ms < 10.0, "{mean_ms} ms with {delayed} delayed");
}

/// What a broken cluster is found by, in one of the first schedules.
fn found(canary: Canary) -> String {
    let schedule = if canary == Canary::LateDeadline { hasty } else { schedule };
    for seed in 0..400 {
        let mut config = schedule(seed);
        config.run.canary = canary;
        match run(&config, seed, &mut |_| true) {
            Ok(_) => (),
            Err(error @ (RunError::Wrong(_) | RunError::Stuck(_))) => return error.to_string(),
            Err(error) => panic!("{canary:?}: {error}"),
        }
    }
    panic!("{canary:?} is not found");
}

#[test]
fn every_broken_rule_is_found() {
    let mut wrong = Vec::new();
    for (canary, by) in [
        (Canary::LosePage, "does not have it"),
        (Canary::OverfillNode, "frames in use, of 12"),
        (Canary::StaleContent, "but was written"),
        (Canary::ForgetEarly, "content 4294967295"),
        (Canary::KeepOrphans, "which has it at"),
        (Canary::BelieveOld, "which believes it to be there"),
        (Canary::NeverRepeat, "has waited for page"),
        (Canary::DenyPage, "as lost, but pieces"),
        (Canary::SameEpoch, "believes page"),
        (Canary::LateDeadline, "that deadlines allow"),
        (Canary::KeepVersion, "has content"),
    ] {
        let told = found(canary);
        if !told.contains(by) {
            wrong.push(format!("{canary:?}: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_seed_repeats_its_faults() {
    let outcome = |seed| run(&schedule(seed), seed, &mut |_| true).expect("a good schedule");
    for seed in 0..20 {
        assert_eq!(outcome(seed), outcome(seed));
        let outcome = |seed| run(&unlike(seed), seed, &mut |_| true).expect("a good schedule");
        assert_eq!(outcome(seed), outcome(seed));
    }
}

/// What happens in the first schedules: a test in which nothing goes wrong proves nothing.
#[test]
fn schedules_contain_every_kind_of_fault() {
    let mut all = hiroma_sim::FaultTally::default();
    let (mut lost, mut failed, mut on_disk, mut refused) = (0, 0, 0, 0);
    for seed in 0..300 {
        let outcome = run(&schedule(seed), seed, &mut |_| true).expect("a good schedule");
        let faults = outcome.faults;
        all.lost += faults.lost;
        all.repeated += faults.repeated;
        all.delayed += faults.delayed;
        all.cut += faults.cut;
        all.unheard += faults.unheard;
        all.suspicions += faults.suspicions;
        all.repaired += faults.repaired;
        all.spilled += faults.spilled;
        all.drained += faults.drained;
        (lost, failed) = (lost + outcome.pages_lost, failed + outcome.node_failures);
        (on_disk, refused) = (on_disk + outcome.placed_disk, refused + outcome.repeated_page_outs);
    }
    let counts = [
        all.lost,
        all.repeated,
        all.delayed,
        all.cut,
        all.unheard,
        all.suspicions,
        all.repaired,
        all.spilled,
        all.drained,
        lost,
        failed,
        on_disk,
        refused,
    ];
    assert!(counts.iter().all(|&count| count >= 10), "{counts:?}");
    println!("{counts:?}");
}
