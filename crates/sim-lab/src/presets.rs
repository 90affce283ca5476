//! Predefined clusters: the paper's, and present-day ones.
//!
//! Figures of present-day networks and disks are of the order that vendors and published
//! measurements give (a switch forwards a frame in 0.1 to 0.5 µs, a one-sided read over InfiniBand
//! takes 1 to 2 µs and one over TCP tens of µs, an NVMe drive answers in 80 µs and a SATA one in
//! 150 µs); they are meant to be replaced by the user's own.
//!
//! Memory is scaled down, as in the paper (section 3): blocks are 2 MiB, and a node has one frame
//! for 64, 128 or 256 of its own. Filling 1,024 nodes of 1 TiB block by block would take half a
//! billion events before the first block is evicted. A file that sets `node.memory_bytes` gets
//! every frame.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hiroma_sim::{
    Config, DiskConfig, NetworkConfig, NetworkModel, NodeConfig, Switching, TopologyConfig,
    TopologyKind,
};

use crate::keys::{self, Key};

/// Width of the comments in a preset's file.
const COLUMNS: usize = 100;

/// A predefined cluster.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name in files.
    pub name: &'static str,
    /// Its description.
    pub title: &'static str,
    build: fn() -> Config,
}

/// Bytes of a block in present-day clusters.
const BLOCK_BYTES: u64 = 2 << 20;

/// All presets.
pub const PRESETS: [Preset; 9] = [
    Preset {
        name: "paper",
        title: "16 x 16 torus, 100 MB/s, 16 disks, 64 pages of 8 KB a node",
        build: Config::default,
    },
    Preset {
        name: "paper-best",
        title: "the same under the reading that explains most of the paper, at its middle rate",
        build: crate::paper::cluster,
    },
    Preset {
        name: "ethernet-10g-sata",
        title: "1,024 nodes of 64 GiB (1:64), 10 Gb/s Ethernet, a SATA disk for 16 nodes",
        build: || modern(TopologyKind::FatTree, &ETHERNET_10G, 512, &SATA),
    },
    Preset {
        name: "ethernet-25g",
        title: "1,024 nodes of 64 GiB (1:64), 25 Gb/s Ethernet, an NVMe disk for 16 nodes",
        build: || modern(TopologyKind::FatTree, &ETHERNET_25G, 512, &NVME),
    },
    Preset {
        name: "ethernet-100g",
        title: "1,024 nodes of 256 GiB (1:128), 100 Gb/s Ethernet, an NVMe disk for 16 nodes",
        build: || modern(TopologyKind::FatTree, &ETHERNET_100G, 1024, &NVME),
    },
    Preset {
        name: "ethernet-400g",
        title: "1,024 nodes of 1 TiB (1:256), 400 Gb/s Ethernet, an NVMe disk for 16 nodes",
        build: || modern(TopologyKind::FatTree, &ETHERNET_400G, 2048, &NVME),
    },
    Preset {
        name: "infiniband-hdr",
        title: "1,024 nodes of 256 GiB (1:128), 200 Gb/s InfiniBand in a dragonfly, an NVMe disk for 16 nodes",
        build: || modern(TopologyKind::Dragonfly, &INFINIBAND_HDR, 1024, &NVME),
    },
    Preset {
        name: "infiniband-ndr",
        title: "1,024 nodes of 512 GiB (1:256), 400 Gb/s InfiniBand in a dragonfly, an NVMe disk for 16 nodes",
        build: || modern(TopologyKind::Dragonfly, &INFINIBAND_NDR, 1024, &NVME),
    },
    Preset {
        name: "leaf-spine",
        title: "1,024 nodes of 256 GiB (1:128), 100 Gb/s in packets, 32 nodes at each of 32 leaves, oversubscribed 3:1",
        build: leaf_spine,
    },
];

/// Kinds of disks, by their names in files.
pub const MEDIA: [(&str, Medium); 3] = [("nvme", NVME), ("sata", SATA), ("hdd", HDD)];

/// A kind of disk.
#[derive(Clone, Copy, Debug)]
pub struct Medium {
    access_ns: u64,
    bytes_per_s: u64,
    parallel: u32,
}

const NVME: Medium = Medium { access_ns: 80_000, bytes_per_s: 3_200_000_000, parallel: 8 };
const SATA: Medium = Medium { access_ns: 150_000, bytes_per_s: 520_000_000, parallel: 1 };
const HDD: Medium = Medium { access_ns: 8_000_000, bytes_per_s: 200_000_000, parallel: 1 };

