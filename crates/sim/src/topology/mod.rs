//! Shapes of networks: which nodes are near each other, and which links a message takes.

mod around;
mod dragonfly;
mod graph;
mod leaf_spine;
mod levels;
mod matrix;
mod torus;

use hiroma_policy::placement::Peer;

use crate::config::{Config, NetworkConfig, TopologyKind};
use crate::network::LinkSpec;
use dragonfly::Dragonfly;
use graph::Graph;
pub use graph::{CHANNELS_MAX, GraphLink, GraphProblem, NetworkGraph};
use leaf_spine::LeafSpine;
use levels::Levels;
use matrix::Matrix;
pub use matrix::{LatencyMatrix, MatrixProblem};
use torus::Torus;

/// Maximum number of links on which a node forwards a message for a whole domain.
pub const FANOUT_MAX: usize = 6;

/// A network of nodes and links, and the domain around each node.
#[derive(Debug)]
pub enum Topology {
    /// 2-D or 3-D torus.
    Torus(Torus),
    /// Fat tree, and one switch.
    Levels(Levels),
    /// Dragonfly.
    Dragonfly(Dragonfly),
    /// Leaf and spine.
    LeafSpine(LeafSpine),
    /// Any network.
    Graph(Graph),
    /// Known latencies.
    Matrix(Matrix),
}

impl Topology {
    /// The network of a valid configuration, with domains of at most `radius` hops and `peers_max`
    /// peers.
    pub fn new(config: &Config, radius: u32, peers_max: u32) -> Self {
        let (dims, most) = (&config.topology.dims, peers_max as usize);
        match config.topology.kind {
            TopologyKind::Torus2d => {
                Topology::Torus(Torus::new([dims[0], dims[1], 1], 2, radius, most))
            }
            TopologyKind::Torus3d => {
                Topology::Torus(Torus::new([dims[0], dims[1], dims[2]], 3, radius, most))
            }
            TopologyKind::FatTree => Topology::Levels(Levels::new(&dims[..], radius, most)),
            TopologyKind::FullBisection => Topology::Levels(Levels::new(&dims[..1], radius, most)),
            TopologyKind::Dragonfly => {
                Topology::Dragonfly(Dragonfly::new([dims[0], dims[1], dims[2]], radius, most))
            }
            TopologyKind::LeafSpine => {
                Topology::LeafSpine(LeafSpine::new([dims[0], dims[1], dims[2]], radius, most))
            }
            TopologyKind::Graph => {
                let graph = config.topology.graph.clone().expect("a valid configuration has it");
                Topology::Graph(Graph::new(graph, radius, most))
            }
            TopologyKind::Matrix => {
                let matrix = config.topology.latencies.clone().expect("as above");
                Topology::Matrix(Matrix::new(matrix, radius, most))
            }
        }
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        match self {
            Topology::Torus(torus) => torus.nodes(),
            Topology::Levels(levels) => levels.blocks().nodes(),
            Topology::Dragonfly(dragonfly) => dragonfly.blocks().nodes(),
            Topology::LeafSpine(leaves) => leaves.blocks().nodes(),
            Topology::Graph(graph) => graph.network().nodes(),
            Topology::Matrix(matrix) => matrix.latencies().nodes(),
        }
    }

    /// Number of links, one per direction.
    pub fn links(&self) -> u32 {
        match self {
            Topology::Torus(torus) => torus.links(),
            Topology::Levels(levels) => levels.links(),
            Topology::Dragonfly(dragonfly) => dragonfly.links(),
            Topology::LeafSpine(leaves) => leaves.links(),
            Topology::Graph(graph) => graph.network().links().len() as u32,
            Topology::Matrix(matrix) => matrix.links(),
        }
    }

    /// Where a message from `source` starts: the first argument of [`next`](Topology::next).
    #[inline]
    pub fn start(&self, source: u32) -> u32 {
        if matches!(self, Topology::Torus(_) | Topology::Graph(_)) { source } else { 0 }
    }

    /// The next link of a message, and its position after that; none if it has arrived. All
    /// messages between two nodes take the same route.
    #[inline]
    pub fn next(&self, at: u32, source: u32, target: u32) -> Option<(u32, u32)> {
        match self {
            Topology::Torus(torus) => torus.next(at, source, target),
            Topology::Levels(levels) => levels.next(at, source, target),
            Topology::Dragonfly(dragonfly) => dragonfly.next(at, source, target),
            Topology::LeafSpine(leaves) => leaves.next(at, source, target),
            Topology::Graph(graph) => graph.next(at, source, target),
            Topology::Matrix(matrix) => matrix.next(at, source, target),
        }
    }

