//! Memory by node and zone: `/proc/zoneinfo`, `/proc/buddyinfo`, `/proc/vmstat`,
//! `/sys/devices/system/node`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::affinity::parse_list;

/// Number of orders of free blocks that are read.
pub const ORDERS: usize = 11;

/// One zone, in pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ZoneInfo {
    pub node: u32,
    pub name: String,
    pub free: u64,
    pub min: u64,
    pub low: u64,
    pub high: u64,
    pub managed: u64,
    /// The largest entry of `protection`: what ordinary allocations must leave free.
    pub reserve: u64,
    pub free_blocks: [u64; ORDERS],
}

/// Names and numbers, one pair per line (`/proc/vmstat` and a node's `vmstat`). Missing names count
/// as 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters(BTreeMap<String, u64>);

/// A node and its counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeInfo {
    pub node: u32,
    pub zones: Vec<ZoneInfo>,
    pub counters: Counters,
}

/// The whole machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryInfo {
    pub nodes: Vec<NodeInfo>,
    pub counters: Counters,
}

impl Counters {
    /// Parses lines `name number`.
    pub fn parse(text: &str) -> Counters {
        let pair = |line: &str| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), number.trim().parse().ok()?))
        };
        Counters(text.lines().filter_map(pair).collect())
    }

    /// The same for these names only.
    pub fn parse_some(text: &str, names: &[&str]) -> Counters {
        let pair = |line: &str| {
            let (name, number) = line.split_once(' ')?;
            let name = names.iter().find(|&&wanted| wanted == name)?;
            Some(((*name).to_owned(), number.trim().parse().ok()?))
        };
        Counters(text.lines().filter_map(pair).collect())
    }

    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Parses `Node 0, zone   Normal`, and returns the rest of the line.
fn node_and_zone(line: &str) -> Option<(u32, &str, &str)> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
    let rest = rest.trim_start();
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((node.trim().parse().ok()?, name, rest))
}

/// Populated zones, from `/proc/zoneinfo`.
pub fn parse_zoneinfo(text: &str) -> Vec<ZoneInfo> {
    let mut zones: Vec<ZoneInfo> = Vec::new();
    // The per-CPU pagesets have lines `high:` too; they come last.
    let mut in_sets = false;
    for line in text.lines() {
        if let Some((node, name, _)) = node_and_zone(line) {
            zones.push(ZoneInfo { node, name: name.to_owned(), ..ZoneInfo::default() });
            in_sets = false;
            continue;
        }
        let Some(zone) = zones.last_mut() else { continue };
        let line = line.trim();
        in_sets |= line == "pagesets";
        if let Some(protection) = line.strip_prefix("protection:") {
            let numbers = protection
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|number| number.parse().ok());
            zone.reserve = numbers.max().unwrap_or(0);
        }
        let line = line.strip_prefix("pages ").unwrap_or(line).trim_start();
        let Some((key, value)) = line.split_once(' ') else { continue };
        let Ok(value) = value.trim().parse() else { continue };
        match key {
            _ if in_sets => {}
            "free" => zone.free = value,
            "min" => zone.min = value,
            "low" => zone.low = value,
            "high" => zone.high = value,
            "managed" => zone.managed = value,
            _ => {}
        }
    }
    zones.retain(|zone| zone.managed > 0);
    zones
}

/// Adds the free blocks of `/proc/buddyinfo`.
pub fn add_buddyinfo(zones: &mut [ZoneInfo], text: &str) {
    for (node, name, rest) in text.lines().filter_map(node_and_zone) {
        if let Some(zone) = zones.iter_mut().find(|zone| zone.node == node && zone.name == name) {
            for (blocks, number) in zone.free_blocks.iter_mut().zip(rest.split_whitespace()) {
                *blocks = number.parse().unwrap_or(0);
            }
        }
    }
}

/// The nodes that have zones.
pub(super) fn nodes_of(zones: &[ZoneInfo]) -> Vec<u32> {
    let mut numbers: Vec<u32> = zones.iter().map(|zone| zone.node).collect();
    numbers.dedup();
    numbers
}

pub(super) fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn text_of(path: PathBuf) -> io::Result<String> {
    fs::read_to_string(&path).map_err(named(&path))
}

impl MemoryInfo {
    /// Reads it below `root`, which is `/` except in tests.
    pub fn read(root: &Path) -> io::Result<MemoryInfo> {
        let mut zones = parse_zoneinfo(&text_of(root.join("proc/zoneinfo"))?);
        add_buddyinfo(&mut zones, &text_of(root.join("proc/buddyinfo"))?);
        let counters = Counters::parse(&text_of(root.join("proc/vmstat"))?);
        let node = |node: u32| {
            let own = fs::read_to_string(node_dir(root, node).join("vmstat"));
            // A kernel without NUMA has no such directory, but one node.
            let counters = own.map_or_else(|_| counters.clone(), |text| Counters::parse(&text));
            NodeInfo {
                node,
                zones: zones.iter().filter(|zone| zone.node == node).cloned().collect(),
                counters,
            }
        };
        Ok(MemoryInfo { nodes: nodes_of(&zones).into_iter().map(node).collect(), counters })
    }
}

