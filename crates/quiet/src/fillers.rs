//! Who moves data between devices and memory.
//!
//! `/proc/PID/io` of a process includes what its children had moved when it waited for them. So the
//! processes are looked at several times a second, and what a parent gains while a child of it ends
//! is the child's. A child that lives between two looks counts for its parent.

use std::collections::BTreeMap;
use std::fs;

use hiroma_sys::host::proc;

/// A process that moves data between devices and memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filler {
    pub pid: u32,
    pub name: String,
    pub bytes_s: u64,
}

/// A process at one look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Process {
    parent: u32,
    started: u64,
    name: String,
    /// Bytes that it moved since it started, with those of children that it waited for.
    moved: u64,
}

impl Process {
    fn of(pid: u32) -> Option<Process> {
        let stat = proc::stat(pid)?;
        Some(Process {
            parent: proc::field(&stat, proc::PARENT)?,
            started: proc::field(&stat, proc::STARTED)?,
            name: proc::name(&stat)?.to_owned(),
            moved: parse_io(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?),
        })
    }
}

/// Bytes that a process moved between devices and memory (`/proc/PID/io`).
fn parse_io(text: &str) -> u64 {
    let value = |name| proc::value(text, name).unwrap_or(0);
    value("read_bytes:") + value("write_bytes:")
}

/// All processes of the machine over a time.
#[derive(Debug, Default)]
pub struct Fillers {
    last: Option<BTreeMap<u32, Process>>,
    /// Bytes by process, with its name; also of processes that have ended.
    moved: BTreeMap<u32, (String, u64)>,
}

impl Fillers {
    /// Looks at all processes that this user may inspect.
    pub fn look(&mut self) {
        let pids = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        self.note(pids.filter_map(|pid| Some((pid, Process::of(pid)?))).collect());
    }

    fn note(&mut self, now: BTreeMap<u32, Process>) {
        let Some(last) = self.last.replace(now.clone()) else { return };
        let is_same = |one: &Process, other: &Process| one.started == other.started;
        let mut gained: BTreeMap<u32, u64> = BTreeMap::new();
        for (&pid, process) in &now {
            let before = last.get(&pid).filter(|before| is_same(before, process));
            gained
                .insert(pid, process.moved - before.map_or(0, |one| one.moved.min(process.moved)));
        }
        let has_ended =
            |&(pid, one): &(&u32, &Process)| !now.get(pid).is_some_and(|now| is_same(now, one));
        for (&pid, child) in last.iter().filter(has_ended) {
            let Some(parent) = gained.get_mut(&child.parent) else { continue };
            let rest = parent.saturating_sub(child.moved);
            *parent = 0;
            self.add(pid, &child.name, rest);
        }
        for (pid, bytes) in gained {
            self.add(pid, &now[&pid].name, bytes);
        }
    }

    fn add(&mut self, pid: u32, name: &str, bytes: u64) {
        if bytes > 0 {
            let entry = self.moved.entry(pid).or_default();
            entry.0 = name.to_owned();
            entry.1 += bytes;
        }
    }

    /// Those that moved something, the largest first. `per_s` converts to a rate.
    pub fn largest_first(&self, per_s: impl Fn(u64) -> u64) -> Vec<Filler> {
        let mut fillers: Vec<Filler> = self
            .moved
            .iter()
            .map(|(&pid, (name, bytes))| Filler { pid, name: name.clone(), bytes_s: per_s(*bytes) })
            .filter(|filler| filler.bytes_s > 0)
            .collect();
        fillers.sort_by_key(|filler| std::cmp::Reverse(filler.bytes_s));
        fillers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, name: &str, moved: u64) -> Process {
        Process { parent, started: 1, name: name.to_owned(), moved }
    }

    #[test]
    fn bytes_of_an_ended_child_are_not_its_parents() {
        let mut fillers = Fillers::default();
        fillers.note([(1, process(0, "sh", 100)), (2, process(1, "dd", 1000))].into());
        fillers.note([(1, process(0, "sh", 100)), (2, process(1, "dd", 5000))].into());
        // It moved 2,000 more before it ended, and the shell waited for it.
        fillers.note([(1, process(0, "sh", 7100))].into());
        let found = fillers.largest_first(|bytes| bytes);
        assert_eq!(found, [Filler { pid: 2, name: "dd".to_owned(), bytes_s: 6000 }]);
    }

    #[test]
    fn new_process_with_a_used_number_starts_from_zero() {
        let mut fillers = Fillers::default();
        fillers.note([(5, process(0, "old", 1000))].into());
        fillers.note([(5, Process { started: 2, ..process(0, "new", 300) })].into());
        let found = fillers.largest_first(|bytes| bytes);
        assert_eq!((found.len(), found[0].name.as_str(), found[0].bytes_s), (1, "new", 300));
    }

    #[test]
    fn only_device_traffic_counts() {
        let text = "rchar: 9\nread_bytes: 4096\nwrite_bytes: 100\ncancelled_write_bytes: 5\n";
        assert_eq!(parse_io(text), 4196);
    }
}