    /// The links between two nodes, in order.
    pub fn route(&self, source: u32, target: u32, links: &mut Vec<u32>) {
        links.clear();
        let mut at = self.start(source);
        while let Some((link, next)) = self.next(at, source, target) {
            links.push(link);
            at = next;
        }
    }

    /// Virtual channels that each link needs for [`channels`](Topology::channels).
    pub fn virtual_channels(&self) -> u8 {
        match self {
            Topology::Torus(_) | Topology::Dragonfly(_) => 2,
            Topology::Levels(_) | Topology::LeafSpine(_) | Topology::Matrix(_) => 1,
            Topology::Graph(graph) => graph.channels(),
        }
    }

    /// The virtual channel that a packet takes on each link of a route. No circle of channels can
    /// wait for each other: in every dimension of a torus a packet changes to the second one at the
    /// end of the row (dateline), in a dragonfly after the link between groups, in a tree all routes
    /// go up and then down, and in any other network each hop has a channel of its own.
    pub fn channels(&self, route: &[u32], channels: &mut Vec<u8>) {
        channels.clear();
        match self {
            Topology::Torus(torus) => torus.channels(route, channels),
            Topology::Levels(_) | Topology::LeafSpine(_) | Topology::Matrix(_) => {
                channels.resize(route.len(), 0)
            }
            Topology::Graph(graph) => {
                let last = graph.channels() - 1;
                channels.extend((0..route.len()).map(|hop| hop.min(last.into()) as u8));
            }
            Topology::Dragonfly(dragonfly) => {
                let mut passed = false;
                for &link in route {
                    channels.push(passed.into());
                    passed |= dragonfly.joins_groups(link);
                }
            }
        }
    }

    /// Whether all links have the same rate and latency.
    pub fn is_uniform(&self) -> bool {
        !matches!(self, Topology::Graph(_) | Topology::Matrix(_) | Topology::LeafSpine(_))
    }

    /// Rate and latency of every link.
    pub fn link_specs(&self, config: &Config) -> Vec<LinkSpec> {
        /// What is between measured nodes is not shared.
        const UNLIMITED: u64 = 1 << 60;
        let NetworkConfig { bytes_per_s, latency_ns, .. } = config.network;
        let spec = LinkSpec { bytes_per_s, latency_ns };
        let uplink = match config.topology.uplink_bytes_per_s {
            0 => spec,
            bytes_per_s => LinkSpec { bytes_per_s, latency_ns },
        };
        let of_link = |link: u32| match self {
            Topology::Graph(graph) => {
                let link = &graph.network().links()[link as usize];
                LinkSpec { bytes_per_s: link.bytes_per_s, latency_ns: link.latency_ns }
            }
            Topology::Matrix(matrix) => match matrix.latency_ns(link) {
                Some(latency_ns) => LinkSpec { bytes_per_s: UNLIMITED, latency_ns },
                None => LinkSpec { bytes_per_s, latency_ns: 0 },
            },
            Topology::LeafSpine(leaves) if leaves.is_uplink(link) => uplink,
            _ => spec,
        };
        (0..self.links()).map(of_link).collect()
    }

    /// The node or switch of this name; nodes are named by their numbers, too.
    pub fn vertex(&self, name: &str) -> Option<u32> {
        let number = || name.parse().ok().filter(|&node| node < self.nodes());
        match self {
            Topology::Graph(graph) => graph.network().vertex(name).or_else(number),
            Topology::LeafSpine(leaves) => leaves.switch(name).or_else(number),
            _ => number(),
        }
    }

    /// Whether links can be named by their ends; others have numbers only.
    pub fn names_links(&self) -> bool {
        matches!(self, Topology::Torus(_) | Topology::Graph(_) | Topology::LeafSpine(_))
    }

