//! Sends pages through a network and does nothing else: no policies, no memory. Serves to compare
//! the network with other simulators.

use crate::config::Config;
use crate::error::RunError;
use crate::network::{Done, Fabric, Network, Signals};
use crate::queue::Queue;
use crate::topology::Topology;

/// One page to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// When it is sent, ns.
    pub start_ns: u64,
    /// The sending node.
    pub source: u32,
    /// The receiving node.
    pub target: u32,
}

/// The result of the transfers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transferred {
    /// When all of each page had arrived, in the order of the transfers, ns.
    pub there_ns: Vec<u64>,
    /// Bytes between neighbours: (from, to, bytes), ordered by node; only for a torus.
    pub neighbour_bytes: Vec<(u32, u32, u64)>,
    /// Hops of all pages together.
    pub hops: u64,
}

/// Sends `transfers` (all nodes have to be below the machine's number of nodes) over the links of
/// `config`.
pub fn transfer_all(config: &Config, transfers: &[Transfer]) -> Result<Transferred, RunError> {
    config.validate().map_err(RunError::Config)?;
    let topology = Topology::new(config, 1, 1);
    if let Some(fabric) = Fabric::new(config, &topology, config.node.page_bytes, true) {
        return Ok(transfer_by_fabric(*fabric, &topology, transfers));
    }
    let mut network = Network::new(&config.network, topology.links(), config.node.page_bytes, true);
    let mut queue = Queue::default();
    let mut at: Vec<u32> =
        transfers.iter().map(|transfer| topology.start(transfer.source)).collect();
    let mut result = Transferred { there_ns: vec![0; transfers.len()], ..Transferred::default() };
    let mut ends = vec![None; topology.links() as usize];
    for (number, transfer) in transfers.iter().enumerate() {
        queue.push(transfer.start_ns, number as u64);
    }
    while let Some((now_ns, number)) = queue.pop() {
        let number = number as usize;
        let Transfer { source, target, .. } = transfers[number];
        match topology.next(at[number], source, target) {
            Some((link, next)) => {
                ends[link as usize] = Some((at[number], next));
                at[number] = next;
                result.hops += 1;
                queue.push(network.send(now_ns, link, true).on_ns, number as u64);
            }
            None => result.there_ns[number] = now_ns + network.tail_ns(true),
        }
    }
    result.neighbour_bytes = neighbour_bytes(&topology, &ends, network.bytes());
    Ok(result)
}

fn neighbour_bytes(
    topology: &Topology,
    ends: &[Option<(u32, u32)>],
    bytes: &[u64],
) -> Vec<(u32, u32, u64)> {
    if !matches!(topology, Topology::Torus(_)) {
        return Vec::new();
    }
    let by_link = ends
        .iter()
        .zip(bytes)
        .filter_map(|(ends, &bytes)| ends.map(|(from, to)| (from, to, bytes)));
    let mut by_link: Vec<(u32, u32, u64)> = by_link.collect();
    by_link.sort_unstable();
    by_link
}

/// The same over a network that has events of its own.
fn transfer_by_fabric(
    mut fabric: Fabric,
    topology: &Topology,
    transfers: &[Transfer],
) -> Transferred {
    /// Payloads from here on are the network's own; below are transfers that start.
    const FABRIC: u64 = 1 << 32;
    let (mut queue, mut signals, mut route) = (Queue::default(), Signals::default(), Vec::new());
    let mut result = Transferred { there_ns: vec![0; transfers.len()], ..Transferred::default() };
    let mut ends = vec![None; topology.links() as usize];
    for (number, transfer) in transfers.iter().enumerate() {
        queue.push(transfer.start_ns, number as u64);
    }
    while let Some((now_ns, payload)) = queue.pop() {
        if payload >= FABRIC {
            fabric.event(now_ns, payload as u32, &mut signals);
        } else {
            let Transfer { source, target, .. } = transfers[payload as usize];
            topology.route(source, target, &mut route);
            result.hops += route.len() as u64;
            let mut at = topology.start(source);
            while let Some((link, next)) = topology.next(at, source, target) {
                ends[link as usize] = Some((at, next));
                at = next;
            }
            if route.is_empty() {
                result.there_ns[payload as usize] = now_ns;
            } else {
                fabric.send(now_ns, payload as u32, 1, &route, topology, &mut signals);
            }
        }
        for (time_ns, what) in signals.wakes.drain(..) {
            queue.push(time_ns, FABRIC | u64::from(what));
        }
        for done in signals.done.drain(..) {
            if let Done::Arrived(number) = done {
                result.there_ns[number as usize] = now_ns;
            }
        }
    }
    result.neighbour_bytes = neighbour_bytes(topology, &ends, fabric.bytes());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_time_includes_hops_and_queueing() {
        let mut config = Config::default();
        config.network = crate::NetworkConfig {
            bytes_per_s: 1_000_000_000,
            latency_ns: 10,
            hop_overhead_ns: 5,
            page_overhead_ns: 0,
            message_bytes: 8,
            ..config.network
        };
        config.node.page_bytes = 992;
        // 1,000 bytes take 1,000 ns; with overhead and latency a hop takes 1,015 ns. 0 to 2 is two
        // hops; the second page waits for the first.
        let transfers = [0, 0].map(|start_ns| Transfer { start_ns, source: 0, target: 2 });
        let result = transfer_all(&config, &transfers).unwrap();
        assert_eq!(result.there_ns, [2030, 2030 + 1005]);
        assert_eq!((result.hops, result.neighbour_bytes), (4, vec![(0, 1, 2000), (1, 2, 2000)]));
    }
}
