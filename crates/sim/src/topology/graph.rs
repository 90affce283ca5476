//! Any network: nodes and switches, and links between them with a rate and a latency each.
//!
//! A route has the fewest links; of several with as few, the one with the least latency; of those,
//! one that depends on both ends, so that routes spread over equal ways. While links have failed,
//! messages that are sent then take the shortest way without them; where there is none, or one that
//! is too long for the virtual channels, they wait at the failed link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hiroma_policy::placement::Peer;
use serde::Serialize;

use super::around::Around;
use super::mix;

/// Largest number of nodes and switches.
pub const VERTICES_MAX: u32 = 4096;
/// Longest route with finite buffers: each hop has a virtual channel of its own.
pub const CHANNELS_MAX: u32 = 64;
/// No way.
const NO_WAY: u64 = u64::MAX;
/// Distances: hops, then latency in the lower bits.
const HOP: u64 = 1 << 48;

/// A link in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct GraphLink {
    /// Where it begins: the number of a node, or of a switch after all nodes.
    pub from: u32,
    /// Where it ends.
    pub to: u32,
    /// Bandwidth, bytes/s.
    pub bytes_per_s: u64,
    /// Propagation time, ns.
    pub latency_ns: u64,
}

/// A network of nodes and switches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NetworkGraph {
    /// Number of nodes: the first of `names`.
    nodes: u32,
    names: Vec<String>,
    links: Vec<GraphLink>,
    /// Links on the longest route between two nodes.
    diameter: u32,
}

/// Why links do not make a network.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphProblem {
    /// There are too few nodes, or too many of all.
    #[error(
        "{nodes} nodes and {switches} switches are out of range; allowed are 2 nodes and more, and {VERTICES_MAX} of both together"
    )]
    Size {
        /// Number of nodes.
        nodes: u32,
        /// Number of switches.
        switches: u32,
    },
    /// A node cannot reach another one.
    #[error("there is no way from {from} to {to}; add links, or take one of the two out")]
    NoWay {
        /// The one.
        from: String,
        /// The other.
        to: String,
    },
}

impl NetworkGraph {
    /// A network whose first `nodes` names are nodes, and the others switches. The ends of links
    /// have to be below the number of names.
    ///
    /// # Errors
    /// If a node cannot reach another one, or there are too few nodes or too many vertices.
    pub fn new(
        nodes: u32,
        names: Vec<String>,
        links: Vec<GraphLink>,
    ) -> Result<NetworkGraph, GraphProblem> {
        let vertices = names.len() as u32;
        if nodes < 2 || vertices < nodes || vertices > VERTICES_MAX {
            return Err(GraphProblem::Size { nodes, switches: vertices.saturating_sub(nodes) });
        }
        let mut graph = NetworkGraph { nodes, names, links, diameter: 0 };
        let up = vec![true; graph.links.len()];
        let ways = Ways::new(&graph, &up);
        for target in 0..nodes {
            for source in 0..nodes {
                let way = ways.get(source, target);
                if way == NO_WAY {
                    let name = |vertex: u32| graph.names[vertex as usize].clone();
                    return Err(GraphProblem::NoWay { from: name(source), to: name(target) });
                }
                graph.diameter = graph.diameter.max((way / HOP) as u32);
            }
        }
        Ok(graph)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Links on the longest route between two nodes.
    pub fn diameter(&self) -> u32 {
        self.diameter
    }

    /// Links, one per direction.
    pub fn links(&self) -> &[GraphLink] {
        &self.links
    }

    /// The node or switch of this name.
    pub fn vertex(&self, name: &str) -> Option<u32> {
        self.names.iter().position(|other| other == name).map(|vertex| vertex as u32)
    }
}

/// The shortest way from every vertex to every node.
#[derive(Debug)]
struct Ways {
    vertices: usize,
    lengths: Vec<u64>,
}

impl Ways {
    fn new(graph: &NetworkGraph, up: &[bool]) -> Ways {
        let vertices = graph.names.len();
        let mut into = vec![Vec::new(); vertices];
        for (link, _) in graph.links.iter().zip(up).filter(|(_, up)| **up) {
            into[link.to as usize].push((link.from, HOP + link.latency_ns));
        }
        let mut lengths = vec![NO_WAY; vertices * graph.nodes as usize];
        let mut next = BinaryHeap::new();
        for target in 0..graph.nodes {
            let lengths = &mut lengths[target as usize * vertices..][..vertices];
            lengths[target as usize] = 0;
            next.push(Reverse((0, target)));
            while let Some(Reverse((length, vertex))) = next.pop() {
                if lengths[vertex as usize] < length {
                    continue;
                }
                for &(from, hop) in &into[vertex as usize] {
                    if length + hop < lengths[from as usize] {
                        lengths[from as usize] = length + hop;
                        next.push(Reverse((length + hop, from)));
                    }
                }
            }
        }
        Ways { vertices, lengths }
    }

