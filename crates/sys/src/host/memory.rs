//! How much memory there is: in the machine, and within the cgroup that limits this process
//! (versions 1 and 2).

use std::path::{Path, PathBuf};
use std::{fs, io};

use hiroma_units::Bytes;

use super::cgroup::group_of;

/// The limits of this process's memory.
#[derive(Debug, PartialEq)]
pub struct Limits {
    /// Memory of the machine.
    pub machine: Bytes,
    /// The tightest limit among this process's cgroups, and the file that sets it.
    pub cgroup: Option<(Bytes, PathBuf)>,
}

impl Limits {
    /// Reads the limits.
    pub fn read() -> Limits {
        Limits::read_below(Path::new("/"))
    }

    /// The smaller of the machine's memory and the cgroup's limit.
    pub fn whole(&self) -> Bytes {
        self.cgroup.as_ref().map_or(self.machine, |(limit, _)| self.machine.min(*limit))
    }

    fn read_below(root: &Path) -> Limits {
        // A `/proc` of processes only (`subset=pid`), or none, does not tell.
        let machine = meminfo(root, "MemTotal:").unwrap_or_else(|_| machine());
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        let cgroup = mounts.lines().filter_map(|mount| mount_limit(root, mount, &groups)).min();
        Limits { machine, cgroup }
    }
}

/// Memory that can still be used without swapping, and without a limit of a cgroup being reached:
/// of the machine, or of the tightest of this process's cgroups.
pub fn headroom() -> io::Result<Bytes> {
    headroom_below(Path::new("/"))
}

fn headroom_below(root: &Path) -> io::Result<Bytes> {
    let machine = meminfo(root, "MemAvailable:")?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let within = |mount| {
        let (dirs, files) = groups_of(root, mount, &groups)?;
        dirs.iter().filter_map(|dir| room_in(dir, &files)).min()
    };
    Ok(mounts.lines().filter_map(within).min().map_or(machine, |room| room.min(machine)))
}

/// What is left of the limit of one cgroup; file cache counts half, as the kernel needs time to
/// give it up.
fn room_in(dir: &Path, files: &GroupFiles) -> Option<Bytes> {
    let (limit, _) = limit_in(&dir.join(files.limit))?;
    let used: u64 = fs::read_to_string(dir.join(files.usage)).ok()?.trim().parse().ok()?;
    let stat = fs::read_to_string(dir.join("memory.stat")).ok()?;
    let count = |name: &str| -> u64 {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    };
    let prefix = files.stat_prefix;
    let cache = count(&format!("{prefix}inactive_file")) + count(&format!("{prefix}active_file"));
    Some(Bytes(limit.0.saturating_sub(used.saturating_sub(cache / 2))))
}

/// Memory of the machine that is available without swapping.
pub fn available() -> io::Result<Bytes> {
    meminfo(Path::new("/"), "MemAvailable:")
}

/// Memory of the machine, from `sysinfo(2)`: needs no file, and so works at any time.
pub fn machine() -> Bytes {
    let info = rustix::system::sysinfo();
    Bytes(scaled(&info, info.totalram))
}

/// Memory of the machine that is neither in use nor file cache, from `sysinfo(2)`: the cheapest way
/// to read it.
pub fn free() -> Bytes {
    let info = rustix::system::sysinfo();
    Bytes(scaled(&info, info.freeram))
}

// The fields' type differs between architectures.
#[allow(clippy::useless_conversion)]
fn scaled(info: &rustix::system::Sysinfo, units: impl Into<u64>) -> u64 {
    units.into().saturating_mul(u64::from(info.mem_unit.max(1)))
}

/// A line of /proc/meminfo.
fn meminfo(root: &Path, key: &str) -> io::Result<Bytes> {
    let text = fs::read_to_string(root.join("proc/meminfo")).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot read /proc/meminfo: {error}"))
    })?;
    let kib = super::proc::value(&text, key);
    let kib = kib.ok_or_else(|| io::Error::other(format!("/proc/meminfo has no line {key}")))?;
    Ok(Bytes(kib << 10))
}

/// The tightest limit in the hierarchy that one line of `mountinfo` describes.
fn mount_limit(root: &Path, mount: &str, groups: &str) -> Option<(Bytes, PathBuf)> {
    let (dirs, files) = groups_of(root, mount, groups)?;
    dirs.iter().filter_map(|dir| limit_in(&dir.join(files.limit))).min()
}

/// How the files of a memory cgroup are called.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Before the names in `memory.stat` that count children too.
    stat_prefix: &'static str,
}

