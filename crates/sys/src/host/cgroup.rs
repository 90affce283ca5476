//! Control groups: where memory is limited, the group of a process, and moving into a group.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Root of the hierarchy in which memory is limited, and whether it is version 2.
pub fn memory_controller() -> io::Result<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts")
        .map_err(|error| doing("reading /proc/self/mounts", &error))?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut second = None;
    for line in fields.filter(|line| line.len() >= 4) {
        match line[2] {
            "cgroup" if line[3].split(',').any(|option| option == "memory") => {
                return Ok((PathBuf::from(line[1]), false));
            }
            "cgroup2" => second = Some(PathBuf::from(line[1])),
            _ => {}
        }
    }
    let root = second.ok_or_else(|| io::Error::other("no control group hierarchy is mounted"))?;
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    if !controllers.split_whitespace().any(|name| name == "memory") {
        return Err(io::Error::other(format!(
            "the memory controller is not available in {}",
            root.display()
        )));
    }
    Ok((root, true))
}

/// Moves this process into a group.
pub fn enter(cgroup: &Path) -> io::Result<()> {
    let procs = cgroup.join("cgroup.procs");
    fs::write(&procs, std::process::id().to_string())
        .map_err(|error| doing(&format!("entering the control group {}", cgroup.display()), &error))
}

fn doing(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A process's group in the hierarchy of `controller` (empty: version 2), from `/proc/PID/cgroup`.
pub fn group_of<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_both_versions() {
        let groups = "5:memory:/user/1\n4:cpu,cpuacct:/\n0::/x\n";
        assert_eq!(
            (group_of(groups, "memory"), group_of(groups, "")),
            (Some("/user/1"), Some("/x"))
        );
        assert_eq!(group_of("0::/\n", "memory"), None);
    }
}
