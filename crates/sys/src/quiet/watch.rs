//! Memory by node and zone, read repeatedly at low cost: files stay open, only the wanted values
//! are parsed, and watermarks are read only when they can have changed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::memory::{
    Counters, MemoryInfo, NodeInfo, ZoneInfo, add_buddyinfo, named, node_dir, nodes_of,
    parse_zoneinfo,
};

/// A file whose content the kernel generates for every read from its start.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
}

impl Source {
    fn open(path: PathBuf) -> io::Result<Source> {
        let file = File::open(&path).map_err(named(&path))?;
        Ok(Source { path, file, bytes: vec![0; 16 << 10] })
    }

    fn read(&mut self) -> io::Result<&str> {
        let mut len = 0;
        loop {
            match self
                .file
                .read_at(&mut self.bytes[len..], len as u64)
                .map_err(named(&self.path))?
            {
                0 => break,
                got => len += got,
            }
            if len == self.bytes.len() {
                self.bytes.resize(len * 2, 0);
            }
        }
        std::str::from_utf8(&self.bytes[..len]).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, self.path.display().to_string())
        })
    }
}

/// The memory of the machine.
#[derive(Debug)]
pub struct MemoryWatch {
    names: &'static [&'static str],
    zoneinfo: Source,
    buddyinfo: Source,
    vmstat: Source,
    nodes: Vec<(u32, Option<Source>)>,
    zones: Vec<ZoneInfo>,
}

impl MemoryWatch {
    /// For the machine whose `/` is `root`; of the counters only those with these names.
    pub fn open(root: &Path, names: &'static [&'static str]) -> io::Result<MemoryWatch> {
        let mut zoneinfo = Source::open(root.join("proc/zoneinfo"))?;
        let zones = parse_zoneinfo(zoneinfo.read()?);
        // A kernel without NUMA has no such files, but one node.
        let node = |node: u32| (node, Source::open(node_dir(root, node).join("vmstat")).ok());
        Ok(MemoryWatch {
            names,
            buddyinfo: Source::open(root.join("proc/buddyinfo"))?,
            vmstat: Source::open(root.join("proc/vmstat"))?,
            nodes: nodes_of(&zones).into_iter().map(node).collect(),
            zoneinfo,
            zones,
        })
    }

    /// Reads the current state; watermarks only if `with_watermarks`, else as last read.
    pub fn look(&mut self, with_watermarks: bool) -> io::Result<MemoryInfo> {
        if with_watermarks {
            self.zones = parse_zoneinfo(self.zoneinfo.read()?);
        }
        add_buddyinfo(&mut self.zones, self.buddyinfo.read()?);
        for zone in &mut self.zones {
            // The kernel counts a page as free if it is in a free block.
            zone.free =
                zone.free_blocks.iter().enumerate().map(|(order, blocks)| blocks << order).sum();
        }
        let counters = Counters::parse_some(self.vmstat.read()?, self.names);
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (node, source) in &mut self.nodes {
            let own = match source {
                Some(source) => Counters::parse_some(source.read()?, self.names),
                None => counters.clone(),
            };
            let zones = self.zones.iter().filter(|zone| zone.node == *node).cloned().collect();
            nodes.push(NodeInfo { node: *node, zones, counters: own });
        }
        Ok(MemoryInfo { nodes, counters })
    }

    /// Current value of one counter of the machine; none if the kernel does not have it.
    pub fn counter(&mut self, name: &str) -> io::Result<Option<u64>> {
        let text = self.vmstat.read()?;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
        Ok(text.lines().find_map(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NAMES: &[&str] = &["nr_inactive_file", "pgsteal_file"];

    #[test]
    fn second_read_sees_changes_and_watermarks_on_demand() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, node) =
            (dir.path().join("proc"), dir.path().join("sys/devices/system/node/node1"));
        fs::create_dir_all(&proc).unwrap();
        fs::create_dir_all(&node).unwrap();
        let write = |high: u32, blocks: &str, stolen: u32| {
            let zone = |node| {
                format!("Node {node}, zone Normal\n  pages free 7\n high {high}\n managed 99\n")
            };
            fs::write(proc.join("zoneinfo"), zone(0) + &zone(1)).unwrap();
            fs::write(
                proc.join("buddyinfo"),
                format!("Node 0, zone Normal {blocks}\nNode 1, zone Normal 1\n"),
            )
            .unwrap();
            fs::write(
                proc.join("vmstat"),
                format!("nr_inactive_file 50\nother 1\npgsteal_file {stolen}\n"),
            )
            .unwrap();
        };
        write(3, "1 2 3", 5);
        fs::write(node.join("vmstat"), "nr_inactive_file 20\n").unwrap();
        let mut watch = MemoryWatch::open(dir.path(), NAMES).unwrap();
        let first = watch.look(false).unwrap();
        assert_eq!((first.nodes[0].zones[0].free, first.nodes[1].zones[0].free), (17, 1));
        assert_eq!(
            (
                first.nodes[0].counters.get("nr_inactive_file"),
                first.nodes[1].counters.get("nr_inactive_file")
            ),
            (50, 20)
        );
        assert!(!first.counters.has("other") && first.counters.get("pgsteal_file") == 5);
        write(4, "0 0 1 1", 600);
        let second = watch.look(false).unwrap();
        assert_eq!(
            (
                second.nodes[0].zones[0].free,
                second.nodes[0].zones[0].high,
                second.counters.get("pgsteal_file")
            ),
            (12, 3, 600)
        );
        assert_eq!(watch.look(true).unwrap().nodes[0].zones[0].high, 4);
        assert_eq!(
            (watch.counter("other").unwrap(), watch.counter("oth").unwrap()),
            (Some(1), None)
        );
    }

    #[test]
    fn watch_agrees_with_a_full_read() {
        let mut watch = MemoryWatch::open(Path::new("/"), NAMES).unwrap();
        let (one, whole) = (watch.look(true).unwrap(), MemoryInfo::read(Path::new("/")).unwrap());
        let names = |info: &MemoryInfo| {
            info.nodes
                .iter()
                .flat_map(|node| node.zones.clone())
                .map(|zone| zone.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&one), names(&whole));
        assert!(one.counters.get("pgsteal_file") <= whole.counters.get("pgsteal_file"));
    }
}
