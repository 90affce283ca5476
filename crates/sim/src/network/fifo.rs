//! Links: a sender waits until the link is free; a link carries one message at a time.

use super::line::{self, Line};
use crate::config::{NetworkConfig, Switching};

/// Times of one hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// When the sender has sent everything, ns.
    pub sent_ns: u64,
    /// When the next node or switch can forward it, ns.
    pub on_ns: u64,
    /// When all of it has arrived at the next node or switch, ns.
    pub there_ns: u64,
}

/// Costs of a message with or without a page.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u64,
    /// Time that its bytes occupy a link, ns.
    bytes_ns: u64,
    /// Time on a link before its head is forwarded, ns.
    overhead_ns: u64,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    links: Vec<Line>,
    /// Bytes per link, if they are counted.
    bytes: Vec<u64>,
    latency_ns: u64,
    cut_through: bool,
    /// A message without a page, and one with a page.
    sizes: [Size; 2],
}

/// Time to transfer `bytes`, rounded up, ns.
pub fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s)) as u64
}

impl Network {
    /// `links` idle links; a page has `page_bytes`.
    pub fn new(config: &NetworkConfig, links: u32, page_bytes: u64, count_bytes: bool) -> Self {
        let size = |bytes, overhead_ns| Size {
            bytes,
            bytes_ns: transfer_ns(bytes, config.bytes_per_s),
            overhead_ns,
        };
        let page_overhead_ns = config.hop_overhead_ns + config.page_overhead_ns;
        Network {
            links: vec![Line::default(); links as usize],
            bytes: if count_bytes { vec![0; links as usize] } else { Vec::new() },
            latency_ns: config.latency_ns,
            cut_through: config.switching == Switching::CutThrough,
            sizes: [
                size(config.message_bytes, config.hop_overhead_ns),
                size(config.message_bytes + page_bytes, page_overhead_ns),
            ],
        }
    }

    /// Sends a message over `link` as soon as the link is free.
    #[inline]
    pub fn send(&mut self, now_ns: u64, link: u32, has_page: bool) -> Hop {
        let Size { bytes, bytes_ns, overhead_ns } = self.sizes[usize::from(has_page)];
        let busy_ns = overhead_ns + bytes_ns;
        let state = &mut self.links[link as usize];
        let start_ns = state.free_ns.max(now_ns);
        state.carry(start_ns, busy_ns);
        if let Some(counted) = self.bytes.get_mut(link as usize) {
            *counted += bytes;
        }
        let there_ns = start_ns + busy_ns + self.latency_ns;
        let on_ns =
            if self.cut_through { start_ns + overhead_ns + self.latency_ns } else { there_ns };
        Hop { sent_ns: start_ns + busy_ns, on_ns, there_ns }
    }

    /// With cut-through switching, the time by which the last byte of a message arrives after its
    /// head, ns; otherwise 0.
    #[inline]
    pub fn tail_ns(&self, has_page: bool) -> u64 {
        if self.cut_through { self.sizes[usize::from(has_page)].bytes_ns } else { 0 }
    }

    /// Resets the measurements; what is being carried at `now_ns` counts from then on.
    pub fn restart_measuring(&mut self, now_ns: u64) {
        self.links.iter_mut().for_each(|link| link.restart_measuring(now_ns));
    }

    /// Busy time of all links and of the busiest one since measuring began, ns.
    pub fn busy_ns(&self, now_ns: u64) -> (u64, u64) {
        line::busy_ns(self.links.iter(), now_ns)
    }

    /// Bytes by link; empty if they are not counted.
    pub fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.links.capacity() * size_of::<Line>() + self.bytes.capacity() * 8
    }
}
