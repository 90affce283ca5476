//! What a run takes of the machine's memory, before it runs.

use hiroma_policy::placement::ScopeKind;

use crate::config::{Config, NetworkModel};
use crate::topology::Topology;
use crate::{RunError, engine, members};

/// Memory that a run takes at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Before anything runs.
    pub idle_bytes: u64,
    /// At once, for the largest table of pages that a thread can get.
    pub table_bytes: u64,
}

/// Memory that a run of `config` takes at least.
pub fn need(config: &Config) -> Need {
    /// Nodes, links and topology: the least of those measured with [`bytes_per_idle_node`].
    const IDLE_NODE_BYTES: u64 = 266;
    /// Links of the largest kind of a node, with four channels for packets each.
    const CHANNELS_BYTES: u64 = 1200;
    let packets = config.network.model == NetworkModel::Packets;
    let mut node_bytes = IDLE_NODE_BYTES + if packets { CHANNELS_BYTES } else { 0 };
    if config.confirms() {
        node_bytes += members::node_bytes(peers(config));
    }
    Need {
        idle_bytes: config.nodes().saturating_mul(node_bytes),
        table_bytes: engine::table_bytes(config.load.virtual_pages_max),
    }
}

/// Memory of the idle machine of a configuration, bytes per node.
pub fn bytes_per_idle_node(config: &Config) -> Result<u64, RunError> {
    config.validate().map_err(RunError::Config)?;
    let engine = engine::Engine::new(config, 0);
    Ok(engine.heap_bytes() as u64 / config.nodes())
}

/// Peers of a node; those of the first one stand for all.
fn peers(config: &Config) -> u64 {
    if config.validate().is_err() {
        return 0;
    }
    let radius = match config.policy.scope {
        ScopeKind::Gradient => 1,
        ScopeKind::Domain => config.policy.domain_radius,
        ScopeKind::Disk => 0,
    };
    Topology::new(config, radius, config.policy.peers_max).peer_hops(0).len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_need_more_than_nodes_without_faults() {
        let mut config = Config::default();
        let per_node = |config: &Config| need(config).idle_bytes / config.nodes();
        assert!(per_node(&config) < 1000);
        config.policy.confirm = true;
        let with_peers = per_node(&config);
        config.policy.scope = ScopeKind::Disk;
        let without = per_node(&config);
        // A domain of four hops has 40 peers.
        assert!(without > 800 && with_peers > without + 40 * 20, "{without} {with_peers}");
    }
}
