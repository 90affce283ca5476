//! Packets: messages are cut into pieces that share links one after the other. Small messages may
//! go first. Buffers may be finite: a packet leaves only when the buffer at the other end of the
//! link has room for it (credits), so that a full one stops those before it.
//!
//! Each link has several virtual channels, with a buffer each; a packet takes the one that
//! [`Topology::channel`](crate::topology::Topology::channel) names, so that no circle of full
//! buffers can wait for itself. A receiver takes everything.

use std::collections::VecDeque;

use super::fabric::{Cargo, Done, LinkSpec, Signals};
use super::line::{self, Line};
use super::transfer_ns;
use crate::config::PacketOrder;

/// Events of this network, in the upper two bits: a link is free, the head of a packet can be
/// forwarded, a packet is at its receiver, a buffer has room for one packet more.
const FREE: u32 = 0;
const HEAD: u32 = 1;
const TAIL: u32 = 2;
const CREDIT: u32 = 3;
const KIND_SHIFT: u32 = 30;

/// No message.
const NONE: u32 = u32::MAX;

/// A message under way.
#[derive(Debug, Default)]
struct Load {
    message: u32,
    small: bool,
    overhead_ns: u64,
    /// Links and virtual channels.
    route: Vec<(u32, u8)>,
    /// Bytes that its sender has not begun to send.
    unsent_bytes: u64,
    /// Whether no packet of it has been sent.
    whole: bool,
    /// Packets that have not arrived.
    packets_left: u32,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    load: u32,
    /// Place of its next link on the route.
    hop: u16,
    /// Whether it is the first one of its message, which bears the work for the whole.
    first: bool,
    bytes: u64,
    /// When all of it is at its present place, ns.
    tail_ns: u64,
}

/// What waits for a link: a packet, or the packets that the sender of a load has not sent.
#[derive(Clone, Copy, Debug)]
enum Item {
    Packet(u32),
    Load(u32),
}

/// Packets that wait for one virtual channel of a link.
#[derive(Debug, Default)]
struct Channel {
    /// With the order of their arrival.
    waiting: VecDeque<(u64, Item)>,
    /// Packets for which there is room at the other end.
    credits: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    bytes_per_s: u64,
    latency_ns: u64,
    up: bool,
    line: Line,
    waiting: u32,
    /// The message whose last packet is being sent by its sender.
    ends: u32,
    /// Whether the last packet was of a small message.
    was_small: bool,
}

/// How messages are cut and ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Largest packet, bytes.
    pub packet_bytes: u64,
    /// Packets for which each buffer has room; none if there is no limit.
    pub buffer_packets: Option<u32>,
    /// Who goes first.
    pub order: PacketOrder,
    /// Whether a packet is forwarded as soon as its head has arrived.
    pub cut_through: bool,
    /// Virtual channels of each link.
    pub channels: u8,
}

/// All links.
#[derive(Debug)]
pub struct Packets {
    cut: Cut,
    /// Channels of a link: for small messages and for others, unless all are alike.
    per_link: u32,
    links: Vec<Link>,
    channels: Vec<Channel>,
    loads: Vec<Load>,
    free_loads: Vec<u32>,
    packets: Vec<Packet>,
    free_packets: Vec<u32>,
    arrivals: u64,
}

impl Packets {
    /// Idle links.
    pub fn new(links: &[LinkSpec], cut: Cut) -> Self {
        let kinds = if cut.order == PacketOrder::Fifo { 1 } else { 2 };
        let per_link = kinds * u32::from(cut.channels);
        let links: Vec<Link> = links
            .iter()
            .map(|spec| Link {
                bytes_per_s: spec.bytes_per_s,
                latency_ns: spec.latency_ns,
                up: true,
                line: Line::default(),
                waiting: 0,
                ends: NONE,
                was_small: false,
            })
            .collect();
        let credits = cut.buffer_packets.unwrap_or(0);
        let channels = (0..links.len() as u32 * per_link)
            .map(|_| Channel { waiting: VecDeque::new(), credits });
        Packets {
            cut,
            per_link,
            channels: channels.collect(),
            links,
            loads: Vec::new(),
            free_loads: Vec::new(),
            packets: Vec::new(),
            free_packets: Vec::new(),
            arrivals: 0,
        }
    }