struct Network {
    bits_per_s: u64,
    /// Of cable and switch.
    latency_ns: u64,
    /// Work of the receiving node for one message.
    handler_ns: u64,
}

const ETHERNET_10G: Network =
    Network { bits_per_s: 10_000_000_000, latency_ns: 1_000, handler_ns: 10_000 };
const ETHERNET_25G: Network =
    Network { bits_per_s: 25_000_000_000, latency_ns: 800, handler_ns: 10_000 };
const ETHERNET_100G: Network =
    Network { bits_per_s: 100_000_000_000, latency_ns: 600, handler_ns: 5_000 };
const ETHERNET_400G: Network =
    Network { bits_per_s: 400_000_000_000, latency_ns: 600, handler_ns: 3_000 };
const INFINIBAND_HDR: Network =
    Network { bits_per_s: 200_000_000_000, latency_ns: 130, handler_ns: 1_000 };
const INFINIBAND_NDR: Network =
    Network { bits_per_s: 400_000_000_000, latency_ns: 130, handler_ns: 1_000 };

/// The preset with this name.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// All names, for messages.
pub fn preset_names() -> String {
    PRESETS.map(|preset| preset.name).join(", ")
}

impl Preset {
    /// The cluster as a configuration.
    pub fn config(&self) -> Config {
        (self.build)()
    }

    /// The cluster as a file with all its settings, each with what it means. Those that it leaves
    /// unset are comments at the end of their tables.
    pub fn to_toml(&self) -> String {
        let settings =
            toml::to_string(&self.config()).expect("a configuration has no values that TOML lacks");
        let mut keys: BTreeMap<String, Key> =
            keys::keys().into_iter().map(|key| (key.path.clone(), key)).collect();
        let mut text = format!("# {}\n\n", self.title);
        let mut table = "";
        for line in settings.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                text.push_str(&unset(&mut keys, table));
                table = name;
            } else if let Some((name, _)) = line.split_once(" = ") {
                let path = path_in(table, name);
                if keys.get(&path).is_some_and(is_list) {
                    // An empty one: it is shown with its keys.
                    continue;
                }
                text.extend(keys.remove(&path).as_ref().map(comment));
            } else if line.is_empty() {
                // It comes after what is unset.
                continue;
            }
            text.push_str(line);
            text.push('\n');
        }
        text + &unset(&mut keys, table) + &lists(&mut keys)
    }
}

