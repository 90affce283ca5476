use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::config::TopologyConfig;

fn topology(kind: TopologyKind, dims: &[u32], radius: u32, most: u32) -> Topology {
    made(TopologyConfig { kind, dims: dims.to_vec(), ..TopologyConfig::default() }, radius, most)
}

fn made(topology: TopologyConfig, radius: u32, most: u32) -> Topology {
    Topology::new(&Config { topology, ..Config::default() }, radius, most)
}

fn link(from: u32, to: u32, latency_ns: u64) -> GraphLink {
    GraphLink { from, to, bytes_per_s: 1_000_000_000, latency_ns }
}

/// A network of `nodes` nodes and some switches: a ring of all in one direction or both, and links
/// across it.
fn graph(
    nodes: u32,
    switches: u32,
    across: &[(u32, u32, u64)],
    both: bool,
) -> Result<NetworkGraph, GraphProblem> {
    let all = nodes + switches;
    let mut links: Vec<GraphLink> = (0..all).map(|one| link(one, (one + 1) % all, 10)).collect();
    if both {
        links.extend((0..all).map(|one| link((one + 1) % all, one, 10)));
    }
    let chords = across.iter().map(|&(from, to, ns)| link(from % all, to % all, ns));
    links.extend(chords.filter(|link| link.from != link.to));
    NetworkGraph::new(nodes, (0..all).map(|one| format!("v{one}")).collect(), links)
}

fn any_graph() -> impl Strategy<Value = TopologyConfig> {
    let across = prop::collection::vec((0u32..30, 0u32..30, 0u64..50), 0..30);
    (2u32..14, 0u32..6, across, any::<bool>()).prop_map(|(nodes, switches, across, both)| {
        let graph = graph(nodes, switches, &across, both).unwrap();
        TopologyConfig {
            kind: TopologyKind::Graph,
            dims: vec![nodes],
            graph: Some(Arc::new(graph)),
            ..TopologyConfig::default()
        }
    })
}

fn any_matrix() -> impl Strategy<Value = TopologyConfig> {
    let rows = (2usize..12).prop_flat_map(|nodes| {
        prop::collection::vec(prop::collection::vec(0u64..5000, nodes), nodes)
    });
    rows.prop_map(|rows| TopologyConfig {
        kind: TopologyKind::Matrix,
        dims: vec![rows.len() as u32],
        latencies: Some(Arc::new(LatencyMatrix::new(&rows).unwrap())),
        ..TopologyConfig::default()
    })
}

fn any_topology() -> impl Strategy<Value = Topology> {
    let kinds = prop_oneof![
        (prop::collection::vec(1u32..8, 2), Just(TopologyKind::Torus2d)),
        (prop::collection::vec(1u32..6, 3), Just(TopologyKind::Torus3d)),
        (prop::collection::vec(1u32..6, 3), Just(TopologyKind::FatTree)),
        (prop::collection::vec(1u32..6, 3), Just(TopologyKind::Dragonfly)),
        (prop::collection::vec(2u32..40, 1), Just(TopologyKind::FullBisection)),
        (prop::collection::vec(1u32..6, 3), Just(TopologyKind::LeafSpine)),
    ];
    let named =
        kinds.prop_map(|(dims, kind)| TopologyConfig { kind, dims, ..TopologyConfig::default() });
    let all = prop_oneof![6 => named, 2 => any_graph(), 1 => any_matrix()];
    (all, 1u32..7, prop_oneof![Just(3u32), Just(1000)])
        .prop_map(|(topology, radius, most)| made(topology, radius, most))
}

fn way(topology: &Topology, source: u32, target: u32) -> Vec<u32> {
    let mut at = topology.start(source);
    let mut links = Vec::new();
    while let Some((link, next)) = topology.next(at, source, target) {
        links.push(link);
        at = next;
        assert!(links.len() <= 1000, "no end between {source} and {target}");
    }
    links
}

