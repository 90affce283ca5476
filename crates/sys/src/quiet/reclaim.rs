//! Requesting reclaim of file cache from the kernel: by node (Linux 6.17), or through the root
//! control group (Linux 5.19).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::memory::{named, node_dir};

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimed {
    /// The requested amount, as far as the kernel reports; counters show whether that is true.
    Whole,
    /// Less: the kernel gave up (`EAGAIN`), or is reclaiming there already (`EBUSY`).
    Short,
}

/// A mechanism to reclaim file cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mechanism {
    /// `/sys/devices/system/node/nodeN/reclaim` below this root, restricted to the file cache by
    /// `swappiness=0`.
    Node(PathBuf),
    /// `memory.reclaim` of a control group and its descendants (cgroup v2), on any node. Kernels
    /// before 6.9 do not accept `swappiness`.
    Group { file: PathBuf, takes_swappiness: bool },
}

impl Mechanism {
    /// The best mechanism of the machine whose `/` is `root`, or the reasons why there is none: a
    /// line for each.
    pub fn probe(root: &Path, nodes: &[u32]) -> Result<Mechanism, Vec<String>> {
        let by_node =
            nodes.iter().try_for_each(|&node| writable(&node_dir(root, node).join("reclaim")));
        let Err(no_node) = by_node else { return Ok(Mechanism::Node(root.to_owned())) };
        Mechanism::group(root).map_err(|no_group| {
            vec![format!("node reclaim (Linux 6.17, root): {no_node}"), no_group]
        })
    }

    fn group(root: &Path) -> Result<Mechanism, String> {
        let why = |what: String| format!("memory.reclaim (Linux 5.19, cgroup v2, root): {what}");
        let mounts = fs::read_to_string(root.join("proc/self/mounts"))
            .map_err(|error| why(format!("/proc/self/mounts: {error}")))?;
        let group = cgroup2(&mounts).ok_or_else(|| why("no cgroup v2 is mounted".to_owned()))?;
        let group = root.join(group.trim_start_matches('/'));
        let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
        if !controllers.split_whitespace().any(|name| name == "memory") {
            let first = mounts
                .lines()
                .any(|line| line.split(' ').nth(2) == Some("cgroup") && line.contains("memory"));
            let place =
                if first { "it belongs to a hierarchy of cgroup v1" } else { "it is switched off" };
            return Err(why(format!("{} has no memory controller: {place}", group.display())));
        }
        let file = group.join("memory.reclaim");
        writable(&file).map_err(|error| why(error.to_string()))?;
        // One byte rounds down to zero pages: nothing is reclaimed.
        let takes_swappiness = fs::write(&file, "1 swappiness=0").is_ok();
        let swaps = fs::read_to_string(root.join("proc/swaps")).unwrap_or_default();
        if !takes_swappiness && swaps.lines().count() > 1 {
            return Err(why(
                "before Linux 6.9 it would swap programs out too, and there is swap".to_owned()
            ));
        }
        Ok(Mechanism::Group { file, takes_swappiness })
    }

    /// A one-word name for figures and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Mechanism::Node(_) => "node_reclaim",
            Mechanism::Group { .. } => "memory_reclaim",
        }
    }

    /// Requests reclaim of this many bytes of file cache, on `node` if that can be chosen, and
    /// waits until it is done.
    pub fn ask(&self, node: u32, bytes: u64) -> io::Result<Reclaimed> {
        let (path, only_files) = match self {
            Mechanism::Node(root) => (node_dir(root, node).join("reclaim"), true),
            Mechanism::Group { file, takes_swappiness } => (file.clone(), *takes_swappiness),
        };
        let request = format!("{bytes}{}", if only_files { " swappiness=0" } else { "" });
        outcome(fs::write(&path, request)).map_err(named(&path))
    }
}

fn outcome(answer: io::Result<()>) -> io::Result<Reclaimed> {
    use io::ErrorKind::{ResourceBusy, WouldBlock};
    match answer {
        Ok(()) => Ok(Reclaimed::Whole),
        Err(error) if matches!(error.kind(), WouldBlock | ResourceBusy) => Ok(Reclaimed::Short),
        Err(error) => Err(error),
    }
}

/// Whether an error of [`Mechanism::ask`] means that the kernel will never do it: it does not know
/// the request, or does not allow it.
pub fn is_final(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied)
}

impl std::fmt::Display for Mechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mechanism::Node(_) => {
                write!(f, "node reclaim (/sys/devices/system/node/nodeN/reclaim), file cache only")
            }
            Mechanism::Group { file, takes_swappiness: true } => {
                write!(f, "{}, file cache only", file.display())
            }
            Mechanism::Group { file, .. } => {
                write!(f, "{}; there is no swap, so file cache only", file.display())
            }
        }
    }
}

fn writable(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path).map(drop).map_err(named(path))
}