    #[inline]
    fn get(&self, from: u32, target: u32) -> u64 {
        self.lengths[target as usize * self.vertices + from as usize]
    }
}

/// A network with its routes and domains.
#[derive(Debug)]
pub struct Graph {
    network: Arc<NetworkGraph>,
    around: Around,
    /// Links that begin at each vertex.
    out: Vec<Vec<u32>>,
    ways: Ways,
    /// While links have failed: which work, and the ways without the others.
    detours: Option<(Vec<bool>, Ways)>,
}

impl Graph {
    /// Routes, and domains of `radius` hops and at most `most` peers.
    pub fn new(network: Arc<NetworkGraph>, radius: u32, most: usize) -> Self {
        let mut out = vec![Vec::new(); network.names.len()];
        for (number, link) in (0..).zip(&network.links) {
            out[link.from as usize].push(number);
        }
        let ways = Ways::new(&network, &vec![true; network.links.len()]);
        let hops = |a, b| (ways.get(a, b).min(ways.get(b, a)) / HOP) as u32;
        let around = Around::new(network.nodes, radius, most, hops);
        Graph { network, around, out, ways, detours: None }
    }

    pub(super) fn network(&self) -> &NetworkGraph {
        &self.network
    }

    pub(super) fn around(&self) -> &Around {
        &self.around
    }

    pub(super) fn distance(&self, a: u32, b: u32) -> u32 {
        (self.ways.get(a, b) / HOP) as u32
    }

    pub(super) fn channels(&self) -> u8 {
        self.network.diameter.clamp(1, CHANNELS_MAX) as u8
    }

    /// A link fails, or works again.
    pub(super) fn set_up(&mut self, link: u32, is_up: bool) {
        let all = || vec![true; self.network.links.len()];
        let mut up = self.detours.take().map_or_else(all, |(up, _)| up);
        up[link as usize] = is_up;
        if up.contains(&false) {
            let ways = Ways::new(&self.network, &up);
            self.detours = Some((up, ways));
        }
    }

    #[inline]
    pub(super) fn next(&self, at: u32, source: u32, target: u32) -> Option<(u32, u32)> {
        if at == target {
            return None;
        }
        let longest = u64::from(self.network.diameter.max(CHANNELS_MAX)) * HOP + (HOP - 1);
        let detours = self.detours.as_ref().filter(|(_, ways)| ways.get(source, target) <= longest);
        let (ways, up) =
            detours.map_or((&self.ways, None), |(up, ways)| (ways, Some(up.as_slice())));
        let length = ways.get(at, target);
        let leads_there = |&&number: &&u32| {
            let link = &self.network.links[number as usize];
            let rest = ways.get(link.to, target);
            up.is_none_or(|up| up[number as usize])
                && rest != NO_WAY
                && rest + HOP + link.latency_ns == length
        };
        let ways_on = || self.out[at as usize].iter().filter(leads_there);
        let count = ways_on().count().max(1);
        let number = *ways_on().nth(mix(source, target) as usize % count)?;
        Some((number, self.network.links[number as usize].to))
    }

    pub(super) fn peer_of(&self, node: u32, other: u32) -> Option<Peer> {
        self.around.peer_of(node, other)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.around.heap_bytes()
            + self.ways.lengths.capacity() * 8
            + self.network.links.len() * (size_of::<GraphLink>() + 4)
    }
}