    /// The links from one to the other ([`vertex`](Topology::vertex)).
    pub fn links_between(&self, from: u32, to: u32) -> Vec<u32> {
        match self {
            Topology::Torus(torus) => torus.links_between(from, to),
            Topology::Graph(graph) => {
                let links = (0..).zip(graph.network().links());
                let joins = |link: &GraphLink| link.from == from && link.to == to;
                links.filter(|(_, link)| joins(link)).map(|(number, _)| number).collect()
            }
            Topology::LeafSpine(leaves) => leaves.link_between(from, to).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// A link fails, or works again: where there are other ways, messages take those meanwhile.
    pub fn set_up(&mut self, link: u32, is_up: bool) {
        match self {
            Topology::Graph(graph) => graph.set_up(link, is_up),
            Topology::LeafSpine(leaves) => leaves.set_up(link, is_up),
            _ => (),
        }
    }

    /// Number of links between two nodes.
    pub fn distance(&self, a: u32, b: u32) -> u32 {
        match self {
            Topology::Torus(torus) => torus.distance(a, b),
            Topology::Levels(levels) => levels.blocks().hops(a, b),
            Topology::Dragonfly(dragonfly) => dragonfly.distance(a, b),
            Topology::LeafSpine(leaves) => leaves.blocks().hops(a, b),
            Topology::Graph(graph) => graph.distance(a, b),
            Topology::Matrix(matrix) => matrix.latencies().distance(a, b),
        }
    }

    /// Whether the domains of all nodes are alike.
    pub fn is_regular(&self) -> bool {
        !matches!(self, Topology::Graph(_) | Topology::Matrix(_))
    }

    /// Hops to each peer of `node`, nearest first.
    pub fn peer_hops(&self, node: u32) -> Box<[u16]> {
        match self {
            Topology::Torus(torus) => torus.peer_hops(),
            Topology::Levels(levels) => levels.blocks().peer_hops(),
            Topology::Dragonfly(dragonfly) => dragonfly.blocks().peer_hops(),
            Topology::LeafSpine(leaves) => leaves.blocks().peer_hops(),
            Topology::Graph(graph) => graph.around().peer_hops(node),
            Topology::Matrix(matrix) => matrix.around().peer_hops(node),
        }
    }

    /// The node that is peer `peer` of `node`.
    #[inline]
    pub fn peer(&self, node: u32, peer: Peer) -> u32 {
        match self {
            Topology::Torus(torus) => torus.peer(node, peer),
            Topology::Levels(levels) => levels.blocks().peer(node, peer),
            Topology::Dragonfly(dragonfly) => dragonfly.blocks().peer(node, peer),
            Topology::LeafSpine(leaves) => leaves.blocks().peer(node, peer),
            Topology::Graph(graph) => graph.around().peer(node, peer),
            Topology::Matrix(matrix) => matrix.around().peer(node, peer),
        }
    }

    /// The peer of `node` that is node `other`; none outside its domain.
    #[inline]
    pub fn peer_of(&self, node: u32, other: u32) -> Option<Peer> {
        match self {
            Topology::Torus(torus) => torus.peer_of(node, other),
            Topology::Levels(levels) => levels.blocks().peer_of(node, other),
            Topology::Dragonfly(dragonfly) => dragonfly.blocks().peer_of(node, other),
            Topology::LeafSpine(leaves) => leaves.blocks().peer_of(node, other),
            Topology::Graph(graph) => graph.peer_of(node, other),
            Topology::Matrix(matrix) => matrix.around().peer_of(node, other),
        }
    }

    /// Where a message of `source` for its whole domain is forwarded from `at`: (link, node) pairs,
    /// and their number; none if there is no tree.
    #[inline]
    pub fn spread(&self, source: u32, at: u32) -> Option<([(u32, u32); FANOUT_MAX], usize)> {
        match self {
            Topology::Torus(torus) => Some(torus.spread(source, at)),
            _ => None,
        }
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Topology::Torus(torus) => torus.heap_bytes(),
            Topology::Graph(graph) => graph.heap_bytes(),
            Topology::Matrix(matrix) => matrix.around().heap_bytes(),
            Topology::Levels(_) | Topology::Dragonfly(_) | Topology::LeafSpine(_) => 0,
        }
    }

    /// The disk that each node uses, of disks at the nodes `at`: the nearest.
    pub fn nearest_disks(&self, at: &[u32]) -> Vec<u32> {
        let nearest = |node: u32| {
            let disks = (0..).zip(at).map(|(disk, &there)| (self.distance(node, there), disk));
            disks.min().map_or(0, |(_, disk)| disk)
        };
        (0..self.nodes()).map(nearest).collect()
    }

    /// For each of `disks` disks the node to which it is attached, and for each node its disk.
    pub fn disks(&self, disks: u32) -> (Vec<u32>, Vec<u32>) {
        let nodes = self.nodes();
        if let Topology::Torus(torus) = self {
            if let Some(placed) = torus.disks(disks) {
                return placed;
            }
        }
        let of_node: Vec<u32> = (0..nodes)
            .map(|node| (u64::from(node) * u64::from(disks) / u64::from(nodes)) as u32)
            .collect();
        let first =
            |disk: u32| (u64::from(disk) * u64::from(nodes)).div_ceil(u64::from(disks)) as u32;
        (
            (0..disks).map(|disk| first(disk) + (first(disk + 1) - first(disk)) / 2).collect(),
            of_node,
        )
    }
}

/// 32 bits that depend on both ends, to spread messages over equal routes.
fn mix(source: u32, target: u32) -> u32 {
    let both = (u64::from(source) << 32 | u64::from(target)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((both ^ both >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

#[cfg(test)]
mod tests;
