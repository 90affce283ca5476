//! Leaf and spine: nodes at leaf switches, each of which has a link to every spine switch. With
//! fewer or slower uplinks than nodes a leaf is oversubscribed.

use std::collections::BTreeSet;

use super::levels::Blocks;
use super::mix;

/// Nodes at leaves.
#[derive(Debug)]
pub struct LeafSpine {
    blocks: Blocks,
    /// Nodes per leaf, leaves, spines.
    dims: [u32; 3],
    /// Links that have failed.
    failed: BTreeSet<u32>,
}

impl LeafSpine {
    /// `dims` is nodes per leaf, leaves, spines.
    pub fn new(dims: [u32; 3], radius: u32, most: usize) -> Self {
        let blocks = Blocks::new(&dims[..2], &[2, 4], radius, most);
        LeafSpine { blocks, dims, failed: BTreeSet::new() }
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Up and down of each node, then of each leaf and spine.
    pub(super) fn links(&self) -> u32 {
        let [_, leaves, spines] = self.dims;
        2 * self.blocks.nodes() + 2 * leaves * spines
    }

    /// A leaf or a spine, as in `leaf3` and `spine0`: numbers after those of the nodes.
    pub(super) fn switch(&self, name: &str) -> Option<u32> {
        let [_, leaves, spines] = self.dims;
        let number = |prefix: &str, count: u32| {
            let number = name.strip_prefix(prefix)?.parse::<u32>().ok()?;
            (number < count).then_some(number)
        };
        let spine = || number("spine", spines).map(|spine| leaves + spine);
        number("leaf", leaves).or_else(spine).map(|switch| self.blocks.nodes() + switch)
    }

    pub(super) fn link_between(&self, from: u32, to: u32) -> Option<u32> {
        let (nodes, [at_leaf, leaves, _]) = (self.blocks.nodes(), self.dims);
        let switch = |vertex: u32| vertex.checked_sub(nodes);
        match (switch(from), switch(to)) {
            (None, Some(leaf)) => (from / at_leaf == leaf).then_some(from),
            (Some(leaf), None) => (to / at_leaf == leaf).then_some(nodes + to),
            (Some(leaf), Some(spine)) if leaf < leaves && spine >= leaves => {
                Some(self.uplink(leaf, spine - leaves, false))
            }
            (Some(spine), Some(leaf)) if leaf < leaves && spine >= leaves => {
                Some(self.uplink(leaf, spine - leaves, true))
            }
            _ => None,
        }
    }

    /// Whether a link is one between a leaf and a spine.
    pub(super) fn is_uplink(&self, link: u32) -> bool {
        link >= 2 * self.blocks.nodes()
    }

    /// The link from a leaf to a spine, or back.
    pub(super) fn uplink(&self, leaf: u32, spine: u32, down: bool) -> u32 {
        let [_, leaves, spines] = self.dims;
        2 * self.blocks.nodes() + u32::from(down) * leaves * spines + leaf * spines + spine
    }

    /// A link fails, or works again.
    pub(super) fn set_up(&mut self, link: u32, is_up: bool) {
        if is_up {
            self.failed.remove(&link);
        } else {
            self.failed.insert(link);
        }
    }

    /// The spine of a pair of nodes: one that both leaves reach, if there is one.
    fn spine(&self, source: u32, target: u32) -> u32 {
        let [at_leaf, _, spines] = self.dims;
        let first = mix(source, target) % spines;
        if self.failed.is_empty() {
            return first;
        }
        let works = |spine: &u32| {
            !self.failed.contains(&self.uplink(source / at_leaf, *spine, false))
                && !self.failed.contains(&self.uplink(target / at_leaf, *spine, true))
        };
        (0..spines).map(|step| (first + step) % spines).find(works).unwrap_or(first)
    }

    #[inline]
    pub(super) fn next(&self, at: u32, source: u32, target: u32) -> Option<(u32, u32)> {
        if source == target {
            return None;
        }
        let (nodes, at_leaf) = (self.blocks.nodes(), self.dims[0]);
        let (from, to) = (source / at_leaf, target / at_leaf);
        let link = match (at, from == to) {
            (0, _) => source,
            (1, true) | (3, false) => nodes + target,
            (1, false) => self.uplink(from, self.spine(source, target), false),
            (2, false) => self.uplink(to, self.spine(source, target), true),
            _ => return None,
        };
        Some((link, at + 1))
    }
}