proptest! {
    #[test]
    fn routes_are_simple_and_match_distance(topology in any_topology()) {
        for source in 0..topology.nodes() {
            for target in 0..topology.nodes() {
                let links = way(&topology, source, target);
                // Distances between measured nodes are latencies.
                if !matches!(topology, Topology::Matrix(_)) {
                    prop_assert_eq!(links.len() as u32, topology.distance(source, target));
                }
                prop_assert!(links.iter().all(|&link| link < topology.links()));
                prop_assert_eq!(links.iter().collect::<BTreeSet<_>>().len(), links.len());
            }
        }
    }

    #[test]
    fn peers_are_distinct_and_nearest_first(topology in any_topology()) {
        for node in 0..topology.nodes() {
            let hops = topology.peer_hops(node);
            prop_assert!(hops.windows(2).all(|pair| pair[0] <= pair[1]));
            let peers: Vec<u32> = (0..hops.len() as u16).map(|peer| topology.peer(node, Peer(peer))).collect();
            prop_assert_eq!(peers.iter().collect::<BTreeSet<_>>().len(), peers.len());
            for (place, &peer) in peers.iter().enumerate() {
                prop_assert!(peer != node && peer < topology.nodes());
                prop_assert_eq!(topology.peer_of(node, peer), Some(Peer(place as u16)));
            }
            let others: BTreeSet<u32> = (0..topology.nodes()).filter(|other| !peers.contains(other)).collect();
            prop_assert!(others.iter().all(|&other| topology.peer_of(node, other).is_none()));
        }
    }

    #[test]
    fn no_circle_of_channels_can_wait_for_itself(topology in any_topology()) {
        let channels = topology.virtual_channels();
        prop_assert!(!waits_in_a_circle(&topology, |channel| channel));
        prop_assert!(highest_channel(&topology) < channels);
    }

    #[test]
    fn domain_broadcast_reaches_every_peer_once(dims in prop::collection::vec(1u32..8, 3), radius in 1u32..7, node in 0u32..400) {
        let topology = topology(TopologyKind::Torus3d, &dims, radius, 1000);
        let node = node % topology.nodes();
        let (mut todo, mut reached) = (vec![node], BTreeSet::new());
        while let Some(at) = todo.pop() {
            let (ways, count) = topology.spread(node, at).unwrap();
            for &(_, next) in &ways[..count] {
                prop_assert!(reached.insert(next), "{} twice", next);
                todo.push(next);
            }
        }
        let peers: BTreeSet<u32> = (0..topology.peer_hops(0).len() as u16).map(|peer| topology.peer(node, Peer(peer))).collect();
        prop_assert_eq!(reached, peers);
    }

    #[test]
    fn every_node_has_a_nearby_disk(topology in any_topology(), disks in 1u32..20) {
        let disks = disks.min(topology.nodes());
        let (at, of_node) = topology.disks(disks);
        prop_assert_eq!((at.len() as u32, of_node.len() as u32), (disks, topology.nodes()));
        for (disk, &node) in at.iter().enumerate() {
            prop_assert_eq!(of_node[node as usize] as usize, disk);
        }
    }
}

#[test]
fn paper_machine_has_one_disk_per_4x4_block() {
    let topology = topology(TopologyKind::Torus2d, &[16, 16], 4, 1000);
    let (at, of_node) = topology.disks(16);
    assert_eq!(&at[..5], [34, 38, 42, 46, 98]);
    assert_eq!((of_node[0], of_node[3], of_node[4], of_node[255]), (0, 0, 1, 15));
    assert_eq!(topology.peer_hops(0).len(), 40);
    assert_eq!(topology.links(), 1024);
}

#[test]
fn single_switch_gives_two_hops_between_nodes() {
    let topology = topology(TopologyKind::FullBisection, &[100], 2, 6);
    assert_eq!(topology.distance(3, 77), 2);
    let peers: Vec<u32> = (0..6).map(|peer| topology.peer(0, Peer(peer))).collect();
    assert_eq!(peers, [1, 99, 2, 98, 3, 97]);
}

