//! Numbers of processes in other pid namespaces.
//!
//! The files of a run are named by the numbers of its processes. A program in a pid namespace that has a
//! `/proc` of its own has a number that means another process to `hiroma run`, or none: it would look for
//! that one, and end it. So such a process has a *number elsewhere*, which no process has: the lowest
//! bits of its namespace's number, and its own one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use hiroma_sys::helper;

/// In the run's directory: a link whose target identifies the `/proc` and the pid namespace of
/// `hiroma run`.
pub const PROC_LINK: &str = "proc";
/// The kernel numbers processes with so many bits at most (`PID_MAX_LIMIT`).
const PID_BITS: u32 = 22;
const PID_MASK: u32 = (1 << PID_BITS) - 1;
const ELSEWHERE: u32 = 1 << 31;

/// What the numbers of this process's `/proc` have in front of them; 0: nothing.
static PREFIX: AtomicU32 = AtomicU32::new(0);

/// The device of `/proc`: another one for each time that it was mounted.
fn proc_device() -> Option<u64> {
    fs::metadata("/proc").ok().map(|proc| proc.dev())
}

/// The number of a process's pid namespace; `pid`: as `/proc` names it.
fn namespace(pid: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

fn prefix_of(namespace: u64) -> u32 {
    ELSEWHERE | (namespace as u32) << PID_BITS & !ELSEWHERE
}

/// For `hiroma run`: says in the directory of the run what its numbers mean.
pub fn describe(dir: &Path) {
    if let (Some(device), Some(namespace)) = (proc_device(), namespace("self")) {
        let _ = std::os::unix::fs::symlink(format!("{device} {namespace}"), dir.join(PROC_LINK));
    }
}

/// Finds out whether this process's `/proc` has the numbers of `hiroma run`.
pub fn note(dir: Option<&Path>) {
    PREFIX.store(dir.and_then(prefix).unwrap_or(0), Ordering::Relaxed);
}

fn prefix(dir: &Path) -> Option<u32> {
    let run = fs::read_link(dir.join(PROC_LINK)).ok()?;
    let (device, namespace_of_run) = run.to_str()?.split_once(' ')?;
    if proc_device()?.to_string() == device {
        return None;
    }
    let own = namespace("self")?;
    let is_same =
        own.to_string() == namespace_of_run && helper::pid_in_proc() == std::process::id();
    (!is_same).then(|| prefix_of(own))
}

/// Whether `/proc` is there, and has the numbers of `hiroma run` now.
pub fn has_runs_numbers(dir: &Path) -> bool {
    namespace("self").is_some() && prefix(dir).is_none()
}

/// The number in the run of a process that has the number `pid` in `/proc` here.
pub fn in_run(pid: u32) -> u32 {
    match PREFIX.load(Ordering::Relaxed) {
        0 => pid,
        prefix => prefix | pid & PID_MASK,
    }
}

/// For `hiroma run`: the number here of the process that has the number `number` in the run. `None`: it
/// has ended.
pub fn here(number: u32) -> Option<u32> {
    if number & ELSEWHERE == 0 {
        return Some(number);
    }
    let (own, theirs) = (namespace("self"), number & PID_MASK);
    let mut processes = fs::read_dir("/proc").ok()?.flatten();
    processes.find_map(|entry| {
        let name = entry.file_name();
        let pid = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))?;
        let other = namespace(pid).filter(|_| namespace(pid) != own)?;
        let is_it = prefix_of(other) == number & !PID_MASK && inner_number(pid) == Some(theirs);
        is_it.then(|| pid.parse().ok())?
    })
}

/// For messages: the number here, or else the one in the process's own namespace.
pub fn shown(number: u32) -> u32 {
    let own = if number & ELSEWHERE == 0 { number } else { number & PID_MASK };
    here(number).unwrap_or(own)
}

/// The number that a process has in its own namespace.
fn inner_number(pid: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_this_namespace_are_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(prefix(dir.path()), None);
        describe(dir.path());
        assert_eq!(prefix(dir.path()), None);
        assert_eq!(here(std::process::id()), Some(std::process::id()));
    }

    #[test]
    fn other_namespaces_have_numbers_that_no_process_has() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("1 2", dir.path().join(PROC_LINK)).unwrap();
        assert!(!has_runs_numbers(dir.path()));
        let prefix = prefix(dir.path()).unwrap();
        assert_eq!(prefix & PID_MASK, 0);
        assert_eq!(prefix & ELSEWHERE, ELSEWHERE);
        // This process is not in another namespace.
        assert_eq!(here(prefix | std::process::id()), None);
    }
}
