//! What the daemon and its processes do, for Prometheus.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// A managed process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, EncodeLabelSet)]
pub struct OfProcess {
    pub pid: u32,
    pub name: String,
}

/// A process at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    pub share_bytes: u64,
    pub huge_used_bytes: u64,
    pub huge_idle_bytes: u64,
    pub wanted_bytes: u64,
    /// What huge pages gain, in thousandths of its processor time, once that was measured.
    pub gain_permille: Option<i64>,
}

/// Gauges of one daemon.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    budget: Gauge,
    processes: Gauge,
    share: Family<OfProcess, Gauge>,
    used: Family<OfProcess, Gauge>,
    idle: Family<OfProcess, Gauge>,
    wanted: Family<OfProcess, Gauge>,
    gain: Family<OfProcess, Gauge<f64, AtomicU64>>,
    cpu: Counter<f64, AtomicU64>,
    /// Processor time that `cpu` covers.
    cpu_ns: u64,
    known: BTreeSet<OfProcess>,
}

impl Metrics {
    /// Sets all gauges; processes that are not in `processes` disappear.
    pub fn set(&mut self, budget_bytes: u64, processes: Vec<(OfProcess, Figures)>) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.budget.set(gauge(budget_bytes));
        self.processes.set(processes.len() as i64);
        let now: BTreeSet<OfProcess> = processes.iter().map(|(of, _)| of.clone()).collect();
        for of in self.known.difference(&now) {
            for family in [&self.share, &self.used, &self.idle, &self.wanted] {
                family.remove(of);
            }
            self.gain.remove(of);
        }
        self.known = now;
        for (of, figures) in processes {
            self.share.get_or_create(&of).set(gauge(figures.share_bytes));
            self.used.get_or_create(&of).set(gauge(figures.huge_used_bytes));
            self.idle.get_or_create(&of).set(gauge(figures.huge_idle_bytes));
            self.wanted.get_or_create(&of).set(gauge(figures.wanted_bytes));
            if let Some(permille) = figures.gain_permille {
                self.gain.get_or_create(&of).set(permille as f64 / 1000.0);
            }
        }
    }

    /// Records the processor time that the daemon has taken so far.
    pub fn set_cpu(&mut self, cpu_ns: u64) {
        self.cpu.inc_by(cpu_ns.saturating_sub(self.cpu_ns) as f64 / 1e9);
        self.cpu_ns = cpu_ns;
    }

    /// All of them, as they are served.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("hiroma_hot");
        let bytes = Unit::Bytes;
        registry.register_with_unit("budget", "Limit of huge pages", bytes, self.budget.clone());
        registry.register("processes", "Managed processes", self.processes.clone());
        for (name, help, family) in [
            ("share", "Share of the budget", &self.share),
            ("huge_used", "Huge pages that were made and are in use", &self.used),
            ("huge_idle", "Huge pages that were made and are not in use", &self.idle),
            ("wanted", "Memory that deserves huge pages and is over the share", &self.wanted),
        ] {
            registry.register_with_unit(name, help, Unit::Bytes, family.clone());
        }
        registry.register_with_unit(
            "gain",
            "Processor time that huge pages save a process, where that was measured",
            Unit::Ratios,
            self.gain.clone(),
        );
        registry.register_with_unit(
            "cpu",
            "Processor time of the daemon",
            Unit::Seconds,
            self.cpu.clone(),
        );
        registry
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn processes_appear_and_disappear() {
        let mut metrics = Metrics::default();
        let text = |metrics: &Metrics| {
            let mut text = String::new();
            encode(&mut text, &metrics.registry()).unwrap();
            text
        };
        let of = OfProcess { pid: 7, name: "redis".to_owned() };
        let figures =
            Figures { huge_used_bytes: 4 << 20, gain_permille: Some(37), ..Figures::default() };
        metrics.set_cpu(1_500_000_000);
        metrics.set_cpu(2_500_000_000);
        metrics.set(1 << 30, vec![(of, figures)]);
        let shown = text(&metrics);
        assert!(
            shown.contains("hiroma_hot_huge_used_bytes{pid=\"7\",name=\"redis\"} 4194304"),
            "{shown}"
        );
        assert!(shown.contains("hiroma_hot_processes 1"), "{shown}");
        assert!(shown.contains("gain_ratios{pid=\"7\",name=\"redis\"} 0.037"), "{shown}");
        assert!(shown.contains("hiroma_hot_cpu_seconds_total 2.5"), "{shown}");
        metrics.set(1 << 30, Vec::new());
        assert!(!text(&metrics).contains("redis"));
    }
}
