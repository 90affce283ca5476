//! What the next events need is read before their turn, several at a time: in a large machine each
//! of them waits for main memory, and those reads can wait together.

use std::hint::black_box;

use crate::engine::{EVENT_KINDS, Engine, EventKind};

/// Events whose memory is read together.
pub const AHEAD: u64 = 16;
/// Fewer nodes stay in the processor's caches.
const NODES_MIN: usize = 1 << 14;

impl Engine<'_> {
    /// Reads what the next [`AHEAD`] events need.
    #[inline]
    pub(super) fn read_ahead(&self) {
        if self.nodes.len() >= NODES_MIN {
            self.read_nodes();
        }
    }

    fn read_nodes(&self) {
        let (mut nodes, mut count, mut sum) = ([0; AHEAD as usize], 0, 0);
        for payload in self.queue.ahead(AHEAD as usize) {
            let whom = payload as u32;
            nodes[count] = match EVENT_KINDS[(payload >> 32) as usize & 15] {
                EventKind::Hop | EventKind::Deliver => self.messages.get(whom).target,
                EventKind::Run | EventKind::Tick => whom,
                _ => continue,
            };
            count += 1;
        }
        for &number in &nodes[..count] {
            let node = &self.nodes[number as usize];
            sum += node.handler_free_ns + u64::from(node.used);
        }
        for &number in &nodes[..count] {
            let node = &self.nodes[number as usize];
            sum += node.thread.as_ref().map_or(0, |thread| thread.due_ns);
            sum += node.placer.view().frees().first().map_or(0, |&free| u64::from(free));
        }
        black_box(sum);
    }
}
