//! Nodes of different kinds: what each node has, from the settings of all nodes and those of its
//! class.

use crate::config::{Config, NodeClass};
use crate::network::transfer_ns;

/// What a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSpec {
    /// Frames of local memory.
    pub frames: u32,
    /// Time from one access to the next, ns.
    pub access_ns: u64,
    /// Time for which a message occupies the node, ns.
    pub handler_ns: u64,
    /// Additional time for a message with a page, ns.
    pub page_handler_ns: u64,
    /// Frames of attached memory.
    pub tier_frames: u32,
    /// Time to bring a page from there, ns.
    pub tier_ns: u64,
}

/// What a disk does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// Time of one access, ns.
    pub service_ns: u64,
    /// Accesses at the same time.
    pub parallel: u32,
}

/// All nodes.
#[derive(Debug)]
pub struct Specs {
    /// Of the nodes without a class.
    most: NodeSpec,
    /// Of each class.
    specs: Vec<NodeSpec>,
    /// The class of each node, from 1; empty if there are no classes.
    class_of: Vec<u8>,
    /// Time of a page with its head on the fastest link into each node, ns; one for all where they
    /// do not differ.
    link_ns: Vec<u64>,
}

impl Specs {
    /// The nodes of a valid configuration.
    pub fn new(config: &Config) -> Self {
        let specs = config.node.class.iter().map(|class| spec(config, class));
        Specs {
            most: spec(config, &NodeClass::default()),
            specs: specs.collect(),
            class_of: class_of(config),
            link_ns: link_ns(config),
        }
    }

    /// The time in which `node` takes a page when nothing else waits there: on its link, and at its
    /// processor, ns. Peers know it as they know its frames.
    pub fn page_ns(&self, node: u32) -> u32 {
        let NodeSpec { handler_ns, page_handler_ns, .. } = *self.of(node);
        let link_ns = self.link_ns.get(node as usize).unwrap_or(&self.link_ns[0]);
        u32::try_from(link_ns + handler_ns + page_handler_ns).unwrap_or(u32::MAX)
    }

    /// What `node` has.
    #[inline]
    pub fn of(&self, node: u32) -> &NodeSpec {
        match self.class_of.get(node as usize) {
            None | Some(0) => &self.most,
            Some(&class) => &self.specs[usize::from(class) - 1],
        }
    }

    /// Whether all nodes are alike.
    pub fn alike(&self) -> bool {
        self.class_of.is_empty()
    }
}

impl Config {
    /// Frames of each node of a valid configuration.
    pub fn frames_by_node(&self) -> Vec<u32> {
        let specs = Specs::new(self);
        (0..self.nodes() as u32).map(|node| specs.of(node).frames).collect()
    }
}

fn spec(config: &Config, class: &NodeClass) -> NodeSpec {
    let (node, network) = (&config.node, &config.network);
    let rate = class.tier_bytes_per_s.unwrap_or(node.tier_bytes_per_s);
    let bytes_ns = if rate == 0 { 0 } else { transfer_ns(node.page_bytes, rate) };
    NodeSpec {
        frames: class.frames.unwrap_or(node.frames),
        access_ns: class.access_ns.unwrap_or(node.access_ns),
        handler_ns: class.handler_ns.unwrap_or(network.handler_ns),
        page_handler_ns: class.page_handler_ns.unwrap_or(network.page_handler_ns),
        tier_frames: class.tier_frames.unwrap_or(node.tier_frames),
        tier_ns: class.tier_access_ns.unwrap_or(node.tier_access_ns) + bytes_ns,
    }
}

fn link_ns(config: &Config) -> Vec<u64> {
    let bytes = config.node.page_bytes + config.network.message_bytes;
    let Some(graph) = config.topology.graph.as_deref() else {
        return vec![transfer_ns(bytes, config.network.bytes_per_s)];
    };
    let mut rates = vec![0; graph.nodes() as usize];
    for link in graph.links() {
        if let Some(rate) = rates.get_mut(link.to as usize) {
            *rate = link.bytes_per_s.max(*rate);
        }
    }
    rates.into_iter().map(|rate| transfer_ns(bytes, rate.max(1))).collect()
}

fn class_of(config: &Config) -> Vec<u8> {
    let nodes = config.nodes() as usize;
    let mut class_of = if config.node.class.is_empty() { Vec::new() } else { vec![0; nodes] };
    for (number, class) in (1..).zip(&config.node.class) {
        for node in ranges(&class.nodes).unwrap_or_default().into_iter().flatten() {
            class_of[node as usize] = number;
        }
    }
    class_of
}

