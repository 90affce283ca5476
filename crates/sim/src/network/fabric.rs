//! What networks have in common whose times depend on later messages: a message with its route goes
//! in; wake-ups, and the news that messages were sent and have arrived, come out.

use std::collections::VecDeque;

use super::fair::Fair;
use super::packets::{Cut, Packets};
use crate::config::{Config, NetworkConfig, NetworkModel, PacketOrder, Switching};
use crate::script;
use crate::topology::Topology;

/// Rate and latency of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkSpec {
    /// Bandwidth in this direction, bytes/s.
    pub bytes_per_s: u64,
    /// Propagation time, ns.
    pub latency_ns: u64,
}

/// A message as the network sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cargo {
    /// Its number, for [`Done`].
    pub message: u32,
    /// Its size, bytes.
    pub bytes: u64,
    /// Time that each hop takes besides its bytes, ns.
    pub overhead_ns: u64,
    /// Whether it is small: has no page.
    pub small: bool,
}

/// What has happened to a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// All of it has left its sender.
    Sent(u32),
    /// All of it is at its receiver.
    Arrived(u32),
}

/// What a fabric wants from its driver.
#[derive(Debug, Default)]
pub struct Signals {
    /// Events that the fabric wants back, with their times, ns.
    pub wakes: Vec<(u64, u32)>,
    /// What has happened now, in order.
    pub done: VecDeque<Done>,
}

impl Signals {
    /// Requests an event.
    pub(super) fn wake(&mut self, time_ns: u64, what: u32) {
        self.wakes.push((time_ns, what));
    }
}

/// A network with events of its own.
#[derive(Debug)]
pub struct Fabric {
    model: Model,
    /// Reused buffer.
    channels: Vec<u8>,
    /// Bytes per link, if they are counted.
    bytes: Vec<u64>,
    /// Bytes and overhead of a message without a page, and of one with a page.
    sizes: [(u64, u64); 2],
}

#[derive(Debug)]
enum Model {
    Fair(Fair),
    Packets(Packets),
}

impl Fabric {
    /// The idle network of a valid configuration, for pages of `page_bytes`; none if its model has no
    /// events of its own.
    pub fn new(
        config: &Config,
        topology: &Topology,
        page_bytes: u64,
        count_bytes: bool,
    ) -> Option<Box<Fabric>> {
        let network = &config.network;
        let packets = |packet_bytes, buffer_packets, order| {
            let cut = Cut {
                packet_bytes,
                buffer_packets,
                order,
                cut_through: network.switching == Switching::CutThrough,
                channels: if buffer_packets.is_some() { topology.virtual_channels() } else { 1 },
            };
            Model::Packets(Packets::new(&topology.link_specs(config), cut))
        };
        let whole = network.message_bytes + page_bytes;
        let model = match network.model {
            // The same, where a link need not be like another.
            NetworkModel::Fifo if !topology.is_uniform() || script::links_fail(config) => {
                packets(whole, None, PacketOrder::Fifo)
            }
            NetworkModel::Fifo => return None,
            NetworkModel::Fair => {
                Model::Fair(Fair::new(&topology.link_specs(config), network.sharing))
            }
            NetworkModel::Packets => {
                let packet_bytes = network.packet_bytes_max(page_bytes);
                let room = (network.buffer_bytes / packet_bytes).min(u32::MAX.into()) as u32;
                let room = (network.buffer_bytes > 0).then_some(room);
                packets(packet_bytes, room, network.order)
            }
        };
        Some(Box::new(Fabric {
            model,
            channels: Vec::new(),
            bytes: if count_bytes { vec![0; topology.links() as usize] } else { Vec::new() },
            sizes: sizes(network, page_bytes),
        }))
    }

    /// A message with `pages` pages starts over `route`, which has at least one link.
    pub fn send(
        &mut self,
        now_ns: u64,
        message: u32,
        pages: u32,
        route: &[u32],
        topology: &Topology,
        signals: &mut Signals,
    ) {
        let (bytes, overhead_ns) = self.sizes[usize::from(pages > 0)];
        let parts = u64::from(pages.max(1));
        let (bytes, overhead_ns) = (parts * bytes, parts * overhead_ns);
        if !self.bytes.is_empty() {
            route.iter().for_each(|&link| self.bytes[link as usize] += bytes);
        }
        let cargo = Cargo { message, bytes, overhead_ns, small: pages == 0 };
        match &mut self.model {
            Model::Fair(fair) => fair.send(now_ns, cargo, route, signals),
            Model::Packets(packets) => {
                topology.channels(route, &mut self.channels);
                packets.send(now_ns, cargo, route, &self.channels, signals);
            }
        }
    }

    /// An event that was requested by [`Signals::wakes`].
    pub fn event(&mut self, now_ns: u64, what: u32, signals: &mut Signals) {
        match &mut self.model {
            Model::Fair(fair) => fair.event(now_ns, what, signals),
            Model::Packets(packets) => packets.event(now_ns, what, signals),
        }
    }

    /// A link fails, or works again.
    pub fn set_up(&mut self, now_ns: u64, link: u32, up: bool, signals: &mut Signals) {
        match &mut self.model {
            Model::Fair(fair) => fair.set_up(now_ns, link, up, signals),
            Model::Packets(packets) => packets.set_up(now_ns, link, up, signals),
        }
    }

    /// Resets the measurements.
    pub fn restart_measuring(&mut self, now_ns: u64) {
        match &mut self.model {
            Model::Fair(fair) => fair.restart_measuring(now_ns),
            Model::Packets(packets) => packets.restart_measuring(now_ns),
        }
    }

    /// Busy time of all links and of the busiest one since measuring began, ns.
    pub fn busy_ns(&mut self, now_ns: u64) -> (u64, u64) {
        match &mut self.model {
            Model::Fair(fair) => fair.busy_ns(now_ns),
            Model::Packets(packets) => packets.busy_ns(now_ns),
        }
    }

    /// Bytes by link; empty if they are not counted.
    pub fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        let model = match &self.model {
            Model::Fair(fair) => fair.heap_bytes(),
            Model::Packets(packets) => packets.heap_bytes(),
        };
        model + self.bytes.capacity() * 8
    }
}

/// Bytes and overhead of a message without a page, and of one with a page.
fn sizes(network: &NetworkConfig, page_bytes: u64) -> [(u64, u64); 2] {
    [
        (network.message_bytes, network.hop_overhead_ns),
        (network.message_bytes + page_bytes, network.hop_overhead_ns + network.page_overhead_ns),
    ]
}
