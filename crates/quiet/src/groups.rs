//! Control groups that reclaim because they reach their own limits, whatever the machine has free.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hiroma_sys::host::cgroup::memory_controller;
use hiroma_sys::host::proc;

/// A group that reaches its limit fewer times in a while is not named as a problem.
pub(crate) const HITS_MIN: u64 = 100;
/// Number of groups that are named.
pub(crate) const NAMED: usize = 3;
/// Maximum number of groups that are looked at.
const GROUPS_MAX: usize = 4096;

/// How often each group reached a limit of its own since it was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Groups(BTreeMap<PathBuf, u64>);

impl Groups {
    /// Reads all groups; none where no controller of memory is mounted.
    pub fn read() -> Groups {
        memory_controller().map_or_else(|_| Groups::default(), |(root, _)| Groups::below(&root))
    }

    fn below(root: &Path) -> Groups {
        let mut groups = BTreeMap::new();
        let mut open = vec![root.to_owned()];
        while let Some(dir) = open.pop() {
            if groups.len() >= GROUPS_MAX {
                break;
            }
            let inner = fs::read_dir(&dir).into_iter().flatten().flatten();
            let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            open.extend(inner.filter(is_dir).map(|entry| entry.path()));
            if let Some(hits) = hits(&dir) {
                let name = Path::new("/").join(dir.strip_prefix(root).unwrap_or(&dir));
                groups.insert(name, hits);
            }
        }
        Groups(groups)
    }

    /// The groups that reached a limit since `before`, and how often; most first.
    pub fn since(&self, before: &Groups) -> Vec<(PathBuf, u64)> {
        let grown = |(path, hits): (&PathBuf, &u64)| {
            let more = hits.saturating_sub(before.0.get(path).copied().unwrap_or(0));
            (more > 0).then(|| (path.clone(), more))
        };
        let mut groups: Vec<(PathBuf, u64)> = self.0.iter().filter_map(grown).collect();
        groups.sort_by_key(|(path, hits)| (std::cmp::Reverse(*hits), path.clone()));
        groups
    }

    /// The few among them that are a problem.
    pub fn often_since(&self, before: &Groups) -> Vec<(PathBuf, u64)> {
        let mut groups = self.since(before);
        groups.retain(|(_, hits)| *hits >= HITS_MIN);
        groups.truncate(NAMED);
        groups
    }
}

/// `memory.failcnt` of version 1; `high` and `max` of `memory.events.local` of version 2.
fn hits(dir: &Path) -> Option<u64> {
    if let Ok(text) = fs::read_to_string(dir.join("memory.failcnt")) {
        return text.trim().parse().ok();
    }
    let text = fs::read_to_string(dir.join("memory.events.local")).ok()?;
    let value = |name| proc::value(&text, name).unwrap_or(0);
    Some(value("high ") + value("max "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read_and_growth_is_told() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str, file: &str, text: &str| {
            fs::create_dir_all(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join(file), text).unwrap();
        };
        make("a", "memory.failcnt", "7\n");
        make("b/c", "memory.events.local", "low 1\nhigh 2\nmax 3\noom 9\noom_kill 4\n");
        let before = Groups::below(root.path());
        assert_eq!(before.0[Path::new("/a")], 7);
        assert_eq!(before.0[Path::new("/b/c")], 5);
        make("a", "memory.failcnt", "17\n");
        make("d", "memory.failcnt", "130\n");
        let after = Groups::below(root.path());
        assert_eq!(after.since(&before), [("/d".into(), 130), ("/a".into(), 10)]);
        assert_eq!(after.often_since(&before), [("/d".into(), 130)]);
        assert!(Groups::below(Path::new("/no/such/place")).0.is_empty());
    }
}