    /// A message starts over `route`, on the virtual channels `channels`.
    pub fn send(
        &mut self,
        now_ns: u64,
        cargo: Cargo,
        route: &[u32],
        channels: &[u8],
        signals: &mut Signals,
    ) {
        let number = self.free_loads.pop().unwrap_or_else(|| {
            self.loads.push(Load::default());
            self.loads.len() as u32 - 1
        });
        let load = &mut self.loads[number as usize];
        (load.message, load.small, load.overhead_ns) =
            (cargo.message, cargo.small, cargo.overhead_ns);
        load.route.clear();
        let last = self.cut.channels - 1;
        let channels = channels.iter().map(|&channel| channel.min(last));
        load.route.extend(route.iter().copied().zip(channels));
        (load.unsent_bytes, load.whole) = (cargo.bytes, true);
        load.packets_left = cargo.bytes.div_ceil(self.cut.packet_bytes) as u32;
        self.wait(now_ns, Item::Load(number), number, 0, signals);
    }

    /// An event of this network.
    pub fn event(&mut self, now_ns: u64, what: u32, signals: &mut Signals) {
        let number = what & ((1 << KIND_SHIFT) - 1);
        match what >> KIND_SHIFT {
            FREE => self.start(now_ns, number, signals),
            HEAD => {
                let Packet { load, hop, .. } = self.packets[number as usize];
                self.wait(now_ns, Item::Packet(number), load, hop, signals);
            }
            TAIL => self.arrive(number, signals),
            CREDIT => {
                self.channels[number as usize].credits += 1;
                self.start(now_ns, number / self.per_link, signals);
            }
            _ => (),
        }
    }

    /// The channel that `load` takes at place `hop` of its route.
    fn channel(&self, load: u32, hop: u16) -> (u32, u32) {
        let load = &self.loads[load as usize];
        let (link, channel) = load.route[usize::from(hop)];
        let of_pages = self.cut.order != PacketOrder::Fifo && !load.small;
        let kind = u32::from(of_pages) * u32::from(self.cut.channels);
        (link, link * self.per_link + kind + u32::from(channel))
    }

    fn wait(&mut self, now_ns: u64, item: Item, load: u32, hop: u16, signals: &mut Signals) {
        let (link, channel) = self.channel(load, hop);
        self.arrivals += 1;
        self.channels[channel as usize].waiting.push_back((self.arrivals, item));
        self.links[link as usize].waiting += 1;
        self.start(now_ns, link, signals);
    }

    /// A packet is at its receiver.
    fn arrive(&mut self, number: u32, signals: &mut Signals) {
        self.free_packets.push(number);
        let load = self.packets[number as usize].load;
        let state = &mut self.loads[load as usize];
        state.packets_left -= 1;
        if state.packets_left == 0 {
            signals.done.push_back(Done::Arrived(state.message));
            self.free_loads.push(load);
        }
    }

    /// Starts the next packet on a link, if the link is free and one may go.
    fn start(&mut self, now_ns: u64, number: u32, signals: &mut Signals) {
        let link = self.links[number as usize];
        if link.line.free_ns > now_ns {
            return;
        }
        if link.ends != NONE {
            signals.done.push_back(Done::Sent(link.ends));
            self.links[number as usize].ends = NONE;
        }
        if link.waiting == 0 || !link.up {
            return;
        }
        let Some(channel) = self.choose(number) else { return };
        let packet_number = self.take(channel);
        let packet = self.packets[packet_number as usize];
        let load = &self.loads[packet.load as usize];
        let overhead_ns = if packet.first { load.overhead_ns } else { 0 };
        let bytes_ns = transfer_ns(packet.bytes, link.bytes_per_s);
        // Where a fast link follows a slow one, it has to wait for bytes.
        let end_ns = (now_ns + overhead_ns + bytes_ns).max(packet.tail_ns);
        let head_ns = now_ns + overhead_ns + link.latency_ns;
        let tail_ns = end_ns + link.latency_ns;
        let is_last = usize::from(packet.hop) + 1 == load.route.len();
        let ends = packet.hop == 0 && load.unsent_bytes == 0;
        let message = load.message;
        if self.cut.buffer_packets.is_some() {
            if !is_last {
                self.channels[channel as usize].credits -= 1;
            }
            if packet.hop > 0 {
                let (before, channel) = self.channel(packet.load, packet.hop - 1);
                let back_ns = end_ns + self.links[before as usize].latency_ns;
                signals.wake(back_ns, CREDIT << KIND_SHIFT | channel);
            }
        }
        let link = &mut self.links[number as usize];
        link.line.carry(now_ns, end_ns - now_ns);
        link.ends = if ends { message } else { NONE };
        let packet = &mut self.packets[packet_number as usize];
        packet.hop += 1;
        packet.tail_ns = tail_ns;
        if is_last {
            signals.wake(tail_ns, TAIL << KIND_SHIFT | packet_number);
        } else {
            let on_ns = if self.cut.cut_through { head_ns } else { tail_ns };
            signals.wake(on_ns, HEAD << KIND_SHIFT | packet_number);
        }
        signals.wake(end_ns, FREE << KIND_SHIFT | number);
    }

