//! What a cluster is made of before anything happens: topology, nodes, disks, and what the placers of
//! its nodes share.

use std::collections::BTreeSet;
use std::sync::Arc;

use hiroma_policy::placement::{Neighbourhood, Peer, PeerKind, PlacementConfig, ScopeKind, Shared};

use crate::classes::{self, Specs};
use crate::config::Config;
use crate::disk::Disks;
use crate::script;
use crate::topology::Topology;

/// A cluster.
pub struct Site {
    pub topology: Topology,
    pub specs: Specs,
    pub disks: Disks,
    pub shared: SharedByNodes,
}

/// What the placers share: all of them, or one for each node where they differ.
#[derive(Debug)]
pub struct SharedByNodes(Vec<Arc<Shared>>);

impl SharedByNodes {
    /// Of one node.
    #[inline]
    pub fn of(&self, node: u32) -> &Arc<Shared> {
        self.0.get(node as usize).unwrap_or(&self.0[0])
    }
}

impl Site {
    /// The cluster of a valid configuration whose nodes place pages by `policy`.
    pub fn new(config: &Config, policy: &PlacementConfig, seed: u64) -> Self {
        let radius = match policy.scope {
            ScopeKind::Gradient => 1,
            ScopeKind::Domain => policy.domain_radius,
            ScopeKind::Disk => 0,
        };
        let topology = Topology::new(config, radius, policy.peers_max);
        let specs = Specs::new(config);
        let disks = disks(config, &topology, seed);
        let diameter = config.diameter().min(u64::from(u16::MAX)) as u16;
        let absent = script::joiners(config, &topology);
        let alike = topology.is_regular() && specs.alike() && absent.is_empty();
        let kinds = if alike { 1 } else { topology.nodes() };
        let of = |node: u32| (around(&topology, &specs, &absent, node), specs.of(node).frames);
        let (first_around, frames) = of(0);
        let first = Shared::new(policy.clone(), first_around, frames, diameter);
        let others = (1..kinds).map(of).map(|(around, frames)| first.for_others(around, frames));
        let others: Vec<_> = others.map(Arc::new).collect();
        let shared = SharedByNodes([Arc::new(first)].into_iter().chain(others).collect());
        Site { topology, specs, disks, shared }
    }
}

/// The nodes of a domain with what they are, nearest first.
pub fn domain(topology: &Topology, specs: &Specs, node: u32) -> Vec<(u32, PeerKind)> {
    let hops = (0..).zip(topology.peer_hops(node));
    let with_kind = hops.map(|(peer, hops)| {
        let other = topology.peer(node, Peer(peer));
        let (frames, page_ns) = (specs.of(other).frames, specs.page_ns(other));
        (other, PeerKind { hops, frames, page_ns })
    });
    with_kind.collect()
}

/// The domain of `node`, without nodes that are not there yet.
fn around(topology: &Topology, specs: &Specs, absent: &BTreeSet<u32>, node: u32) -> Neighbourhood {
    let mut domain = domain(topology, specs, node);
    domain.retain(|(other, _)| !absent.contains(other));
    let all = || domain.iter().map(|&(_, kind)| kind);
    Neighbourhood::new(
        all().map(|kind| kind.hops).collect(),
        all().map(|kind| kind.frames).collect(),
    )
    .with_speeds(all().map(|kind| kind.page_ns).collect())
}

fn disks(config: &Config, topology: &Topology, seed: u64) -> Disks {
    let differing = classes::disks(config);
    let (at, of_node) = match &differing {
        None => topology.disks(config.disk.count),
        Some((at, _)) => (at.clone(), topology.nearest_disks(at)),
    };
    let mut disks = Disks::new(&config.disk, config.node.page_bytes, at, of_node, seed);
    if let Some((_, specs)) = &differing {
        disks.differ(specs);
    }
    disks
}