/// The directories of this process's cgroups, the deepest first, in the hierarchy that one line of
/// `mountinfo` describes.
fn groups_of(root: &Path, mount: &str, groups: &str) -> Option<(Vec<PathBuf>, GroupFiles)> {
    let (left, right) = mount.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (mount_root, mount_point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    let (files, controller) = match kind {
        "cgroup2" => {
            (GroupFiles { limit: "memory.max", usage: "memory.current", stat_prefix: "" }, "")
        }
        "cgroup" if options.split(',').any(|option| option == "memory") => {
            let files = GroupFiles {
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                stat_prefix: "total_",
            };
            (files, "memory")
        }
        _ => return None,
    };
    let group = group_of(groups, controller)?;
    // In a container the group's path may be outside of what is mounted; then the mount point
    // itself is the group.
    let inside = Path::new(group).strip_prefix(mount_root).unwrap_or(Path::new(""));
    let top = root.join(mount_point.trim_start_matches('/'));
    let deepest = top.join(inside);
    let dirs = deepest.ancestors().take_while(|dir| dir.starts_with(&top));
    Some((dirs.map(Path::to_owned).collect(), files))
}

fn limit_in(file: &Path) -> Option<(Bytes, PathBuf)> {
    // Version 2 writes `max` for no limit, version 1 a number near 2^63.
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < 1 << 62).then(|| (Bytes(bytes), file.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Limits {
        Limits::read_below(root(files).path())
    }

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files
            .iter()
            .chain(&[("proc/meminfo", "MemTotal:       8388608 kB\nMemAvailable:   1048576 kB\n")])
        {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn headroom_is_that_of_the_tightest_group() {
        let room = |files: &[(&str, &str)]| headroom_below(root(files).path()).unwrap().0 >> 20;
        assert_eq!(room(&[]), 1024);
        let second = [
            ("proc/self/cgroup", "0::/user/job\n"),
            ("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/user/memory.max", "536870912\n"),
            ("sys/fs/cgroup/user/memory.current", "419430400\n"),
            ("sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file 41943040\nactive_file 0\n"),
            ("sys/fs/cgroup/user/job/memory.max", "max\n"),
        ];
        assert_eq!(room(&second), 512 - 400 + 20);
        let first = [
            ("proc/self/cgroup", "4:memory:/a\n0::/\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "209715200\n"),
            ("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 0\n"),
        ];
        assert_eq!(room(&first), 0);
    }

    #[test]
    fn meminfo_and_sysinfo_agree() {
        assert_eq!(Limits::read().machine.0 >> 20, super::machine().0 >> 20);
    }

    #[test]
    fn without_meminfo_the_kernel_tells() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Limits::read_below(empty.path()).machine, super::machine());
    }

    #[test]
    fn without_a_cgroup_the_machine_is_the_whole() {
        let limits = machine(&[]);
        assert_eq!((limits.whole(), limits.cgroup), (Bytes(8 << 30), None));
    }

    #[test]
    fn tightest_ancestor_limit_applies_in_cgroup_v2() {
        let limits = machine(&[
            ("proc/self/cgroup", "0::/user/job\n"),
            (
                "proc/self/mountinfo",
                "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/user/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/user/job/memory.max", "max\n"),
        ]);
        assert_eq!(limits.whole(), Bytes(1 << 30));
    }

    #[test]
    fn cgroup_v1_huge_number_means_no_limit() {
        let mount = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
        let file = "sys/fs/cgroup/memory/a/memory.limit_in_bytes";
        let groups = ("proc/self/cgroup", "4:memory:/a\n0::/\n");
        assert_eq!(
            machine(&[groups, ("proc/self/mountinfo", mount), (file, "536870912\n")]).whole(),
            Bytes(512 << 20)
        );
        assert_eq!(
            machine(&[groups, ("proc/self/mountinfo", mount), (file, "9223372036854771712\n")])
                .cgroup,
            None
        );
    }

    #[test]
    fn group_outside_mount_maps_to_mount_point() {
        let limits = machine(&[
            ("proc/self/cgroup", "0::/docker/abc\n"),
            (
                "proc/self/mountinfo",
                "41 31 0:38 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/memory.max", "268435456\n"),
        ]);
        assert_eq!(limits.whole(), Bytes(256 << 20));
    }

    #[test]
    fn a_limit_above_the_machine_changes_nothing() {
        let limits = machine(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/memory.max", "1099511627776\n"),
        ]);
        assert_eq!(limits.whole(), Bytes(8 << 30));
    }
}
