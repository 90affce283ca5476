//! What the daemon did and observes, for Prometheus.

use std::sync::atomic::AtomicU64;

use hiroma_policy::reclaim::{PAGE_BYTES, Reason};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfNode {
    node: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfVerdict {
    node: u32,
    reason: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfMechanism {
    name: &'static str,
}

type Seconds = Counter<f64, AtomicU64>;

/// Counters and gauges of one daemon.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    reclaimed: Family<OfNode, Counter>,
    batches: Family<OfNode, Counter>,
    cpu: Family<OfNode, Seconds>,
    compactions: Family<OfNode, Counter>,
    dropped: Counter,
    verdicts: Family<OfVerdict, Counter>,
    fill: Family<OfNode, Gauge>,
    free: Family<OfNode, Gauge>,
    wanted: Family<OfNode, Gauge>,
    mechanisms: Family<OfMechanism, Gauge>,
}

impl Metrics {
    /// Counts a batch that was reclaimed on `node`.
    pub fn batch(&self, node: u32, got_pages: u64, cpu_ns: u64) {
        let of = OfNode { node };
        self.reclaimed.get_or_create(&of).inc_by(got_pages * PAGE_BYTES);
        self.batches.get_or_create(&of).inc();
        self.cpu.get_or_create(&of).inc_by(cpu_ns as f64 / 1e9);
    }

    /// Counts a compaction that was started on `node`.
    pub fn compaction(&self, node: u32) {
        self.compactions.get_or_create(&OfNode { node }).inc();
    }

    /// Counts bytes that were dropped behind streams.
    pub fn dropped(&self, bytes: u64) {
        self.dropped.inc_by(bytes);
    }

    /// Records a decision for `node`, whose cache is filled by `fill_s` pages a second.
    pub fn verdict(&self, node: u32, reason: &Reason, fill_s: u64) {
        self.verdicts.get_or_create(&OfVerdict { node, reason: reason.name() }).inc();
        let of = OfNode { node };
        let bytes =
            |pages: u64| i64::try_from(pages.saturating_mul(PAGE_BYTES)).unwrap_or(i64::MAX);
        self.fill.get_or_create(&of).set(bytes(fill_s));
        if let Some((free, wanted)) = reason.free_and_wanted() {
            self.free.get_or_create(&of).set(bytes(free));
            self.wanted.get_or_create(&of).set(bytes(wanted));
        }
    }

    /// Records whether a mechanism is in use.
    pub fn mechanism(&self, name: &'static str, in_use: bool) {
        self.mechanisms.get_or_create(&OfMechanism { name }).set(i64::from(in_use));
    }

    /// All of them, as they are served.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("hiroma_quiet");
        registry.register_with_unit(
            "reclaimed",
            "File cache given back early",
            Unit::Bytes,
            self.reclaimed.clone(),
        );
        registry.register("batches", "Requests to the kernel to reclaim", self.batches.clone());
        registry.register_with_unit(
            "reclaim_cpu",
            "Processor time of early reclaim",
            Unit::Seconds,
            self.cpu.clone(),
        );
        registry.register("compactions", "Compactions that were begun", self.compactions.clone());
        registry.register_with_unit(
            "dropped",
            "File cache dropped behind streams",
            Unit::Bytes,
            self.dropped.clone(),
        );
        registry.register(
            "verdicts",
            "Looks at the machine by what was decided and why",
            self.verdicts.clone(),
        );
        registry.register(
            "fill_bytes_per_second",
            "File data that enters the cache",
            self.fill.clone(),
        );
        registry.register_with_unit(
            "free",
            "Memory that counted as free when it mattered last",
            Unit::Bytes,
            self.free.clone(),
        );
        registry.register_with_unit(
            "wanted",
            "Memory that should have been free then",
            Unit::Bytes,
            self.wanted.clone(),
        );
        registry.register("mechanism", "1: in use", self.mechanisms.clone());
        registry
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn counters_and_gauges_have_their_names_and_units() {
        let metrics = Metrics::default();
        metrics.batch(1, 256, 500_000_000);
        metrics.verdict(1, &Reason::Enough { free: 512, wanted: 256 }, 2);
        metrics.mechanism("node_reclaim", true);
        let mut text = String::new();
        encode(&mut text, &metrics.registry()).unwrap();
        for line in [
            "hiroma_quiet_reclaimed_bytes_total{node=\"1\"} 1048576",
            "hiroma_quiet_batches_total{node=\"1\"} 1",
            "hiroma_quiet_reclaim_cpu_seconds_total{node=\"1\"} 0.5",
            "hiroma_quiet_verdicts_total{node=\"1\",reason=\"enough\"} 1",
            "hiroma_quiet_fill_bytes_per_second{node=\"1\"} 8192",
            "hiroma_quiet_free_bytes{node=\"1\"} 2097152",
            "hiroma_quiet_mechanism{name=\"node_reclaim\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found.trim_end() == line),
                "{line} is missing in\n{text}"
            );
        }
    }
}