/// The nodes that a text like `0-15, 32` means.
pub fn ranges(text: &str) -> Result<Vec<std::ops::RangeInclusive<u32>>, String> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let range = |part: &str| match part.split_once('-') {
        None => number(part).map(|one| one..=one),
        Some((first, last)) => Some(number(first)?..=number(last)?),
    };
    let of = |part: &str| {
        range(part).filter(|range| !range.is_empty()).ok_or_else(|| {
            format!("`{}` is not a node, and not nodes like 0-15; write 0-15, 32", part.trim())
        })
    };
    text.split(',').map(of).collect()
}

/// Where the disks are, if classes of nodes say so: the node of each disk, and what it does.
pub fn disks(config: &Config) -> Option<(Vec<u32>, Vec<DiskSpec>)> {
    if config.node.class.iter().all(|class| class.disk.is_none()) {
        return None;
    }
    let class_of = class_of(config);
    let with = (0..).zip(&class_of).filter_map(|(node, &class)| {
        let class = config.node.class.get(usize::from(class).wrapping_sub(1))?;
        (class.disk == Some(true)).then(|| (node, disk_spec(config, class)))
    });
    Some(with.unzip())
}

/// The disks of a class, or of all nodes.
pub fn disk_spec(config: &Config, class: &NodeClass) -> DiskSpec {
    let rate = class.disk_bytes_per_s.unwrap_or(config.disk.bytes_per_s);
    let access_ns = class.disk_access_ns.unwrap_or(config.disk.access_ns);
    DiskSpec {
        service_ns: access_ns + transfer_ns(config.node.page_bytes, rate),
        parallel: class.disk_parallel.unwrap_or(config.disk.parallel),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::topology::{GraphLink, NetworkGraph};

    #[test]
    fn nodes_are_named_by_numbers_and_ranges() {
        assert_eq!(ranges("0-2, 7"), Ok(vec![0..=2, 7..=7]));
        for wrong in ["", "a", "3-1", "1-", "1,,2"] {
            assert!(ranges(wrong).unwrap_err().contains("write 0-15, 32"), "{wrong}");
        }
    }

    #[test]
    fn a_class_overrides_what_it_names() {
        let mut config = Config::default();
        config.node.class = vec![
            NodeClass { nodes: "0-9".into(), frames: Some(7), ..NodeClass::default() },
            NodeClass {
                nodes: "5, 255".into(),
                access_ns: Some(3),
                disk: Some(true),
                disk_parallel: Some(4),
                ..NodeClass::default()
            },
        ];
        let specs = Specs::new(&config);
        let brief = |node| (specs.of(node).frames, specs.of(node).access_ns);
        assert_eq!([0, 5, 200, 255].map(brief), [(7, 1000), (64, 3), (64, 1000), (64, 3)]);
        let (at, disks) = disks(&config).unwrap();
        assert_eq!((at, disks[1].parallel), (vec![5, 255], 4));
        assert!(!specs.alike() && Specs::new(&Config::default()).alike());
    }

    #[test]
    fn speed_is_that_of_the_processor_and_the_link_of_a_node() {
        let mut config = Config::default();
        let class = NodeClass { page_handler_ns: Some(7_000), ..NodeClass::default() };
        config.node.class = vec![NodeClass { nodes: "3".into(), ..class }];
        let specs = Specs::new(&config);
        // 8256 bytes at 100 MB/s, and 5 us for any message.
        assert_eq!([2, 3].map(|node| specs.page_ns(node)), [337_560, 94_560]);
        let link = |from, to, bytes_per_s| GraphLink { from, to, bytes_per_s, latency_ns: 1 };
        let links = vec![
            link(0, 1, 50_000_000),
            link(1, 0, 50_000_000),
            link(1, 2, 200_000_000),
            link(2, 1, 200_000_000),
        ];
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        config.topology.graph = Some(Arc::new(NetworkGraph::new(3, names, links).unwrap()));
        config.node.class.clear();
        let specs = Specs::new(&config);
        let by_node = [0, 1, 2].map(|node| specs.page_ns(node) - 255_000);
        assert_eq!(by_node, [165_120, 41_280, 41_280], "of several links the fastest counts");
    }
}