/// The mount point of cgroup v2.
fn cgroup2(mounts: &str) -> Option<&str> {
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .map(|fields| fields[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with a cgroup v2 at `/cg` and these controllers, and with the file if requested.
    fn machine(mounts: &str, controllers: &str, with_file: bool) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in
            ["proc/self", "cg", "sys/devices/system/node/node0", "sys/devices/system/node/node1"]
        {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("proc/self/mounts"), mounts).unwrap();
        fs::write(dir.path().join("proc/swaps"), "Filename Type Size Used Priority\n").unwrap();
        fs::write(dir.path().join("cg/cgroup.controllers"), controllers).unwrap();
        if with_file {
            fs::write(dir.path().join("cg/memory.reclaim"), "").unwrap();
        }
        dir
    }

    const SECOND: &str = "proc /proc proc rw 0 0\ncgroup2 /cg cgroup2 rw 0 0\n";

    #[test]
    fn cgroup_is_used_unless_every_node_supports_reclaim() {
        let dir = machine(SECOND, "cpu memory\n", true);
        let node =
            |number: u32| dir.path().join(format!("sys/devices/system/node/node{number}/reclaim"));
        fs::write(node(0), "").unwrap();
        let group = Mechanism::probe(dir.path(), &[0, 1]).unwrap();
        assert_eq!(group.name(), "memory_reclaim");
        assert_eq!(group.ask(1, 4096).unwrap(), Reclaimed::Whole);
        assert_eq!(
            fs::read_to_string(dir.path().join("cg/memory.reclaim")).unwrap(),
            "4096 swappiness=0"
        );
        fs::write(node(1), "").unwrap();
        let by_node = Mechanism::probe(dir.path(), &[0, 1]).unwrap();
        assert_eq!(by_node, Mechanism::Node(dir.path().to_owned()));
        assert_eq!(by_node.ask(1, 8192).unwrap(), Reclaimed::Whole);
        assert_eq!(fs::read_to_string(node(1)).unwrap(), "8192 swappiness=0");
    }

    #[test]
    fn only_what_the_kernel_never_does_is_final() {
        use rustix::io::Errno;
        let of = |errno: Errno| outcome(Err(errno.into()));
        for errno in [Errno::AGAIN, Errno::BUSY] {
            assert_eq!(of(errno).unwrap(), Reclaimed::Short);
        }
        for (errno, expected) in [
            (Errno::INVAL, true),
            (Errno::PERM, true),
            (Errno::ACCESS, true),
            (Errno::NOMEM, false),
            (Errno::NOENT, false),
            (Errno::IO, false),
        ] {
            // With the name of the file, as `ask` returns it.
            let error = named(Path::new("reclaim"))(of(errno).unwrap_err());
            assert_eq!(is_final(&error), expected, "{error}");
        }
    }

    #[test]
    fn missing_requirements_are_reported() {
        let first =
            "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /cg cgroup2 rw 0 0\n";
        for (mounts, controllers, with_file, expected) in [
            ("", "", false, "no cgroup v2 is mounted"),
            (first, "", false, "belongs to a hierarchy of cgroup v1"),
            (SECOND, "cpu", false, "it is switched off"),
            (SECOND, "memory", false, "memory.reclaim: No such file"),
        ] {
            let dir = machine(mounts, controllers, with_file);
            let reasons = Mechanism::probe(dir.path(), &[0]).unwrap_err();
            assert_eq!(reasons.len(), 2);
            assert!(
                reasons[0].contains("Linux 6.17") && reasons[1].contains(expected),
                "{reasons:?}"
            );
        }
    }

    #[test]
    fn kernel_without_swappiness_is_used_only_without_swap() {
        // Writes to this file fail, as a kernel before 6.9 refuses `swappiness`.
        let dir = machine(SECOND, "memory", false);
        std::os::unix::fs::symlink("/dev/full", dir.path().join("cg/memory.reclaim")).unwrap();
        let mechanism = Mechanism::probe(dir.path(), &[0]).unwrap();
        assert!(
            matches!(mechanism, Mechanism::Group { takes_swappiness: false, .. }),
            "{mechanism}"
        );
        // Any configured swap counts, however full it is.
        fs::write(
            dir.path().join("proc/swaps"),
            "Filename Type Size Used Priority\n/swap file 1024 1024 -2\n",
        )
        .unwrap();
        let reasons = Mechanism::probe(dir.path(), &[0]).unwrap_err();
        assert!(reasons[1].contains("there is swap"), "{reasons:?}");
    }

    #[test]
    fn this_machine_reports_its_mechanism() {
        match Mechanism::probe(Path::new("/"), &[0]) {
            Ok(mechanism) => assert!(!mechanism.to_string().is_empty()),
            Err(reasons) => assert_eq!(reasons.len(), 2, "{reasons:?}"),
        }
    }
}
