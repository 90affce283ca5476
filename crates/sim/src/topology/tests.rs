use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::config::TopologyConfig;

fn topology(kind: TopologyKind, dims: &[u32], radius: u32, most: u32) -> Topology {
    let config =
        Config { topology: TopologyConfig { kind, dims: dims.to_vec(), ..TopologyConfig::default() }, ..Config::default() };
    Topology::new(&config, radius, most)
}

fn any_topology() -> impl Strategy<Value = Topology> {
    let kinds = prop_oneof![
        (prop::collection::vec(1u32..8, 2), Just(TopologyKind::Torus2d)),
        (prop::collection::vec(1u32..6, 3), Just(TopologyKind::Torus3d)),
        (prop::collection::vec(1u32..6, 3), Just(TopologyKind::FatTree)),
        (prop::collection::vec(1u32..6, 3), Just(TopologyKind::Dragonfly)),
        (prop::collection::vec(2u32..40, 1), Just(TopologyKind::FullBisection)),
    ];
    (kinds, 1u32..7, prop_oneof![Just(3u32), Just(1000)])
        .prop_map(|((dims, kind), radius, most)| topology(kind, &dims, radius, most))
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
                prop_assert_eq!(links.len() as u32, topology.distance(source, target));
                prop_assert!(links.iter().all(|&link| link < topology.links()));
                prop_assert_eq!(links.iter().collect::<BTreeSet<_>>().len(), links.len());
            }
        }
    }

    #[test]
    fn peers_are_distinct_and_nearest_first(topology in any_topology()) {
        let hops = topology.peer_hops();
        prop_assert!(hops.windows(2).all(|pair| pair[0] <= pair[1]));
        for node in 0..topology.nodes() {
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
        let peers: BTreeSet<u32> = (0..topology.peer_hops().len() as u16).map(|peer| topology.peer(node, Peer(peer))).collect();
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
    assert_eq!(topology.peer_hops().len(), 40);
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
