//! Machines whose nodes differ, and what happens to them by script: times and counts match those
//! computed by hand.

use std::sync::{Arc, Mutex};

use hiroma_policy::placement::{
    CustomPlacement, Peer, PlacementKind, PlacementPolicy, PolicyError, Request, Rng, ScopeKind,
};
use hiroma_sim::{
    Config, NetworkModel, NodeClass, ScriptEvent, ScriptKind, TopologyKind, Transfer, transfer_all,
};

mod common;

use common::{MS, back, out, outcome, replay, small};

#[test]
fn oversubscribed_uplinks_are_the_bottleneck() {
    // Ten nodes send a page each to the other leaf over one spine: what takes the uplink longest.
    let mut config = small();
    (config.topology.kind, config.topology.dims) = (TopologyKind::LeafSpine, vec![10, 2, 1]);
    (config.network.bytes_per_s, config.network.message_bytes) = (1_000_000_000, 1);
    (config.network.hop_overhead_ns, config.node.page_bytes, config.disk.count) = (0, 9_999, 1);
    config.policy.domain_radius = 4;
    let sends: Vec<Transfer> =
        (0..10).map(|node| Transfer { start_ns: 0, source: node, target: 10 + node }).collect();
    let last_ns =
        |config: &Config| transfer_all(config, &sends).unwrap().there_ns.into_iter().max().unwrap();
    assert_eq!(last_ns(&config), 13 * 10_000, "ten behind each other on one link");
    config.topology.uplink_bytes_per_s = 10_000_000_000;
    assert_eq!(last_ns(&config), 2 * 10_000 + 11 * 1000);
    config.network.model = NetworkModel::Fair;
    assert_eq!(last_ns(&config), 10_000);
    config.topology.uplink_bytes_per_s = 2_500_000_000;
    assert_eq!(last_ns(&config), 40_000, "four to one");
}

#[test]
fn attached_memory_answers_faults_without_the_network() {
    let mut config = small();
    config.policy.scope = ScopeKind::Disk;
    config.load.arrivals_per_s = 40.0;
    let without = outcome(&config, 2);
    (config.node.tier_frames, config.node.tier_access_ns) = (24, 3000);
    config.node.tier_bytes_per_s = 8_192_000_000;
    let with = outcome(&config, 2);
    // Programs have 40 pages at most, and a node has 16 frames and 24 behind them.
    assert!(without.disk_accesses > 0 && without.tier_stores == 0);
    assert_eq!((with.disk_accesses, with.page_outs, with.messages.total()), (0, 0, 0));
    assert!(with.tier_fetches > 100 && with.tier_stores >= with.tier_fetches, "{with:?}");
    // 3 us, 1 us for the bytes, and the handler of a page: 5 us and 250 us are for messages.
    assert_eq!(with.response_ns.mean(), Some(4000.0));
    // With less behind them, only what does not fit leaves.
    config.node.tier_frames = 10;
    let some = outcome(&config, 2);
    assert!(some.page_outs > 0 && some.page_outs < without.page_outs, "{}", some.page_outs);
}

#[test]
fn a_faster_class_of_nodes_is_faster() {
    let mut config = small();
    config.topology.kind = TopologyKind::FullBisection;
    (config.topology.dims, config.disk.count) = (vec![16], 1);
    (config.load.virtual_pages_max, config.load.arrivals_per_s) = (16, 200.0);
    let thread_ns = |config: &Config| outcome(config, 1).thread_ns.mean().unwrap();
    let base_ns = thread_ns(&config);
    config.node.class =
        vec![NodeClass { nodes: "0-15".into(), access_ns: Some(500), ..NodeClass::default() }];
    assert!((thread_ns(&config) / base_ns - 0.5).abs() < 0.01, "half of {base_ns}");
}

/// Takes the peer with most free frames, and notes all frames of each peer, nearest first.
#[derive(Debug)]
struct Noting(Arc<Mutex<Vec<Vec<u32>>>>);

impl PlacementPolicy for Noting {
    fn choose(&mut self, request: &Request<'_>, _: &mut Rng) -> Result<Option<Peer>, PolicyError> {
        assert!(request.peers().all(|peer| peer.free <= peer.capacity));
        let mut noted = self.0.lock().expect("no panic");
        noted.push(request.peers().map(|peer| peer.capacity).collect());
        Ok(request.candidates().max_by_key(|peer| peer.free).map(|peer| peer.peer))
    }
}