    /// The channel of a link from which the next packet comes: of those of the kind that goes
    /// first, the one whose packet has waited longest.
    fn choose(&mut self, number: u32) -> Option<u32> {
        let link = &self.links[number as usize];
        let channels = u32::from(self.cut.channels);
        let first = number * self.per_link;
        let oldest = |from: u32| {
            let may_go = |channel: &u32| self.may_go(*channel);
            let age = |&channel: &u32| {
                self.channels[channel as usize].waiting.front().map_or(u64::MAX, |(age, _)| *age)
            };
            (from..from + channels).filter(may_go).min_by_key(age)
        };
        let (small, pages) = (first, first + channels);
        let chosen = match self.cut.order {
            PacketOrder::Fifo => oldest(first),
            PacketOrder::Interleaved if link.was_small => oldest(pages).or_else(|| oldest(small)),
            PacketOrder::Interleaved | PacketOrder::Priority => {
                oldest(small).or_else(|| oldest(pages))
            }
        };
        self.links[number as usize].was_small = chosen.is_some_and(|channel| channel < pages);
        chosen
    }

    /// Whether a packet waits in a channel and the buffer behind it has room.
    fn may_go(&self, channel: u32) -> bool {
        let state = &self.channels[channel as usize];
        let Some(&(_, item)) = state.waiting.front() else { return false };
        let (load, hop) = match item {
            Item::Packet(packet) => {
                (self.packets[packet as usize].load, self.packets[packet as usize].hop)
            }
            Item::Load(load) => (load, 0),
        };
        let is_last = usize::from(hop) + 1 == self.loads[load as usize].route.len();
        is_last || self.cut.buffer_packets.is_none() || state.credits > 0
    }