/// The channels on each link of each route.
fn all_channels(topology: &Topology) -> Vec<Vec<(u32, u8)>> {
    let (mut route, mut channels, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for source in 0..topology.nodes() {
        for target in 0..topology.nodes() {
            topology.route(source, target, &mut route);
            topology.channels(&route, &mut channels);
            assert_eq!(route.len(), channels.len());
            all.push(route.iter().copied().zip(channels.iter().copied()).collect());
        }
    }
    all
}

fn highest_channel(topology: &Topology) -> u8 {
    all_channels(topology).iter().flatten().map(|&(_, channel)| channel).max().unwrap_or(0)
}

/// Whether the graph of dependencies between channels has a cycle (Dally and Seitz, 1987): a packet
/// that holds one waits for the next one of its route.
fn waits_in_a_circle(topology: &Topology, change: impl Fn(u8) -> u8) -> bool {
    let mut after: BTreeMap<(u32, u8), BTreeSet<(u32, u8)>> = BTreeMap::new();
    for route in all_channels(topology) {
        let route: Vec<(u32, u8)> =
            route.into_iter().map(|(link, channel)| (link, change(channel))).collect();
        for pair in route.windows(2) {
            after.entry(pair[0]).or_default().insert(pair[1]);
            after.entry(pair[1]).or_default();
        }
    }
    // Without a cycle, removing channels for which nothing waits removes all.
    let mut before: BTreeMap<(u32, u8), usize> = after.keys().map(|&key| (key, 0)).collect();
    after.values().flatten().for_each(|next| *before.get_mut(next).unwrap() += 1);
    let mut ready: Vec<(u32, u8)> =
        before.iter().filter(|(_, count)| **count == 0).map(|(&key, _)| key).collect();
    let mut removed = 0;
    while let Some(key) = ready.pop() {
        removed += 1;
        for next in &after[&key] {
            let count = before.get_mut(next).unwrap();
            *count -= 1;
            if *count == 0 {
                ready.push(*next);
            }
        }
    }
    removed < after.len()
}

#[test]
fn one_channel_is_not_enough_on_a_torus_or_a_dragonfly() {
    for (kind, dims) in
        [(TopologyKind::Torus2d, vec![5, 5]), (TopologyKind::Dragonfly, vec![2, 3, 4])]
    {
        let topology = topology(kind, &dims, 1, 4);
        assert!(waits_in_a_circle(&topology, |_| 0) && !waits_in_a_circle(&topology, |one| one));
    }
}

#[test]
fn graph_routes_take_fewest_links_then_least_latency() {
    // 0 to 3 around the ring: three links, or two over 5, which is faster from there than from 1.
    let across = [(0, 5, 1), (5, 3, 1), (0, 1, 30), (1, 3, 1)];
    let config = TopologyConfig {
        kind: TopologyKind::Graph,
        dims: vec![6],
        graph: Some(Arc::new(graph(6, 0, &across, false).unwrap())),
        ..TopologyConfig::default()
    };
    let mut topology = made(config, 2, 10);
    assert_eq!(way(&topology, 0, 3), [6, 7]);
    // Without the fast way the next one is taken, and so on, until none is left.
    topology.set_up(7, false);
    assert_eq!(way(&topology, 0, 3), [0, 9]);
    topology.set_up(9, false);
    assert_eq!(way(&topology, 0, 3), [0, 1, 2]);
    topology.set_up(2, false);
    assert_eq!(way(&topology, 0, 3), [6, 7], "it waits there");
    topology.set_up(7, true);
    assert_eq!(way(&topology, 0, 3), [6, 7]);
}

#[test]
fn equal_ways_of_a_graph_are_all_used() {
    // Two nodes and eight switches between them.
    let links = (2..10).flat_map(|switch| {
        [(0, switch), (switch, 1), (1, switch), (switch, 0)].map(|(from, to)| link(from, to, 5))
    });
    let names = (0..10).map(|vertex| vertex.to_string()).collect();
    let network = NetworkGraph::new(2, names, links.collect()).unwrap();
    assert_eq!((network.diameter(), network.vertex("7")), (2, Some(7)));
    let config = TopologyConfig {
        kind: TopologyKind::Graph,
        dims: vec![2],
        graph: Some(Arc::new(network)),
        ..TopologyConfig::default()
    };
    let topology = made(config, 2, 10);
    assert_ne!(way(&topology, 0, 1)[0] / 4, way(&topology, 1, 0)[0] / 4);
    assert_eq!(way(&topology, 0, 1), way(&topology, 0, 1));
}

#[test]
fn networks_that_are_none_are_refused() {
    let one_way = NetworkGraph::new(2, vec!["a".into(), "b".into()], vec![link(0, 1, 1)]);
    let told = one_way.unwrap_err().to_string();
    assert!(told.starts_with("there is no way from b to a; add links"), "{told}");
    let none = NetworkGraph::new(1, vec!["a".into()], Vec::new()).unwrap_err().to_string();
    assert!(none.starts_with("1 nodes and 0 switches are out of range"), "{none}");
    let told = LatencyMatrix::new(&[vec![0, 1], vec![1, 0, 2]]).unwrap_err().to_string();
    assert!(told.starts_with("row 2 has 3 numbers, and there are 2 rows"), "{told}");
    assert!(LatencyMatrix::new(&[vec![0]]).is_err());
}

#[test]
fn a_leaf_avoids_a_failed_uplink() {
    let mut topology = topology(TopologyKind::LeafSpine, &[2, 3, 2], 4, 100);
    let links = way(&topology, 0, 5);
    assert_eq!((links.len(), topology.distance(0, 1), topology.nodes()), (4, 2, 6));
    topology.set_up(links[1], false);
    let around = way(&topology, 0, 5);
    assert!(around[1] != links[1] && around[2] != links[2], "{around:?}");
    topology.set_up(around[2], false);
    assert_eq!(way(&topology, 0, 5), links, "it waits there");
    topology.set_up(links[1], true);
    topology.set_up(around[2], true);
    assert_eq!(way(&topology, 0, 5), links);
}

#[test]
fn distances_of_measured_nodes_are_latencies() {
    let rows = [vec![0, 1000, 3100], vec![1000, 0, 2400], vec![2900, 2600, 0]];
    let matrix = LatencyMatrix::new(&rows).unwrap();
    assert_eq!((matrix.diameter(), matrix.distance(0, 1), matrix.distance(2, 1)), (3, 1, 3));
}