#[test]
fn policies_see_the_frames_of_each_peer() {
    for faults in [false, true] {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let (mut config, notes) = (small(), noted.clone());
        config.policy.placement =
            PlacementKind::Custom(CustomPlacement::new("noting", move || Noting(notes.clone())));
        (config.policy.domain_radius, config.run.duration_ns) = (1, 100 * MS);
        config.policy.confirm = faults;
        // The first two of four rows are small: of a node's four neighbours, the two in its row are
        // as large as itself, one of the others is not.
        config.node.class =
            vec![NodeClass { nodes: "0-7".into(), frames: Some(9), ..NodeClass::default() }];
        outcome(&config, 1);
        let noted = noted.lock().unwrap();
        let count = |small: usize| {
            let counts =
                noted.iter().filter(|seen| seen.iter().filter(|&&f| f == 9).count() == small);
            counts.count()
        };
        assert!(noted.iter().flatten().all(|frames| [9, 16].contains(frames)));
        assert!(count(1) > 20 && count(3) > 20, "{} {}", count(1), count(3));
        assert_eq!(count(1) + count(3), noted.len());
    }
}

#[test]
fn disks_of_a_class_are_at_its_nodes() {
    let mut config = small();
    let class = |nodes: &str, disk| NodeClass {
        nodes: nodes.into(),
        disk: Some(disk),
        disk_access_ns: Some(1_000_000),
        disk_bytes_per_s: Some(1 << 40),
        ..NodeClass::default()
    };
    config.node.class = vec![class("5, 6", true)];
    config.policy.scope = ScopeKind::Disk;
    // Node 5 reads from its own disk: the access and the handling of messages, no link.
    replay(&mut config, vec![out(0, 5, 1), back(100 * MS, 5, 1)]);
    let own = outcome(&config, 1);
    assert_eq!((own.disks, own.link_busy_ns), (2, 0));
    assert_eq!(own.disk_fetch_ns.sum, 1_000_008 + 2 * 5_000 + 250_000);
    // Node 4 has none: the nearest is one hop away.
    replay(&mut config, vec![out(0, 4, 1), back(100 * MS, 4, 1)]);
    let other = outcome(&config, 1);
    assert_eq!(other.disk_fetch_ns.sum - own.disk_fetch_ns.sum, 2 * 5_000 + 640 + 82_560);
}

#[test]
fn a_scripted_link_delays_what_needs_it() {
    let mut config = small();
    config.policy.placement = PlacementKind::Fill;
    let sends = |config: &mut Config| {
        replay(config, vec![out(0, 0, 7), back(100 * MS, 0, 7)]);
        outcome(config, 1).response_ns.sum()
    };
    let base_ns = sends(&mut config);
    let event = |time_ns, kind, which: &str| ScriptEvent { time_ns, kind, which: which.into() };
    for model in [NetworkModel::Fifo, NetworkModel::Fair, NetworkModel::Packets] {
        config.network.model = model;
        config.event = Vec::new();
        let base_ns = if model == NetworkModel::Fair { sends(&mut config) } else { base_ns };
        // Every link of node 0 is down when the page is wanted.
        config.event = ["0 - 1", "0 - 3", "0 - 4", "0 - 12"]
            .iter()
            .flat_map(|which| {
                [
                    event(90 * MS, ScriptKind::LinkFails, which),
                    event(150 * MS, ScriptKind::LinkReturns, which),
                ]
            })
            .collect();
        // A flow's latency passes before it needs the link.
        let spared_ns = if model == NetworkModel::Fair { 5_000 } else { 0 };
        assert_eq!(sends(&mut config), base_ns + 50 * MS - spared_ns, "{model:?}");
    }
}

#[test]
fn problems_of_classes_and_scripts_say_which_one() {
    let told = |change: &dyn Fn(&mut Config)| {
        let mut config = small();
        change(&mut config);
        let problems = config.validate().unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let class = |nodes: &str| NodeClass { nodes: nodes.into(), ..NodeClass::default() };
    let event = |kind, which: &str| ScriptEvent { time_ns: 1, kind, which: which.into() };
    assert_eq!(
        told(&|config| config.node.class = vec![class("0"), class("1-16")]),
        "node.class[1]: nodes: there is no node 16; the last is 15"
    );
    assert!(
        told(&|config| {
            config.node.class = vec![NodeClass { disk: Some(false), ..class("0") }];
        })
        .contains("set disk = true for one")
    );
    for (kind, which, message) in [
        (ScriptKind::NodeFails, "16", "event[0]: there is no node `16`; use one from 0 to 15"),
        (ScriptKind::LinkFails, "0 - 5", "event[0]: `0 - 5` are not ends of one link"),
        (ScriptKind::LinkFails, "0-1", "event[0]: `0-1` names no link; write `a - b`"),
        (ScriptKind::LinkFails, "64", "event[0]: there is no link 64; use one from 0 to 63"),
    ] {
        let told = told(&|config| config.event = vec![event(kind, which)]);
        assert!(told.starts_with(message), "{told}\ninstead of\n{message}");
    }
    assert!(
        told(&|config| config.network.buffer_bytes = 100).contains("network.model = \"packets\"")
    );
    assert!(
        told(&|config| {
            config.network.model = NetworkModel::Packets;
            config.network.buffer_bytes = 100;
        })
        .contains("have no room for a packet of 8256")
    );
}
