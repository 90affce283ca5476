//! The settings of faults, and of the protocol that bears them.

use std::collections::BTreeSet;

use hiroma_policy::placement::PIECES_MAX;

use super::{Problems, TIME_MAX_NS};
use crate::config::Config;

/// Nodes that can tell each other's failures: an event has 16 bits for either.
pub const DETECTING_NODES_MAX: u64 = 1 << 15;

impl Config {
    /// What cannot be simulated with the protocol that bears faults.
    fn check_confirmed(&self, problems: &mut Problems) {
        if self.network.free_information {
            let message = "what every peer knows at once is no message, and with `policy.confirm` or \
                           `faults` nodes believe messages only; leave out one of them";
            problems.add("network.free_information", message.to_owned());
        }
        if self.load.trace.is_some() && !self.faults.crashes.is_empty() {
            let message = "nodes do not fail while a recording is replayed: what its program does \
                           after that is not recorded; leave them out";
            problems.add("faults.crashes", message.to_owned());
        }
    }

    pub(super) fn check_confirm(&self, problems: &mut Problems) {
        let policy = &self.policy;
        problems.range("policy.answer_ns", policy.answer_ns, 1000, 1 << 36);
        problems.range("policy.refresh_ns", policy.refresh_ns, 1000, 1 << 40);
        problems.range(
            "policy.lease_ns",
            policy.lease_ns,
            policy.answer_ns.saturating_mul(8),
            1 << 42,
        );
        problems.range("policy.give_up_ns", policy.give_up_ns, policy.answer_ns, 1 << 44);
        let most = u64::from(PIECES_MAX);
        problems.range("policy.copies", policy.copies.into(), 1, most);
        match policy.parity[..] {
            [] => (),
            [data, parity]
                if data >= 1 && parity >= 1 && u64::from(data) + u64::from(parity) <= most =>
            {
                if policy.copies > 1 {
                    problems.add(
                        "policy.copies",
                        "policy.parity says already what is kept of a page; leave one of them out"
                            .to_owned(),
                    );
                }
            }
            _ => problems.add(
                "policy.parity",
                format!(
                    "{:?}: needed is [data, parity], at least 1 each and {most} together",
                    policy.parity
                ),
            ),
        }
        if self.confirms() {
            self.check_confirmed(problems);
        } else if policy.copies > 1 || !policy.parity.is_empty() {
            let field = if policy.copies > 1 { "policy.copies" } else { "policy.parity" };
            problems.add(field, "more than one copy needs policy.confirm = true".to_owned());
        }
    }

    pub(super) fn check_faults(&self, problems: &mut Problems) {
        let faults = &self.faults;
        for (field, share) in [
            ("faults.loss", faults.loss),
            ("faults.duplicate", faults.duplicate),
            ("faults.reorder", faults.reorder),
            ("faults.delay", faults.delay),
        ] {
            if !(0.0..=0.9).contains(&share) {
                problems.add(field, format!("{share} is out of range; allowed are 0 to 0.9"));
            }
        }
        let most = 1e6;
        if !(0.0..=most).contains(&faults.wrong_suspicions_per_s) {
            problems.add(
                "faults.wrong_suspicions_per_s",
                format!(
                    "{} is out of range; allowed are 0 to {most}",
                    faults.wrong_suspicions_per_s
                ),
            );
        }
        problems.range("faults.reorder_ns", faults.reorder_ns, 1, 1 << 40);
        problems.range("faults.delay_ns", faults.delay_ns, 1, 1 << 40);
        problems.range("faults.detect_ns", faults.detect_ns, 0, 1 << 40);
        let nodes = self.nodes();
        if faults.detect_ns > 0 && nodes > DETECTING_NODES_MAX {
            problems.add(
                "faults.detect_ns",
                format!(
                    "each of {nodes} nodes would learn of each failure at a time of its own, which is \
                     simulated for up to {DETECTING_NODES_MAX}; use 0 (they learn of it by its silence), \
                     or fewer nodes"
                ),
            );
        }
        let times = |from_ns: u64, until_ns: u64| from_ns < until_ns && until_ns <= TIME_MAX_NS / 2;
        for partition in &faults.partitions {
            let all: Vec<u32> = partition.groups.iter().flatten().copied().collect();
            let distinct: BTreeSet<u32> = all.iter().copied().collect();
            if !times(partition.from_ns, partition.until_ns) {
                problems.add(
                    "faults.partitions",
                    format!(
                        "from {} ns to {} ns: it has to end after its beginning",
                        partition.from_ns, partition.until_ns
                    ),
                );
            } else if partition.groups.is_empty()
                || distinct.len() != all.len()
                || all.iter().any(|&node| u64::from(node) >= nodes)
            {
                problems.add(
                    "faults.partitions",
                    format!(
                        "{:?}: needed are groups of different nodes from 0 to {}",
                        partition.groups,
                        nodes.saturating_sub(1)
                    ),
                );
            }
        }
        for (field, outages) in
            [("faults.crashes", &faults.crashes), ("faults.drains", &faults.drains)]
        {
            for outage in outages {
                if !times(outage.from_ns, outage.until_ns) || u64::from(outage.node) >= nodes {
                    problems.add(field, format!("node {} from {} ns to {} ns: needed is a node from 0 to {} and an end after the beginning", outage.node, outage.from_ns, outage.until_ns, nodes.saturating_sub(1)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::TopologyKind;
    use crate::validate::tests::problems;

    #[test]
    fn many_nodes_detect_failures_by_silence_only() {
        let detect = |nodes: u32| {
            problems(|config| {
                (config.topology.kind, config.topology.dims) =
                    (TopologyKind::Torus2d, vec![nodes / 64, 64]);
                config.disk.count = 64;
                config.faults.detect_ns = 20_000_000;
            })
        };
        assert_eq!(detect(1 << 15), Vec::<String>::new());
        let told = detect(1 << 16);
        assert!(told.len() == 1 && told[0].starts_with("faults.detect_ns: each of 65536 nodes"));
    }
}
