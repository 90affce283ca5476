//! How long a page may take on one disk or link: whole queues of pages have to be served within the
//! times that an event can have.

use super::{Problem, Problems};
use crate::config::Config;

/// Longest time of one page, ns: 36 minutes.
const PAGE_NS_MAX: u128 = 1 << 41;

impl Config {
    pub(super) fn check_page_times(&self, problems: &mut Problems) {
        let (node, page_bytes) = (&self.node, self.node.page_bytes);
        let carried = page_bytes.saturating_add(self.network.message_bytes);
        let links = self.topology.graph.iter().flat_map(|graph| graph.links());
        let slowest = links.map(|link| link.bytes_per_s).min();
        let mut rates = vec![
            ("disk.bytes_per_s", None, page_bytes, self.disk.bytes_per_s),
            ("network.bytes_per_s", None, carried, self.network.bytes_per_s),
            ("topology.uplink_bytes_per_s", None, carried, self.topology.uplink_bytes_per_s),
            ("topology.file", None, carried, slowest.unwrap_or(0)),
            ("node.tier_bytes_per_s", None, page_bytes, node.tier_bytes_per_s),
        ];
        for (place, class) in node.class.iter().enumerate() {
            let of_class = [class.disk_bytes_per_s, class.tier_bytes_per_s];
            let given = of_class.into_iter().flatten();
            rates.extend(given.map(|rate| ("node.class", Some(place), page_bytes, rate)));
        }
        for (field, place, bytes, rate) in rates.into_iter().filter(|&(.., rate)| rate > 0) {
            let page_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
            if page_ns > PAGE_NS_MAX {
                let message = format!(
                    "a page takes {} s at {rate} bytes/s; allowed are {}: smaller pages \
                     (node.page_bytes) or more bytes/s help",
                    page_ns / 1_000_000_000,
                    PAGE_NS_MAX / 1_000_000_000
                );
                problems.0.push(Problem { field, place, message });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::NodeClass;
    use crate::validate::tests::problems;

    #[test]
    fn times_that_no_event_can_have_are_refused() {
        let told = problems(|config| {
            (config.node.page_bytes, config.disk.bytes_per_s) = (1 << 30, 1000);
            config.node.class = vec![NodeClass {
                nodes: "0".into(),
                disk_bytes_per_s: Some(2000),
                ..NodeClass::default()
            }];
            config.failures.repair_ns = u64::MAX;
            config.policy.answer_ns = u64::MAX;
        });
        let wanted = [
            "disk.bytes_per_s: a page takes 1073741 s at 1000 bytes/s; allowed are 2199: ",
            "node.class[0]: a page takes 536870 s at 2000 bytes/s; ",
            "policy.answer_ns: ",
            "policy.lease_ns: ",
            "policy.give_up_ns: ",
            "failures.repair_ns: 18446744073709551615 is out of range; allowed are 0 to ",
        ];
        assert_eq!(told.len(), wanted.len(), "{told:?}");
        for (told, wanted) in told.iter().zip(wanted) {
            assert!(told.starts_with(wanted), "{told}");
        }
    }
}
