//! What a cluster is made of before anything happens: topology, nodes, disks, and what the placers of
//! its nodes share.

use std::sync::Arc;

use hiroma_policy::placement::{Neighbourhood, Peer, PlacementConfig, ScopeKind, Shared};

use crate::classes::{self, Specs};
use crate::config::Config;
use crate::disk::Disks;
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
        let alike = topology.is_regular() && specs.alike();
        let kinds = if alike { 1 } else { topology.nodes() };
        let of = |node: u32| (around(&topology, &specs, node), specs.of(node).frames);
        let (first_around, frames) = of(0);
        let first = Shared::new(policy.clone(), first_around, frames, diameter);
        let others = (1..kinds).map(of).map(|(around, frames)| first.for_others(around, frames));
        let others: Vec<_> = others.map(Arc::new).collect();
        let shared = SharedByNodes([Arc::new(first)].into_iter().chain(others).collect());
        Site { topology, specs, disks, shared }
    }
}

/// The domain of `node`.
fn around(topology: &Topology, specs: &Specs, node: u32) -> Neighbourhood {
    let hops = topology.peer_hops(node);
    let peers = || (0..hops.len() as u16).map(|peer| topology.peer(node, Peer(peer)));
    let capacities = peers().map(|peer| specs.of(peer).frames).collect();
    let speeds = peers().map(|peer| specs.page_ns(peer)).collect();
    Neighbourhood::new(hops, capacities).with_speeds(speeds)
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