/// Time in which threads waited for memory since boot (`/proc/pressure/memory`, Linux 4.20,
/// `CONFIG_PSI`): for reclaim, or for a page that was reclaimed too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pressure {
    /// At least one thread waited.
    pub some_us: u64,
    /// All non-idle threads waited.
    pub full_us: u64,
}

/// Reads it below `root`, which is `/` except in tests. None if the kernel does not support it, or
/// was booted with `psi=0`.
pub fn pressure(root: &Path) -> Option<Pressure> {
    let text = fs::read_to_string(root.join("proc/pressure/memory")).ok()?;
    let total_us = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        line.rsplit_once("total=")?.1.trim().parse().ok()
    };
    Some(Pressure { some_us: total_us("some")?, full_us: total_us("full")? })
}

/// Share of the last ten seconds, 0 to 1, in which threads waited for memory.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RecentPressure {
    /// At least one thread waited.
    pub some: f64,
    /// All non-idle threads waited.
    pub full: f64,
}

/// Reads it below `root`, as [`pressure`] does.
pub fn recent_pressure(root: &Path) -> Option<RecentPressure> {
    let text = fs::read_to_string(root.join("proc/pressure/memory")).ok()?;
    let share = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        let percent = line.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
        Some(percent.parse::<f64>().ok()? / 100.0)
    };
    Some(RecentPressure { some: share("some")?, full: share("full")? })
}

/// The directory of a node.
pub fn node_dir(root: &Path, node: u32) -> PathBuf {
    root.join(format!("sys/devices/system/node/node{node}"))
}

/// Processors of a node; none if the kernel does not report them.
pub fn node_cpus(root: &Path, node: u32) -> Option<Vec<usize>> {
    parse_list(&fs::read_to_string(node_dir(root, node).join("cpulist")).ok()?)
}

/// Compacts the memory of a node (`/sys/devices/system/node/nodeN/compact`) and waits for the
/// result.
pub fn compact(root: &Path, node: u32) -> io::Result<()> {
    let path = node_dir(root, node).join("compact");
    fs::write(&path, "1").map_err(named(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONEINFO: &str = "\
Node 0, zone    DMA32
  per-node stats
      nr_inactive_file 77
  pages free     772808
        min      2542
        low      3314
        high     4086
        managed  772808
        protection: (0, 0, 17024, 17024, 17024)
      nr_free_pages 772808
  pagesets
    cpu: 0
              count:    5
              high:     1657
Node 0, zone   Normal
  pages free     85998
        min      14340
        low      18698
        high     23056
        managed  4358144
        protection: (0, 0, 0, 0, 0)
Node 0, zone  Movable
  pages free     0
        managed  0
        protection: (0, 0, 0, 0, 0)
Node 1, zone   Normal
  pages free     7
        managed  9
";

    #[test]
    fn zones_are_parsed_with_watermarks_and_free_blocks() {
        let mut zones = parse_zoneinfo(ZONEINFO);
        add_buddyinfo(
            &mut zones,
            "Node 0, zone    DMA32      2      3      0\nNode 1, zone   Normal 1 2 3 4 5 6 7 8 9 10 11 12\nnonsense\n",
        );
        assert_eq!(zones.len(), 3);
        let dma32 = &zones[0];
        assert_eq!(
            (dma32.free, dma32.min, dma32.low, dma32.high, dma32.reserve),
            (772_808, 2542, 3314, 4086, 17_024)
        );
        assert_eq!(dma32.free_blocks[..3], [2, 3, 0]);
        assert_eq!(
            (zones[1].name.as_str(), zones[1].high, zones[1].reserve),
            ("Normal", 23_056, 0)
        );
        assert_eq!((zones[2].node, zones[2].free_blocks[10]), (1, 11));
    }

    #[test]
    fn pressure_is_read_where_available() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(pressure(root.path()), None);
        fs::create_dir_all(root.path().join("proc/pressure")).unwrap();
        let file = root.path().join("proc/pressure/memory");
        let text = "some avg10=0.12 avg60=0.00 avg300=0.00 total=94512\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=81\n";
        fs::write(&file, text).unwrap();
        assert_eq!(pressure(root.path()), Some(Pressure { some_us: 94512, full_us: 81 }));
        let recent = recent_pressure(root.path()).unwrap();
        assert!((recent.some - 0.0012).abs() < 1e-9 && recent.full == 0.0, "{recent:?}");
        fs::write(&file, "some avg10=0.12\n").unwrap();
        assert_eq!(pressure(root.path()), None);
    }

    #[test]
    fn this_machine_has_zones_and_counters() {
        let info = MemoryInfo::read(Path::new("/")).unwrap();
        assert!(!info.nodes.is_empty());
        assert!(info.nodes.iter().all(|node| !node.zones.is_empty()));
        assert!(
            info.counters.has("nr_free_pages") && info.nodes[0].counters.has("nr_inactive_file")
        );
    }
}