    /// Takes the first packet out of a channel.
    fn take(&mut self, channel: u32) -> u32 {
        let waiting = &mut self.channels[channel as usize].waiting;
        let item = waiting.front().map_or(Item::Packet(0), |&(_, item)| item);
        let link = &mut self.links[(channel / self.per_link) as usize];
        let number = match item {
            Item::Packet(packet) => {
                waiting.pop_front();
                link.waiting -= 1;
                return packet;
            }
            Item::Load(load) => load,
        };
        let load = &mut self.loads[number as usize];
        let bytes = load.unsent_bytes.min(self.cut.packet_bytes);
        load.unsent_bytes -= bytes;
        let first = std::mem::replace(&mut load.whole, false);
        if load.unsent_bytes == 0 {
            waiting.pop_front();
            link.waiting -= 1;
        }
        let packet = Packet { load: number, hop: 0, first, bytes, tail_ns: 0 };
        match self.free_packets.pop() {
            Some(slot) => {
                self.packets[slot as usize] = packet;
                slot
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    /// A link fails, or works again. What is being sent over it still arrives.
    pub fn set_up(&mut self, now_ns: u64, link: u32, up: bool, signals: &mut Signals) {
        self.links[link as usize].up = up;
        self.start(now_ns, link, signals);
    }

    /// Resets the measurements; what is being carried at `now_ns` counts from then on.
    pub fn restart_measuring(&mut self, now_ns: u64) {
        self.links.iter_mut().for_each(|link| link.line.restart_measuring(now_ns));
    }

    /// Busy time of all links and of the busiest one since measuring began, ns.
    pub fn busy_ns(&self, now_ns: u64) -> (u64, u64) {
        line::busy_ns(self.links.iter().map(|link| &link.line), now_ns)
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        let waiting = |channel: &Channel| channel.waiting.capacity() * size_of::<(u64, Item)>();
        let routes = |load: &Load| size_of::<Load>() + load.route.capacity() * 8;
        self.links.capacity() * size_of::<Link>()
            + self.channels.capacity() * size_of::<Channel>()
            + self.channels.iter().map(waiting).sum::<usize>()
            + self.loads.iter().map(routes).sum::<usize>()
            + self.packets.capacity() * size_of::<Packet>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{Config, TopologyConfig, TopologyKind};
    use crate::topology::Topology;

    /// Runs the network until nothing happens any more, or to `end_ns`.
    fn run(packets: &mut Packets, signals: &mut Signals, end_ns: u64) -> Vec<(u64, Done)> {
        let mut done = Vec::new();
        loop {
            let due = |(place, &(time_ns, _)): (usize, &(u64, u32))| (time_ns, place);
            let next = signals.wakes.iter().enumerate().map(due).min();
            let Some((time_ns, place)) = next.filter(|&(time_ns, _)| time_ns <= end_ns) else {
                return done;
            };
            let (_, what) = signals.wakes.remove(place);
            packets.event(time_ns, what, signals);
            done.extend(signals.done.drain(..).map(|done| (time_ns, done)));
        }
    }

    const CUT: Cut = Cut {
        packet_bytes: 1000,
        buffer_packets: None,
        order: PacketOrder::Priority,
        cut_through: false,
        channels: 1,
    };
    /// A byte takes 1 ns.
    const SPEC: LinkSpec = LinkSpec { bytes_per_s: 1_000_000_000, latency_ns: 10 };

    fn cargo(message: u32, bytes: u64) -> Cargo {
        Cargo { message, bytes, overhead_ns: 0, small: bytes < 1000 }
    }

    fn arrivals(cut: Cut, links: &[LinkSpec], sends: &[(u64, u32, u64)]) -> Vec<u64> {
        let (mut packets, mut signals) = (Packets::new(links, cut), Signals::default());
        let route: Vec<u32> = (0..links.len() as u32).collect();
        let mut there_ns = vec![0; sends.len()];
        let mut done = Vec::new();
        for &(time_ns, message, bytes) in sends {
            done.extend(run(&mut packets, &mut signals, time_ns));
            let channels = vec![0; links.len()];
            packets.send(time_ns, cargo(message, bytes), &route, &channels, &mut signals);
        }
        done.extend(run(&mut packets, &mut signals, u64::MAX));
        for (time_ns, done) in done {
            if let Done::Arrived(message) = done {
                there_ns[message as usize] = time_ns;
            }
        }
        there_ns
    }

    #[test]
    fn packets_of_a_message_overlap_on_its_route() {
        // Four packets over two links: the last one leaves after four, and takes one more.
        assert_eq!(arrivals(CUT, &[SPEC; 2], &[(0, 0, 4000)]), [5 * 1000 + 2 * 10]);
        let whole = Cut { packet_bytes: 4000, ..CUT };
        assert_eq!(arrivals(whole, &[SPEC; 2], &[(0, 0, 4000)]), [2 * 4000 + 2 * 10]);
        let through = Cut { cut_through: true, ..whole };
        assert_eq!(arrivals(through, &[SPEC; 2], &[(0, 0, 4000)]), [4000 + 2 * 10]);
        // A fast link after a slow one waits for bytes.
        let slow = LinkSpec { bytes_per_s: 100_000_000, latency_ns: 10 };
        assert_eq!(arrivals(through, &[slow, SPEC], &[(0, 0, 4000)]), [40_000 + 2 * 10]);
    }

    #[test]
    fn a_small_message_waits_for_one_packet_at_most() {
        let sends = [(0, 0, 100_000), (500, 1, 50), (501, 2, 50)];
        let small = |order| arrivals(Cut { order, ..CUT }, &[SPEC], &sends);
        assert_eq!(small(PacketOrder::Fifo), [100_010, 100_060, 100_110]);
        assert_eq!(small(PacketOrder::Priority), [100_110, 1_060, 1_110]);
        // Between two small messages there is a packet of the page.
        assert_eq!(small(PacketOrder::Interleaved), [100_110, 1_060, 2_110]);
    }

    #[test]
    fn a_buffer_limits_the_rate_as_credits_travel() {
        // A packet is 1,000 ns on a link and as long on the next; its credit is back 20 ns after
        // that. With room for one packet the next one starts only then.
        let one = Cut { buffer_packets: Some(1), ..CUT };
        let there = arrivals(one, &[SPEC; 2], &[(0, 0, 3000)]);
        assert_eq!(there, [3 * (1000 + 10 + 1000 + 10)]);
        let two = Cut { buffer_packets: Some(2), ..CUT };
        let unlimited = arrivals(CUT, &[SPEC; 2], &[(0, 0, 30_000)]);
        assert_eq!(unlimited, [31_020]);
        // Two rounds of credits overlap: two packets in 2,020 ns.
        assert_eq!(arrivals(two, &[SPEC; 2], &[(0, 0, 30_000)]), [15 * 2020 + 1000 - 20 + 20]);
    }

    fn torus(width: u32) -> Topology {
        let topology = TopologyConfig {
            kind: TopologyKind::Torus2d,
            dims: vec![width, 1],
            ..TopologyConfig::default()
        };
        Topology::new(&Config { topology, ..Config::default() }, 1, 4)
    }

    /// Every node of a ring sends half way round, and all buffers have room for one packet.
    fn ring(channels: bool) -> usize {
        let topology = torus(8);
        let cut = Cut { buffer_packets: Some(1), channels: 2, ..CUT };
        let links = vec![SPEC; topology.links() as usize];
        let (mut packets, mut signals) = (Packets::new(&links, cut), Signals::default());
        let (mut route, mut chosen) = (Vec::new(), Vec::new());
        for source in 0..8 {
            // All in the same direction.
            topology.route(source, (source + 3) % 8, &mut route);
            topology.channels(&route, &mut chosen);
            if !channels {
                chosen.fill(0);
            }
            packets.send(0, cargo(source, 20_000), &route, &chosen, &mut signals);
        }
        let done = run(&mut packets, &mut signals, u64::MAX);
        done.iter().filter(|(_, done)| matches!(done, Done::Arrived(_))).count()
    }

    #[test]
    fn full_buffers_of_a_ring_wait_for_each_other_only_without_virtual_channels() {
        assert_eq!(ring(true), 8);
        assert_eq!(ring(false), 0);
    }

    proptest! {
        #[test]
        fn everything_arrives_with_the_least_buffers(
            dims in prop::collection::vec(2u32..5, 3), dragonfly in any::<bool>(),
            sends in prop::collection::vec((0u64..3000, 0u32..1000, 0u32..1000, 1u64..9000), 1..80),
            cut_through in any::<bool>(),
            order in prop_oneof![
                Just(PacketOrder::Fifo), Just(PacketOrder::Priority), Just(PacketOrder::Interleaved)
            ],
        ) {
            let kind = if dragonfly { TopologyKind::Dragonfly } else { TopologyKind::Torus3d };
            let topology = TopologyConfig { kind, dims, ..TopologyConfig::default() };
            let topology = Topology::new(&Config { topology, ..Config::default() }, 1, 4);
            let channels = topology.virtual_channels();
            let cut = Cut { buffer_packets: Some(1), channels, cut_through, order, ..CUT };
            let links = vec![SPEC; topology.links() as usize];
            let (mut packets, mut signals) = (Packets::new(&links, cut), Signals::default());
            let (mut route, mut chosen, mut done) = (Vec::new(), Vec::new(), Vec::new());
            let (mut now_ns, mut sent) = (0, 0);
            for (gap_ns, source, target, bytes) in sends {
                now_ns += gap_ns;
                done.extend(run(&mut packets, &mut signals, now_ns));
                topology.route(source % topology.nodes(), target % topology.nodes(), &mut route);
                topology.channels(&route, &mut chosen);
                if !route.is_empty() {
                    packets.send(now_ns, cargo(sent, bytes), &route, &chosen, &mut signals);
                    sent += 1;
                }
            }
            done.extend(run(&mut packets, &mut signals, u64::MAX));
            // Each is sent once and arrives once; afterwards every buffer is empty.
            prop_assert_eq!(done.len(), 2 * sent as usize);
            prop_assert!(packets.channels.iter().all(|channel| channel.credits == 1));
            prop_assert!(packets.links.iter().all(|link| link.waiting == 0));
        }
    }
}
