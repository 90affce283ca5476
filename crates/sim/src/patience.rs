//! How long a thread may wait before it is stuck.

use crate::classes::{Specs, disk_spec};
use crate::config::{Config, NodeClass};
use crate::network::transfer_ns;

/// A wait may be so often as long as the longest that is known to be in order.
const MARGIN: u64 = 4;

impl Config {
    /// A thread is stuck if it has waited for this long, ns: `run.stuck_after_ns`, or a quarter of a
    /// shorter run, if answers do not take as long. A recording is not as long as its run.
    pub(crate) fn patience_ns(&self) -> u64 {
        let run = &self.run;
        if self.load.trace.is_some() {
            return run.stuck_after_ns;
        }
        let quarter_ns = run.warmup_ns.saturating_add(run.duration_ns) / 4;
        run.stuck_after_ns.min(quarter_ns.max(self.answer_ns().saturating_mul(MARGIN)))
    }

    /// The longest wait for an answer, ns: behind all others, and where messages are lost, or nodes
    /// fail, until nobody waits any longer.
    fn answer_ns(&self) -> u64 {
        self.queue_ns().saturating_add(self.unanswered_ns())
    }

    /// The longest wait for an answer that is not lost, ns: all pages of the machine are before it on
    /// one disk and one link.
    pub(crate) fn queue_ns(&self) -> u64 {
        let (network, node) = (&self.network, &self.node);
        let specs = Specs::new(self);
        let all = (0..self.nodes() as u32).map(|number| specs.of(number));
        let (mut pages, mut handler_ns) = (0, 0);
        for spec in all {
            pages += u64::from(spec.frames) + u64::from(spec.tier_frames) + 1;
            handler_ns = handler_ns.max(spec.handler_ns + spec.page_handler_ns);
        }
        let classes = node.class.iter().map(|class| disk_spec(self, class).service_ns);
        let disk_ns = classes.fold(disk_spec(self, &NodeClass::default()).service_ns, u64::max);
        let graph = self.topology.graph.iter().flat_map(|graph| graph.links());
        let (rates, latencies): (Vec<u64>, Vec<u64>) =
            graph.map(|link| (link.bytes_per_s, link.latency_ns)).unzip();
        let uplink = Some(self.topology.uplink_bytes_per_s).filter(|&rate| rate > 0);
        let rate = rates.into_iter().chain(uplink).fold(network.bytes_per_s, u64::min);
        let bytes_ns = transfer_ns(node.page_bytes + network.message_bytes, rate);
        let link_ns = bytes_ns + network.hop_overhead_ns + network.page_overhead_ns;
        let forward_ns = network.forward_ns + network.page_forward_ns;
        let latency_ns = latencies.into_iter().fold(network.latency_ns, u64::max);
        let way_ns = (link_ns + forward_ns + latency_ns).saturating_mul(self.diameter());
        let page_ns = way_ns.saturating_add(disk_ns + handler_ns);
        page_ns.saturating_mul(pages)
    }

    /// How long it takes until a node that gets no answer does something else, ns.
    fn unanswered_ns(&self) -> u64 {
        let (policy, faults) = (&self.policy, &self.faults);
        if !self.confirms() {
            return self.failures.detect_ns;
        }
        let partitions_ns = faults.partitions.iter().map(|part| part.until_ns - part.from_ns);
        let late_ns = faults.delay_ns + faults.reorder_ns;
        policy.give_up_ns + policy.lease_ns + late_ns + partitions_ns.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_in_proportion_to_the_run_but_never_shorter_than_an_answer() {
        const S: u64 = 1_000_000_000;
        let mut config = Config::default();
        // All of 16384 pages may wait for one disk, for minutes.
        assert_eq!(config.patience_ns(), 60 * S);
        (config.disk.access_ns, config.disk.bytes_per_s) = (1000, 1 << 40);
        (config.network.bytes_per_s, config.node.frames) = (1 << 40, 2);
        (config.run.warmup_ns, config.run.duration_ns) = (4 * S, 20 * S);
        assert_eq!(config.patience_ns(), 6 * S);
        config.run.stuck_after_ns = 2 * S;
        assert_eq!(config.patience_ns(), 2 * S);
        (config.run.stuck_after_ns, config.policy.confirm) = (600 * S, true);
        let give_up_ns = config.policy.give_up_ns;
        assert!(config.patience_ns() >= MARGIN * give_up_ns, "{}", config.patience_ns());
    }
}