fn path_in(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

/// Whether a key stands for a list of tables.
fn is_list(key: &Key) -> bool {
    key.kind.contains("[[")
}

/// The keys of a table that are left, as comments; removes them.
fn unset(keys: &mut BTreeMap<String, Key>, table: &str) -> String {
    let mut text = String::new();
    keys.retain(|path, key| {
        let (of, name) = path.rsplit_once('.').unwrap_or(("", path));
        if of != table || is_list(key) {
            return true;
        }
        let value = if key.default.is_empty() { "…" } else { &key.default };
        let _ = writeln!(text, "{}#{name} = {value}", comment(key));
        false
    });
    text + "\n"
}

/// The lists of tables, all of which are empty, as comments.
fn lists(keys: &mut BTreeMap<String, Key>) -> String {
    let lists: Vec<Key> = keys.values().filter(|key| is_list(key)).cloned().collect();
    let of = |list: &Key| {
        let head = format!("{}#[[{}]]\n", comment(list), list.path);
        head + &unset(keys, &list.path)
    };
    let text: String = lists.iter().map(of).collect();
    text.trim_end().to_owned() + "\n"
}

/// What a key means, and the words that it may have, as lines of comment.
fn comment(key: &Key) -> String {
    let words: Vec<&str> = key.words.iter().map(|(word, _)| word.as_str()).collect();
    let mut about = key.about.clone();
    if !words.is_empty() {
        let _ = write!(about, " One of: {}.", words.join(", "));
    }
    let options = textwrap::Options::new(COLUMNS).initial_indent("# ").subsequent_indent("# ");
    textwrap::fill(&about, options) + "\n"
}

impl Medium {
    /// The kind in words.
    pub fn describe(&self) -> String {
        let Medium { access_ns, bytes_per_s, parallel } = self;
        let accesses = if *parallel == 1 { "access" } else { "accesses" };
        format!(
            "{} µs and {} MB/s, {parallel} {accesses} at the same time",
            access_ns / 1000,
            bytes_per_s / 1_000_000
        )
    }

    /// Sets the disks of a machine to this kind.
    pub fn apply(&self, disk: &mut DiskConfig) {
        (disk.access_ns, disk.bytes_per_s, disk.parallel) =
            (self.access_ns, self.bytes_per_s, self.parallel);
    }
}

fn modern(kind: TopologyKind, network: &Network, frames: u32, medium: &Medium) -> Config {
    let mut config = Config {
        topology: TopologyConfig {
            kind,
            dims: dims_of(kind, 1024).expect("1,024 nodes make every shape"),
            ..TopologyConfig::default()
        },
        network: NetworkConfig {
            bytes_per_s: network.bits_per_s / 8,
            latency_ns: network.latency_ns,
            hop_overhead_ns: 0,
            page_overhead_ns: 0,
            page_handler_ns: 0,
            handler_ns: network.handler_ns,
            message_bytes: 128,
            switching: Switching::CutThrough,
            multicast: false,
            free_information: false,
            ..NetworkConfig::default()
        },
        ..Config::default()
    };
    config.disk.count = 64;
    medium.apply(&mut config.disk);
    set_load(&mut config, frames);
    config
}

/// Leaves with a third of the bandwidth up: pages are cut into pieces of 64 KiB, small
/// messages go first, and a switch has 1 MiB for each of its ports.
fn leaf_spine() -> Config {
    let mut config = modern(TopologyKind::LeafSpine, &ETHERNET_100G, 1024, &NVME);
    config.topology.dims = vec![32, 32, 8];
    // 32 nodes of 100 Gb/s share 8 links of 133 Gb/s.
    config.topology.uplink_bytes_per_s = ETHERNET_100G.bits_per_s / 8 * 32 / 8 / 3;
    config.network.model = NetworkModel::Packets;
    (config.network.packet_bytes, config.network.buffer_bytes) = (65_536, 1 << 20);
    config
}

/// Gives every node `frames` blocks, and scales the load to them as the paper's is to its 64 pages:
/// programs are up to twice as large as a node's memory, and threads keep three tenths of the nodes
/// busy.
fn set_load(config: &mut Config, frames: u32) {
    // The content of 2 MiB is worked on for a while before the next block: 100 us at 20 GB/s.
    config.node =
        NodeConfig { frames, page_bytes: BLOCK_BYTES, access_ns: 100_000, ..config.node.clone() };
    let nodes = config.nodes() as f64;
    let load = &mut config.load;
    load.virtual_pages_max = frames * 2;
    load.accesses = frames * 8;
    load.phase_accesses = frames;
    let thread_ns = u64::from(load.accesses) * config.node.access_ns;
    load.arrivals_per_s =
        (0.3 * nodes / (f64::from(load.threads_mean) * thread_ns as f64 / 1e9)).round();
    (config.run.warmup_ns, config.run.duration_ns) = (thread_ns, thread_ns);
    // With the paper's 1 ms, each of 1,024 nodes would receive 128,000 messages/s: more than it can
    // handle, and more than can be simulated in a minute.
    config.policy.period_ns = thread_ns / 8;
}

/// The dimensions of a machine of `nodes` nodes in this shape, as square as possible; none if the
/// number does not fit.
pub fn dims_of(kind: TopologyKind, nodes: u64) -> Option<Vec<u32>> {
    let nodes = u32::try_from(nodes).ok().filter(|&nodes| nodes > 0)?;
    // The largest divisor that is not above the root.
    let split = |nodes: u32, root: f64| {
        (1..=(root.round() as u32).max(1)).rev().find(|part| nodes % part == 0).unwrap_or(1)
    };
    Some(match kind {
        TopologyKind::FullBisection => vec![nodes],
        // Their files say it.
        TopologyKind::Graph | TopologyKind::Matrix => return None,
        TopologyKind::LeafSpine => {
            // Three to one: a third as many spines as nodes at a leaf.
            let leaf = split(nodes, f64::from(nodes).sqrt().min(48.0));
            vec![leaf, nodes / leaf, leaf.div_ceil(3)]
        }
        TopologyKind::Torus2d => {
            let width = split(nodes, f64::from(nodes).sqrt());
            vec![nodes / width, width]
        }
        TopologyKind::Torus3d => {
            let z = split(nodes, f64::from(nodes).cbrt());
            let y = split(nodes / z, f64::from(nodes / z).sqrt());
            vec![nodes / z / y, y, z]
        }
        TopologyKind::FatTree => {
            let leaf = split(nodes, f64::from(nodes).sqrt().min(32.0));
            let pod = split(nodes / leaf, f64::from(nodes / leaf).sqrt());
            vec![leaf, nodes / leaf / pod, pod]
        }
        TopologyKind::Dragonfly => {
            // With a nodes per router, 2a routers per group and up to 2a^2 groups, all links are
            // used equally (Kim et al., 2008).
            let router = split(nodes, (f64::from(nodes) / 4.0).powf(0.25).max(1.0));
            let group = split(
                nodes / router,
                (f64::from(router) * 4.0).max(f64::from(nodes / router).sqrt()),
            );
            vec![router, group, nodes / router / group]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_with_a_unique_name() {
        for preset in &PRESETS {
            assert_eq!(preset.config().validate(), Ok(()), "{}", preset.name);
            assert_eq!(PRESETS.iter().filter(|other| other.name == preset.name).count(), 1);
            assert!(
                preset.name.starts_with("paper") || preset.config().nodes() == 1024,
                "{}",
                preset.name
            );
        }
        assert_eq!(preset("paper").unwrap().config(), Config::default());
        assert!(preset("ethernet-1t").is_none());
    }

    #[test]
    fn preset_round_trips_through_toml() {
        for preset in &PRESETS {
            let settings = crate::settings::Settings::parse("p.toml", &preset.to_toml()).unwrap();
            assert_eq!(
                crate::cluster::cluster_of(settings),
                Ok(preset.config()),
                "{}",
                preset.name
            );
        }
    }

    #[test]
    fn every_setting_is_in_a_preset_with_what_it_means() {
        for preset in &PRESETS {
            let text = preset.to_toml();
            let (mut above, mut table, mut told) = ("", "", Vec::new());
            for line in text.lines().skip(1) {
                let plain = line.strip_prefix('#').unwrap_or(line);
                let is_comment = line.starts_with("# ");
                if let Some(name) =
                    plain.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]"))
                {
                    assert!(above.starts_with("# "), "{}: `{line}` after `{above}`", preset.name);
                    told.push(name.to_owned());
                    table = name;
                } else if let Some(name) = plain.strip_prefix('[') {
                    table = name.trim_end_matches(']');
                } else if let Some((name, _)) = plain.split_once(" = ").filter(|_| !is_comment) {
                    assert!(above.starts_with("# "), "{}: `{line}` after `{above}`", preset.name);
                    told.push(path_in(table, name));
                }
                assert!(line.chars().count() <= COLUMNS || !is_comment, "{line}");
                above = line;
            }
            told.sort();
            let mut all: Vec<String> = keys::keys().into_iter().map(|key| key.path).collect();
            all.sort();
            assert_eq!(told, all, "{}", preset.name);
        }
    }

    #[test]
    fn memory_matches_the_scaled_title() {
        for (name, gib, scale) in
            [("ethernet-25g", 64, 64), ("ethernet-400g", 1024, 256), ("infiniband-hdr", 256, 128)]
        {
            let preset = preset(name).unwrap();
            let node = preset.config().node;
            assert_eq!(u64::from(node.frames) * node.page_bytes * scale, gib << 30, "{name}");
            assert!(preset.title.contains(&format!("(1:{scale})")), "{name}");
        }
    }

    #[test]
    fn topologies_hold_exactly_the_requested_nodes() {
        for kind in [
            TopologyKind::Torus2d,
            TopologyKind::Torus3d,
            TopologyKind::FatTree,
            TopologyKind::Dragonfly,
            TopologyKind::FullBisection,
            TopologyKind::LeafSpine,
        ] {
            for nodes in [4, 256, 1000, 4096, 100_000, 1_000_000] {
                let dims = dims_of(kind, nodes).unwrap();
                let topology = TopologyConfig { kind, dims, ..TopologyConfig::default() };
                let mut config = Config { topology, ..Config::default() };
                config.policy.domain_radius = 1;
                config.disk.count = 1;
                assert_eq!(config.nodes(), nodes, "{kind:?} {:?}", config.topology.dims);
                assert_eq!(config.validate(), Ok(()), "{kind:?} {:?}", config.topology.dims);
            }
        }
        assert_eq!(dims_of(TopologyKind::Torus2d, 256), Some(vec![16, 16]));
        assert_eq!(dims_of(TopologyKind::Torus2d, 0), None);
    }
}
