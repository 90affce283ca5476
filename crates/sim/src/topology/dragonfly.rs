//! Dragonfly (Kim et al. 2008) with minimal routing: routers of a group are fully connected, and so
//! are groups.

use super::levels::Blocks;

/// Nodes at routers in groups.
#[derive(Debug)]
pub struct Dragonfly {
    blocks: Blocks,
    /// Nodes per router, routers per group, groups.
    dims: [u32; 3],
}

impl Dragonfly {
    /// `dims` is nodes per router, routers per group, groups.
    pub fn new(dims: [u32; 3], radius: u32, most: usize) -> Self {
        Dragonfly { blocks: Blocks::new(&dims, &[2, 3, 5], radius, most), dims }
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(super) fn links(&self) -> u32 {
        let [_, routers, groups] = self.dims;
        2 * self.blocks.nodes() + groups * routers * routers + groups * groups
    }

    /// Whether a link is one between groups.
    pub(super) fn joins_groups(&self, link: u32) -> bool {
        let [_, routers, groups] = self.dims;
        link >= 2 * self.blocks.nodes() + groups * routers * routers
    }

    /// The router of `group` that has the link to `other`.
    fn gateway(&self, group: u32, other: u32) -> u32 {
        let [_, routers, groups] = self.dims;
        (other + groups - group - 1) % groups % routers
    }

    /// All links of the route; 5 at most.
    fn way(&self, source: u32, target: u32) -> ([u32; 5], u32) {
        let [at_router, routers, groups] = self.dims;
        let nodes = self.blocks.nodes();
        let place = |node: u32| (node / at_router / routers, node / at_router % routers);
        let ((from_group, from), (to_group, to)) = (place(source), place(target));
        let local =
            |group: u32, a: u32, b: u32| 2 * nodes + group * routers * routers + a * routers + b;
        let (mut way, mut length) = ([0; 5], 0);
        let mut add = |link: u32| {
            way[length as usize] = link;
            length += 1;
        };
        add(source);
        if from_group != to_group {
            let (leave, enter) =
                (self.gateway(from_group, to_group), self.gateway(to_group, from_group));
            if from != leave {
                add(local(from_group, from, leave));
            }
            add(2 * nodes + groups * routers * routers + from_group * groups + to_group);
            if enter != to {
                add(local(to_group, enter, to));
            }
        } else if from != to {
            add(local(from_group, from, to));
        }
        add(nodes + target);
        (way, length)
    }

    #[inline]
    pub(super) fn next(&self, at: u32, source: u32, target: u32) -> Option<(u32, u32)> {
        if source == target {
            return None;
        }
        let (way, length) = self.way(source, target);
        (at < length).then(|| (way[at as usize], at + 1))
    }

    pub(super) fn distance(&self, a: u32, b: u32) -> u32 {
        if a == b { 0 } else { self.way(a, b).1 }
    }
}
