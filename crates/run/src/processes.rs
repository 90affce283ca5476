//! What `/proc` reports about other processes.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiroma_far::config::{CONFIG_ENV, Config};
use hiroma_far::control::{ControlPage, PAGER_EXTENSION};
use hiroma_far::elsewhere;
use hiroma_sys::host::proc;

/// Whether process `pid` (its number in the run) exists and is more than a zombie that waits to be reaped.
pub fn is_alive(pid: u32) -> bool {
    let Some(pid) = elsewhere::here(pid) else { return false };
    match status(pid) {
        None | Some((_, 'X')) => false,
        // A first thread that ends before the others is in this state until they end.
        Some((_, 'Z')) => fs::read_dir(format!("/proc/{pid}/task"))
            .is_ok_and(|threads| threads.flatten().count() > 1),
        Some(_) => true,
    }
}

/// Whether process `pid` has memory: it has ended, or is about to, if it has none.
pub fn has_memory(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    // The first thread may have ended before the others.
    text.split(' ').next().is_some_and(|pages| !matches!(pages, "" | "0")) || threads() > 1
}

/// Whether process `pid` has mapped the file at `path`; it has not after it has executed another program.
/// None if that cannot be read.
pub fn has_mapped(pid: u32, path: &Path) -> Option<bool> {
    let inode = fs::metadata(path).ok()?.ino().to_string();
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    // Address, rights, offset, device, inode. The device of a mapping is not that of the file everywhere.
    let is_it = |line: &[u8]| {
        let mut words = line.split(|&byte| byte == b' ');
        words.nth(4).is_some_and(|word| word == inode.as_bytes())
    };
    Some(maps.split(|&byte| byte == b'\n').any(is_it))
}

/// Returns when the pager of process `pid`, which has ended, has ended as well: until then the process's
/// file cannot be overwritten, and its memory is in use. Does not wait for long.
pub fn await_pager(dir: &Path, pid: u32) {
    const EVERY: Duration = Duration::from_millis(1);
    const LOOKS_MAX: usize = 500;
    let link = ControlPage::path(dir, pid).with_extension(PAGER_EXTENSION);
    let name = fs::read_link(link).ok();
    let Some(pager) = name.and_then(|name| name.to_str()?.parse().ok()) else { return };
    for _ in 0..LOOKS_MAX {
        if !is_alive(pager) {
            break;
        }
        std::thread::sleep(EVERY);
    }
}

/// The user that process `pid` belongs to.
pub fn owner(pid: u32) -> io::Result<u32> {
    Ok(fs::metadata(format!("/proc/{pid}"))?.uid())
}

/// Processor time of process `pid` (its number in the run) in ns, to the tick of the kernel. 0: it has
/// ended.
pub fn run_ns(pid: u32) -> u64 {
    let Some(stat) = elsewhere::here(pid).and_then(proc::stat) else { return 0 };
    let ticks = |field| proc::field::<u64>(&stat, field).unwrap_or(0);
    (ticks(proc::USER) + ticks(proc::SYSTEM)) * proc::tick_ns()
}

/// Parent and state of process `pid`.
fn status(pid: u32) -> Option<(u32, char)> {
    let stat = proc::stat(pid)?;
    Some((proc::field(&stat, proc::PARENT)?, proc::field(&stat, proc::STATE)?))
}

/// `root` and every process that descends from it.
pub fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            if let Some((parent, _)) = status(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        found.extend(children.remove(&found[next]).unwrap_or_default());
        next += 1;
    }
    found
}

/// Directory of the control page of process `pid`, if the process runs under hiroma. Fails if this
/// user may not read the process's maps.
pub fn control_dir(pid: u32) -> io::Result<Option<PathBuf>> {
    // The mapping is the most reliable evidence: programs overwrite their environment to show a
    // title, and forked children have none.
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let name = format!("{pid}.hiroma");
    let mapped = String::from_utf8_lossy(&maps).lines().find_map(|line| {
        let path = Path::new(&line[line.find('/')?..]);
        (path.file_name()?.to_str()? == name).then(|| path.parent().map(Path::to_owned))?
    });
    if mapped.is_some() {
        return Ok(mapped);
    }
    let environ = fs::read(format!("/proc/{pid}/environ"))?;
    let prefix = format!("{CONFIG_ENV}=");
    let config = environ
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(prefix.as_bytes()));
    let dir = config
        .and_then(|json| serde_json::from_slice::<Config>(json).ok())
        .and_then(|config| config.control_dir);
    Ok(dir.filter(|dir| dir.join(&name).exists()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn process_tree_includes_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let tree = tree(std::process::id());
        assert!(tree.contains(&child.id()) && is_alive(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn page_is_mapped_by_its_process_alone() {
        let dir = tempfile::tempdir().unwrap();
        let page = ControlPage::create(dir.path(), false).unwrap();
        let path = ControlPage::path(dir.path(), std::process::id());
        assert_eq!(has_mapped(std::process::id(), &path), Some(true));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(has_mapped(child.id(), &path), Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
        drop(page);
        assert_eq!(has_mapped(std::process::id(), &path), Some(false));
    }

    #[test]
    fn this_test_is_not_under_hiroma() {
        assert_eq!(control_dir(std::process::id()).unwrap(), None);
        assert_eq!(control_dir(u32::MAX / 2).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
