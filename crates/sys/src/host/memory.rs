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
    pub fn read() -> io::Result<Limits> {
        Limits::read_below(Path::new("/"))
    }

    /// The smaller of the machine's memory and the cgroup's limit.
    pub fn whole(&self) -> Bytes {
        self.cgroup.as_ref().map_or(self.machine, |(limit, _)| self.machine.min(*limit))
    }

    fn read_below(root: &Path) -> io::Result<Limits> {
        let machine = meminfo(root, "MemTotal:")?;
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        let cgroup = mounts.lines().filter_map(|mount| mount_limit(root, mount, &groups)).min();
        Ok(Limits { machine, cgroup })
    }
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
    let (left, right) = mount.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (mount_root, mount_point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    let (file, controller) = match kind {
        "cgroup2" => ("memory.max", ""),
        "cgroup" if options.split(',').any(|option| option == "memory") => {
            ("memory.limit_in_bytes", "memory")
        }
        _ => return None,
    };
    let group = group_of(groups, controller)?;
    // In a container the group's path may be outside of what is mounted; then the mount point
    // itself is the group.
    let inside = Path::new(group).strip_prefix(mount_root).unwrap_or(Path::new(""));
    let top = root.join(mount_point.trim_start_matches('/'));
    let deepest = top.join(inside);
    deepest
        .ancestors()
        .take_while(|dir| dir.starts_with(&top))
        .filter_map(|dir| limit_in(&dir.join(file)))
        .min()
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
        let root = tempfile::tempdir().unwrap();
        for (path, text) in
            files.iter().chain(&[("proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\n")])
        {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Limits::read_below(root.path()).unwrap()
    }

    #[test]
    fn meminfo_and_sysinfo_agree() {
        assert_eq!(Limits::read().unwrap().machine.0 >> 20, super::machine().0 >> 20);
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
