//! Checks a configuration, and reports all problems in one call.

use std::fmt;

use hiroma_policy::placement::{InformationKind, ReservationKind, ScopeKind};

use crate::classes;
use crate::config::{
    Canary, Config, FetchPath, NetworkModel, NodeClass, PacketOrder, Sharing, Switching,
    TopologyKind,
};
use crate::script;
use crate::topology::{CHANNELS_MAX, Topology};

mod canary;
mod faults;
mod times;

/// Maximum number of nodes.
pub const NODES_MAX: u64 = 4 << 20;
/// Longest simulated time, ns: the event queue stores 48 bits.
pub const TIME_MAX_NS: u64 = 1 << 47;

/// One problem of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The setting, as a path: `network.bytes_per_s`.
    pub field: &'static str,
    /// Which one, if the setting is a list; from 0.
    pub place: Option<usize>,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path(), self.message)
    }
}

impl Problem {
    /// The setting, as a path with its place in a list: `event[2]`.
    pub fn path(&self) -> String {
        self.place.map_or(self.field.to_owned(), |place| format!("{}[{place}]", self.field))
    }
}

struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, field: &'static str, message: String) {
        self.0.push(Problem { field, place: None, message });
    }

    fn add_at(&mut self, field: &'static str, place: usize, message: String) {
        self.0.push(Problem { field, place: Some(place), message });
    }

    fn range(&mut self, field: &'static str, value: u64, least: u64, most: u64) {
        if !(least..=most).contains(&value) {
            self.add(field, format!("{value} is out of range; allowed are {least} to {most}"));
        }
    }
}

impl Config {
    /// Nodes of the machine; 0 if `topology.dims` is invalid.
    pub fn nodes(&self) -> u64 {
        let wanted = self.dims_wanted().len();
        if self.topology.dims.len() != wanted {
            return 0;
        }
        let dims = match self.topology.kind {
            // Spines are not nodes.
            TopologyKind::LeafSpine => &self.topology.dims[..2],
            _ => &self.topology.dims[..],
        };
        dims.iter().try_fold(1u64, |nodes, &dim| nodes.checked_mul(u64::from(dim))).unwrap_or(0)
    }

