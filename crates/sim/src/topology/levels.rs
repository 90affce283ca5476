//! Networks in levels: blocks of nodes within larger blocks. A fat tree has as much bandwidth up as
//! down at each level; a single switch is a tree of one level.

use hiroma_policy::placement::Peer;

use super::mix;

/// Nodes in nested blocks, and the domain around each node: the nearest blocks first, in both
/// directions alike.
#[derive(Debug)]
pub struct Blocks {
    /// Nodes in a block of each level; the first is 1, the last the whole machine.
    sizes: Vec<u32>,
    /// Hops between two nodes whose smallest common block has each level.
    hops: Vec<u16>,
    /// Number of peers whose smallest common block has at most each level.
    reach: Vec<u32>,
}

/// 0, 1, -1, 2, -2, ... for 0, 1, 2, 3, 4, ..., modulo `size`.
fn unzigzag(index: u32, size: u32) -> u32 {
    if index % 2 == 1 { index / 2 + 1 } else { (size - index / 2) % size }
}

/// The inverse of [`unzigzag`].
fn zigzag(step: u32, size: u32) -> u32 {
    if step == 0 {
        0
    } else if step <= size / 2 {
        2 * step - 1
    } else {
        2 * (size - step)
    }
}

impl Blocks {
    /// `dims[l]` blocks of level `l` form one of level `l + 1`, whose nodes are `hops[l]` apart.
    /// Domains have a radius of `radius` hops and at most `most` peers.
    pub fn new(dims: &[u32], hops: &[u16], radius: u32, most: usize) -> Self {
        let mut sizes = vec![1];
        sizes.extend(dims.iter().scan(1, |size, dim| {
            *size *= dim;
            Some(*size)
        }));
        let levels = hops.iter().take_while(|&&hops| u32::from(hops) <= radius).count();
        let reach =
            (0..=dims.len()).map(|level| (sizes[level.min(levels)] - 1).min(most as u32)).collect();
        let mut all_hops = vec![0];
        all_hops.extend(hops);
        Blocks { sizes, hops: all_hops, reach }
    }

    pub(super) fn nodes(&self) -> u32 {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// Level of the smallest common block.
    #[inline]
    fn level(&self, a: u32, b: u32) -> usize {
        self.sizes.iter().position(|size| a / size == b / size).unwrap_or(self.sizes.len() - 1)
    }

    pub(super) fn hops(&self, a: u32, b: u32) -> u32 {
        self.hops[self.level(a, b)].into()
    }

    pub(super) fn peer_hops(&self) -> Box<[u16]> {
        let level_of = |place: u32| self.reach.iter().position(|&reach| place < reach).unwrap_or(0);
        (0..self.reach.last().copied().unwrap_or(0))
            .map(|place| self.hops[level_of(place)])
            .collect()
    }

    pub(super) fn peer(&self, node: u32, peer: Peer) -> u32 {
        let place = u32::from(peer.0);
        let level = self.reach.iter().position(|&reach| place < reach).unwrap_or(1);
        let (inner, outer) = (self.sizes[level - 1], self.sizes[level]);
        let (place, others) = (place - (inner - 1), outer / inner - 1);
        let (row, column) = (place / others, place % others);
        let block = (node % outer / inner + unzigzag(column + 1, others + 1)) % (others + 1);
        let within = (node % inner + unzigzag(row, inner)) % inner;
        node / outer * outer + block * inner + within
    }

    pub(super) fn peer_of(&self, node: u32, other: u32) -> Option<Peer> {
        let level = self.level(node, other);
        if level == 0 {
            return None;
        }
        let (inner, outer) = (self.sizes[level - 1], self.sizes[level]);
        let blocks = outer / inner;
        let step = (other % outer / inner + blocks - node % outer / inner) % blocks;
        let within = (other % inner + inner - node % inner) % inner;
        let place = inner - 1 + zigzag(within, inner) * (blocks - 1) + zigzag(step, blocks) - 1;
        (place < self.reach[level]).then_some(Peer(place as u16))
    }
}

/// Fat tree.
#[derive(Debug)]
pub struct Levels(Blocks);

impl Levels {
    /// `dims[l]` blocks of level `l` under a switch of level `l + 1`.
    pub fn new(dims: &[u32], radius: u32, most: usize) -> Self {
        let hops: Vec<u16> = (1..=dims.len()).map(|level| 2 * level as u16).collect();
        Levels(Blocks::new(dims, &hops, radius, most))
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.0
    }

    pub(super) fn links(&self) -> u32 {
        2 * self.0.nodes() * (self.0.sizes.len() as u32 - 1)
    }

    /// Up to the smallest common block and down again. A block of `s` nodes has `s` links up and
    /// `s` down, and each pair of nodes uses its own among them.
    #[inline]
    pub(super) fn next(&self, at: u32, source: u32, target: u32) -> Option<(u32, u32)> {
        let (nodes, top) = (self.0.nodes(), self.0.level(source, target) as u32);
        let link = |level: u32, node: u32, down: u32| {
            let size = self.0.sizes[level as usize];
            level * 2 * nodes + down * nodes + node / size * size + mix(source, target) % size
        };
        if at < top {
            Some((link(at, source, 0), at + 1))
        } else if at < 2 * top {
            Some((link(2 * top - 1 - at, target, 1), at + 1))
        } else {
            None
        }
    }
}