    fn dims_wanted(&self) -> &'static [&'static str] {
        match self.topology.kind {
            TopologyKind::Torus2d => &["width", "height"],
            TopologyKind::Torus3d => &["x", "y", "z"],
            TopologyKind::FatTree => &["nodes per leaf", "leaves per pod", "pods"],
            TopologyKind::Dragonfly => &["nodes per router", "routers per group", "groups"],
            TopologyKind::LeafSpine => &["nodes per leaf", "leaves", "spines"],
            TopologyKind::FullBisection | TopologyKind::Graph | TopologyKind::Matrix => &["nodes"],
        }
    }

    /// Disks of the machine: `disk.count`, or those that classes of nodes have.
    pub fn disks(&self) -> u32 {
        let nodes = self.nodes();
        let of_class = |class: &NodeClass| {
            let ranges = classes::ranges(&class.nodes).unwrap_or_default();
            ranges.iter().all(|range| u64::from(*range.end()) < nodes)
        };
        if !self.node.class.iter().all(of_class) {
            return self.disk.count;
        }
        classes::disks(self).map_or(self.disk.count, |(at, _)| at.len() as u32)
    }

    /// Hops between the two nodes that are farthest apart.
    pub fn diameter(&self) -> u64 {
        let dims = &self.topology.dims;
        match self.topology.kind {
            TopologyKind::Torus2d | TopologyKind::Torus3d => {
                dims.iter().map(|&dim| u64::from(dim / 2)).sum()
            }
            TopologyKind::FatTree => match dims[..] {
                [_, 1, 1] => 2,
                [_, _, 1] => 4,
                _ => 6,
            },
            TopologyKind::Dragonfly => match dims[..] {
                [_, 1, 1] => 2,
                [_, _, 1] => 3,
                _ => 5,
            },
            TopologyKind::FullBisection => 2,
            TopologyKind::LeafSpine if dims.get(1) == Some(&1) => 2,
            TopologyKind::LeafSpine => 4,
            TopologyKind::Graph => {
                self.topology.graph.as_ref().map_or(1, |graph| graph.diameter().into())
            }
            TopologyKind::Matrix => {
                self.topology.latencies.as_ref().map_or(1, |matrix| matrix.diameter().into())
            }
        }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// All of its problems.
    pub fn validate(&self) -> Result<(), Vec<Problem>> {
        let mut problems = Problems(Vec::new());
        self.check_machine(&mut problems);
        self.check_page_times(&mut problems);
        self.check_load(&mut problems);
        self.check_policy(&mut problems);
        self.check_confirm(&mut problems);
        self.check_faults(&mut problems);
        self.check_run(&mut problems);
        self.check_classes(&mut problems);
        if problems.0.is_empty() {
            self.check_script(&mut problems);
        }
        if problems.0.is_empty() { Ok(()) } else { Err(problems.0) }
    }

    fn check_machine(&self, problems: &mut Problems) {
        let (wanted, dims) = (self.dims_wanted(), &self.topology.dims);
        let nodes = self.nodes();
        if dims.len() != wanted.len() {
            problems.add(
                "topology.dims",
                format!(
                    "{} numbers given; this topology takes [{}]",
                    dims.len(),
                    wanted.join(", ")
                ),
            );
        } else if !(2..=NODES_MAX).contains(&nodes) || dims.iter().any(|&dim| dim > 1 << 20) {
            problems.add(
                "topology.dims",
                format!("{nodes} nodes are out of range; allowed are 2 to {NODES_MAX}, at most 1048576 in one direction"),
            );
        } else if matches!(self.topology.kind, TopologyKind::Torus2d | TopologyKind::Torus3d)
            && dims.iter().any(|&dim| dim > 1 << 16)
        {
            // A coordinate has 16 bits.
            problems
                .add("topology.dims", "a torus has at most 65536 nodes in one direction".into());
        } else if self.topology.kind == TopologyKind::Dragonfly
            && (dims[2] > 4096 || dims[1] > 4096)
        {
            let message = format!(
                "{} groups of {} routers are too many; allowed are 1 to 4096 of either",
                dims[2], dims[1]
            );
            problems.add("topology.dims", message);
        }
        self.check_topology(problems);
        problems.range("network.bytes_per_s", self.network.bytes_per_s, 1000, 1 << 50);
        problems.range("network.latency_ns", self.network.latency_ns, 0, 1_000_000_000);
        problems.range("network.hop_overhead_ns", self.network.hop_overhead_ns, 0, 1_000_000_000);
        problems.range("network.page_overhead_ns", self.network.page_overhead_ns, 0, 1_000_000_000);
        problems.range("network.handler_ns", self.network.handler_ns, 0, 1_000_000_000);
        problems.range("network.page_handler_ns", self.network.page_handler_ns, 0, 1_000_000_000);
        self.check_forwarding(problems);
        problems.range("network.message_bytes", self.network.message_bytes, 1, 1 << 20);
        self.check_packets(problems);
        problems.range("node.frames", self.node.frames.into(), 2, 1 << 24);
        problems.range("node.page_bytes", self.node.page_bytes, 1, 1 << 30);
        problems.range("node.access_ns", self.node.access_ns, 1, 1_000_000_000);
        if nodes > 0 && !(1..=nodes).contains(&u64::from(self.disk.count)) {
            problems.add(
                "disk.count",
                format!("{} disks at {nodes} nodes; allowed are 1 to {nodes}", self.disk.count),
            );
        }
        problems.range("disk.access_ns", self.disk.access_ns, 0, 10_000_000_000);
        problems.range("disk.bytes_per_s", self.disk.bytes_per_s, 1000, 1 << 50);
        problems.range("disk.parallel", self.disk.parallel.into(), 1, 1024);
    }

    /// What belongs to one kind of topology only.
    fn check_topology(&self, problems: &mut Problems) {
        let topology = &self.topology;
        let from_file = matches!(topology.kind, TopologyKind::Graph | TopologyKind::Matrix);
        let nodes = match topology.kind {
            TopologyKind::Graph => topology.graph.as_ref().map(|graph| graph.nodes()),
            TopologyKind::Matrix => topology.latencies.as_ref().map(|matrix| matrix.nodes()),
            _ => None,
        };
        if from_file && nodes.is_none() {
            let what = "is needed: the file that describes the network, relative to this one";
            problems.add("topology.file", what.to_owned());
        } else if from_file && topology.dims != nodes.map_or(vec![], |nodes| vec![nodes]) {
            problems.add(
                "topology.dims",
                "topology.file says how many nodes there are; leave this out".to_owned(),
            );
        }
        if !from_file && !topology.file.is_empty() {
            problems.add(
                "topology.file",
                "is used with topology.kind = \"graph\" or \"matrix\" only; set one, or leave it \
                 out"
                .to_owned(),
            );
        }
        if topology.uplink_bytes_per_s > 0 {
            if topology.kind == TopologyKind::LeafSpine {
                let rate = topology.uplink_bytes_per_s;
                problems.range("topology.uplink_bytes_per_s", rate, 1000, 1 << 50);
            } else {
                problems.add(
                    "topology.uplink_bytes_per_s",
                    "is used with topology.kind = \"leaf_spine\" only; set that, or leave it out"
                        .to_owned(),
                );
            }
        }
        if topology.kind == TopologyKind::LeafSpine
            && topology.dims.get(2).is_some_and(|spines| !(1..=4096).contains(spines))
        {
            let message = format!("{} spines; allowed are 1 to 4096", topology.dims[2]);
            problems.add("topology.dims", message);
        }
        let diameter = self.diameter();
        if topology.kind == TopologyKind::Graph
            && self.network.buffer_bytes > 0
            && diameter > CHANNELS_MAX.into()
        {
            problems.add(
                "network.buffer_bytes",
                format!(
                    "routes of {diameter} links need as many virtual channels; allowed are \
                     {CHANNELS_MAX}, or unlimited buffers (0)"
                ),
            );
        }
    }

    /// What only some networks can do on the way of a message.
    fn check_forwarding(&self, problems: &mut Problems) {
        let network = &self.network;
        problems.range("network.forward_ns", network.forward_ns, 0, 1_000_000_000);
        problems.range("network.page_forward_ns", network.page_forward_ns, 0, 1_000_000_000);
        let torus = matches!(self.topology.kind, TopologyKind::Torus2d | TopologyKind::Torus3d);
        let whole = network.model == NetworkModel::Fifo
            && network.switching == Switching::StoreAndForward
            && !script::links_fail(self);
        for (field, set) in [
            ("network.forward_ns", network.forward_ns > 0),
            ("network.page_forward_ns", network.page_forward_ns > 0),
        ] {
            if set && !(torus && whole) {
                problems.add(
                    field,
                    "needs a torus whose nodes receive a message before they forward it                      (network.model = \"fifo\", network.switching = \"store_and_forward\"), and whose \
                     links do not fail"
                        .to_owned(),
                );
            }
        }
        let lost = self.confirms()
            || self.failures.mean_between_ns > 0
            || !self.event.is_empty()
            || self.load.trace.is_some();
        if network.fetch_path == FetchPath::Back && lost {
            problems.add(
                "network.fetch_path",
                "pages cannot return over the nodes that passed them on where nodes fail, messages \
                 are confirmed, or a recording is replayed; use \"direct\""
                    .to_owned(),
            );
        }
    }

    /// Settings of one model of the network say nothing with another.
    fn check_packets(&self, problems: &mut Problems) {
        let network = &self.network;
        let packets = network.model == NetworkModel::Packets;
        let set = [
            ("network.packet_bytes", network.packet_bytes > 0, packets, "packets"),
            ("network.buffer_bytes", network.buffer_bytes > 0, packets, "packets"),
            ("network.order", network.order != PacketOrder::default(), packets, "packets"),
            (
                "network.sharing",
                network.sharing != Sharing::default(),
                network.model == NetworkModel::Fair,
                "fair",
            ),
        ];
        for (field, _, _, model) in set.iter().filter(|(_, set, used, _)| *set && !used) {
            problems.add(
                field,
                format!("is used with network.model = \"{model}\" only; set that, or leave it out"),
            );
        }
        if network.packet_bytes > 0 {
            problems.range("network.packet_bytes", network.packet_bytes, 16, 1 << 30);
        }
        let packet_bytes = network.packet_bytes_max(self.node.page_bytes).max(1);
        if network.buffer_bytes > 0 && network.buffer_bytes < packet_bytes {
            problems.add(
                "network.buffer_bytes",
                format!(
                    "{} bytes have no room for a packet of {packet_bytes}, so that none could ever \
                     be sent on; allowed are {packet_bytes} and more, or a smaller \
                     network.packet_bytes",
                    network.buffer_bytes
                ),
            );
        }
        problems.range("network.buffer_bytes", network.buffer_bytes, 0, 1 << 40);
    }

    fn check_classes(&self, problems: &mut Problems) {
        let (node, nodes) = (&self.node, self.nodes());
        problems.range("node.tier_frames", node.tier_frames.into(), 0, 1 << 24);
        problems.range("node.tier_access_ns", node.tier_access_ns, 0, 1_000_000_000);
        problems.range("node.tier_bytes_per_s", node.tier_bytes_per_s, 0, 1 << 50);
        if node.class.len() > 250 {
            let message = format!("{} classes; allowed are up to 250", node.class.len());
            problems.add("node.class", message);
        }
        for (number, class) in node.class.iter().enumerate() {
            let mut refuse = |what: String| problems.add_at("node.class", number, what);
            match classes::ranges(&class.nodes) {
                Err(what) => refuse(format!("nodes: {what}")),
                Ok(ranges) => {
                    let last = ranges.iter().map(|range| *range.end()).max().unwrap_or(0);
                    if u64::from(last) >= nodes {
                        let nodes = nodes.saturating_sub(1);
                        refuse(format!("nodes: there is no node {last}; the last is {nodes}"));
                    }
                }
            }
            let values = [
                ("frames", class.frames.map(u64::from), 2, 1 << 24),
                ("access_ns", class.access_ns, 1, 1_000_000_000),
                ("handler_ns", class.handler_ns, 0, 1_000_000_000),
                ("page_handler_ns", class.page_handler_ns, 0, 1_000_000_000),
                ("tier_frames", class.tier_frames.map(u64::from), 0, 1 << 24),
                ("tier_access_ns", class.tier_access_ns, 0, 1_000_000_000),
                ("tier_bytes_per_s", class.tier_bytes_per_s, 0, 1 << 50),
                ("disk_access_ns", class.disk_access_ns, 0, 10_000_000_000),
                ("disk_bytes_per_s", class.disk_bytes_per_s, 1000, 1 << 50),
                ("disk_parallel", class.disk_parallel.map(u64::from), 1, 1024),
            ];
            for (name, value, least, most) in values {
                if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                    refuse(format!(
                        "{name}: {value} is out of range; allowed are {least} to {most}"
                    ));
                }
            }
        }
        let says = node.class.iter().any(|class| class.disk.is_some());
        if says && !node.class.iter().any(|class| class.disk == Some(true)) {
            problems.add(
                "node.class",
                "no class has a disk, and some have none: pages could not be written anywhere; \
                 set disk = true for one"
                    .to_owned(),
            );
        }
    }

    /// The names in a script are those of a valid machine.
    fn check_script(&self, problems: &mut Problems) {
        if self.event.is_empty() {
            return;
        }
        if self.event.len() > 100_000 {
            let message = format!("{} events; allowed are up to 100000", self.event.len());
            problems.add("event", message);
            return;
        }
        let topology = Topology::new(self, 1, 1);
        let joiners = script::joiners(self, &topology);
        if self.load.trace.is_some() && (script::nodes_fail(self) || !joiners.is_empty()) {
            let what = "nodes do not fail and do not join while a recording is replayed; leave those \
                        events out";
            problems.add("event", what.to_owned());
        }
        if !joiners.is_empty() && !self.confirms() {
            let what = "nodes join where messages are confirmed; set policy.confirm = true, or any of \
                        `faults`";
            problems.add("event", what.to_owned());
        }
        if joiners.len() as u64 >= self.nodes() {
            problems.add("event", "all nodes join; leave one that is there before".to_owned());
        }
        for (number, event) in self.event.iter().enumerate() {
            if let Err(what) = script::step(event, &topology) {
                problems.add_at("event", number, what);
            }
        }
        for (number, what) in script::wrong_joins(self, &topology) {
            problems.add_at("event", number, what);
        }
    }

    fn check_load(&self, problems: &mut Problems) {
        let load = &self.load;
        if let Some(trace) = &load.trace {
            let nodes = self.nodes();
            if let Some(record) = trace.iter().find(|record| u64::from(record.node) >= nodes) {
                problems.add(
                    "topology.dims",
                    format!("the trace has a node {}, the machine only {nodes} nodes", record.node),
                );
            }
            if trace.windows(2).any(|pair| pair[0].time_ns > pair[1].time_ns) {
                problems.add("load", "the trace is not in the order of time".to_owned());
            }
            return;
        }
        if !(load.arrivals_per_s >= 0.001 && load.arrivals_per_s <= 1e9) {
            problems.add(
                "load.arrivals_per_s",
                format!("{} is out of range; allowed are 0.001 to 1000000000", load.arrivals_per_s),
            );
        }
        problems.range("load.threads_mean", load.threads_mean.into(), 1, 1 << 16);
        problems.range("load.threads_sd", load.threads_sd.into(), 0, load.threads_mean.into());
        problems.range("load.accesses", load.accesses.into(), 1, 1 << 30);
        problems.range("load.virtual_pages_max", load.virtual_pages_max.into(), 1, 1 << 24);
        problems.range(
            "load.virtual_pages_min",
            load.virtual_pages_min.into(),
            1,
            load.virtual_pages_max.into(),
        );
        problems.range("load.phase_accesses", load.phase_accesses.into(), 1, 1 << 30);
        problems.range("load.phases_at_once", load.phases_at_once.into(), 1, 64);
        problems.range("load.locality_permille", load.locality_permille.into(), 1, 10_000);
        problems.range("load.reads_per_write", load.reads_per_write.into(), 0, 1_000_000);
    }

    fn check_policy(&self, problems: &mut Problems) {
        let policy = &self.policy;
        if policy.scope == ScopeKind::Domain && self.nodes() > 0 {
            let most = self.diameter();
            if !(1..=most).contains(&u64::from(policy.domain_radius)) {
                let message = format!(
                    "a domain of radius {} is larger than the machine; allowed are 1 to {most} hops",
                    policy.domain_radius
                );
                problems.add("policy.domain_radius", message);
            }
            problems.range("policy.peers_max", policy.peers_max.into(), 1, 4096);
        }
        if policy.scope == ScopeKind::Gradient {
            if !matches!(self.topology.kind, TopologyKind::Torus2d | TopologyKind::Torus3d) {
                problems
                    .add("policy.scope", "gradient needs nodes that are linked to each other; allowed with torus2d and torus3d".to_owned());
            }
            if policy.reservation != ReservationKind::None {
                problems.add(
                    "policy.reservation",
                    "gradient has nothing to reserve; allowed is none".to_owned(),
                );
            }
        }
        if policy.information == InformationKind::Periodic {
            problems.range("policy.period_ns", policy.period_ns, 1000, 1 << 40);
        }
        for (field, marks) in [
            ("policy.high_permille", &policy.high_permille),
            ("policy.low_permille", &policy.low_permille),
        ] {
            if marks.iter().any(|&mark| mark > 1000) || marks.len() > 128 {
                problems.add(field, format!("{marks:?}: allowed are up to 128 numbers from 0 to 1000 (thousandths of a node's memory)"));
            }
        }
        let marks = policy.high_permille.iter().zip(&policy.low_permille);
        if let Some((high, low)) = marks.into_iter().find(|(high, low)| low > high) {
            problems.add(
                "policy.low_permille",
                format!("{low} is above {high} of policy.high_permille: peers would be told of few free frames while there are many; exchange the two"),
            );
        }
        problems.range("policy.attempts_max", policy.attempts_max.into(), 0, 200);
        problems.range("policy.reserve_frames", policy.reserve_frames.into(), 1, 64);
    }

    fn check_run(&self, problems: &mut Problems) {
        let (run, failures) = (&self.run, &self.failures);
        problems.range("run.duration_ns", run.duration_ns, 1, TIME_MAX_NS / 2);
        problems.range("run.warmup_ns", run.warmup_ns, 0, TIME_MAX_NS / 2);
        problems.range("run.stuck_after_ns", run.stuck_after_ns, 1_000_000, TIME_MAX_NS);
        if failures.mean_between_ns > 0 && self.load.trace.is_some() {
            problems.add(
                "failures.mean_between_ns",
                "nodes do not fail while a recording is replayed; allowed is 0".to_owned(),
            );
        } else if failures.mean_between_ns > 0 {
            problems.range("failures.mean_between_ns", failures.mean_between_ns, 1000, TIME_MAX_NS);
        }
        let least = if failures.mean_between_ns > 0 { 1000 } else { 0 };
        problems.range("failures.repair_ns", failures.repair_ns, least, TIME_MAX_NS / 2);
        problems.range("failures.detect_ns", failures.detect_ns, 1, 1 << 40);
        self.check_canary(problems);
        if run.canary != Canary::None && !run.check {
            problems.add(
                "run.canary",
                "a canary without checkers proves nothing; set run.check".to_owned(),
            );
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What is wrong with the changed default configuration.
    pub fn problems(change: impl FnOnce(&mut Config)) -> Vec<String> {
        let mut config = Config::default();
        change(&mut config);
        config.validate().err().unwrap_or_default().iter().map(Problem::to_string).collect()
    }

    #[test]
    fn inverted_watermarks_are_refused() {
        let told = problems(|config| {
            (config.policy.high_permille, config.policy.low_permille) = (vec![100], vec![900]);
        });
        assert!(told.len() == 1 && told[0].contains("900 is above 100"), "{told:?}");
        let equal = |config: &mut Config| {
            config.policy.high_permille = vec![100, 900];
            config.policy.low_permille = vec![100, 900];
        };
        assert_eq!(problems(equal), Vec::<String>::new());
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(problems(|_| ()), [] as [&str; 0]);
    }

    #[test]
    fn all_problems_are_reported_with_allowed_ranges() {
        let found = problems(|config| {
            config.disk.count = 257;
            config.policy.domain_radius = 17;
            config.load.arrivals_per_s = 0.0;
        });
        assert_eq!(
            found,
            [
                "disk.count: 257 disks at 256 nodes; allowed are 1 to 256",
                "load.arrivals_per_s: 0 is out of range; allowed are 0.001 to 1000000000",
                "policy.domain_radius: a domain of radius 17 is larger than the machine; allowed are 1 to 16 hops",
            ]
        );
    }

    #[test]
    fn topology_errors_name_the_expected_dimensions() {
        let found = problems(|config| config.topology.kind = TopologyKind::Torus3d);
        assert_eq!(found, ["topology.dims: 2 numbers given; this topology takes [x, y, z]"]);
        let found = problems(|config| config.topology.dims = vec![0, 16]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("0 nodes are out of range"), "{found:?}");
        let found = problems(|config| config.topology.dims = vec![1 << 17, 4]);
        assert_eq!(found, ["topology.dims: a torus has at most 65536 nodes in one direction"]);
    }

    #[test]
    fn validation_never_panics_on_any_number() {
        for dims in [vec![], vec![u32::MAX; 2], vec![u32::MAX; 3], vec![1, 1, 1]] {
            for kind in [
                TopologyKind::Torus2d,
                TopologyKind::Torus3d,
                TopologyKind::FatTree,
                TopologyKind::Dragonfly,
                TopologyKind::FullBisection,
            ] {
                assert!(
                    !problems(|config| {
                        config.topology.kind = kind;
                        config.topology.dims = dims.clone();
                    })
                    .is_empty()
                );
            }
        }
    }
}
