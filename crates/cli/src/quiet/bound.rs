//! A job with a bound on its file cache: a memory control group of its own, in which this process
//! reclaims the excess while the job runs.
//!
//! The group's limit does not stay low: a limit includes the job's own memory, and if that grew,
//! the kernel would kill the job.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use hiroma_sys::host::cgroup::{enter, group_of, memory_controller};

/// Prefix of the names of groups; used to find the groups of commands that were killed.
const PREFIX: &str = "hiroma-quiet-";
/// Time between two checks of the job's cache.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The group of a job, removed when this is dropped.
pub struct Bound {
    path: PathBuf,
    /// The group that this process was in before.
    home: PathBuf,
    stop: Arc<AtomicBool>,
    trimmer: Option<JoinHandle<()>>,
}

impl Bound {
    /// Makes a group that is kept to `cache_bytes` of file cache.
    pub fn make(cache_bytes: u64) -> Result<Bound> {
        let (root, second) = memory_controller()?;
        let own = fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
        let home = root.join(
            group_of(&own, if second { "" } else { "memory" })
                .unwrap_or_default()
                .trim_start_matches('/'),
        );
        if second {
            let control = root.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&control).unwrap_or_default();
            if !enabled.split_whitespace().any(|name| name == "memory") {
                fs::write(&control, "+memory").with_context(|| format!("{}", control.display()))?;
            }
        }
        remove_leftovers(&root);
        let path = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("{}", path.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, group) = (stop.clone(), Group { path: path.clone(), second });
        let trim = move || {
            while !stopped.load(Ordering::Relaxed) {
                group.trim(cache_bytes);
                thread::sleep(LOOK_EVERY);
            }
            group.trim(cache_bytes);
        };
        // From here on, dropping `bound` removes the group.
        let mut bound = Bound { path, home, stop, trimmer: None };
        bound.trimmer = Some(thread::Builder::new().name("hiroma-bound".to_owned()).spawn(trim)?);
        Ok(bound)
    }

    /// Runs `what` in the group: processes that it starts belong to the job from their first
    /// instruction on.
    pub fn within<T>(&self, what: impl FnOnce() -> T) -> Result<T> {
        enter(&self.path)?;
        let done = what();
        enter(&self.home)?;
        Ok(done)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(trimmer) = self.trimmer.take() {
            let _ = trimmer.join();
        }
        if fs::remove_dir(&self.path).is_err() {
            eprintln!(
                "hiroma quiet: processes of the job still run in {}, and their file cache is no longer bounded",
                self.path.display()
            );
        }
    }
}

/// Removes the groups of commands that were killed, if they are empty.
fn remove_leftovers(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

struct Group {
    path: PathBuf,
    second: bool,
}

impl Group {
    /// Reclaims the cache beyond the bound. Pages that cannot be reclaimed yet, because they are
    /// not written back, are reclaimed later.
    fn trim(&self, cache_bytes: u64) {
        let stat = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let excess = file_bytes(&stat, self.second).saturating_sub(cache_bytes);
        if excess == 0 {
            return;
        }
        if !self.second {
            // Lowering a limit reclaims memory down to it and fails where it cannot; no process is
            // killed. Then the limit is removed again.
            let usage = fs::read_to_string(self.path.join("memory.usage_in_bytes"))
                .ok()
                .and_then(|text| text.trim().parse::<u64>().ok());
            let _ = usage.map(|usage| {
                fs::write(
                    self.path.join("memory.limit_in_bytes"),
                    usage.saturating_sub(excess).to_string(),
                )
            });
            let _ = fs::write(self.path.join("memory.limit_in_bytes"), "-1");
            return;
        }
        let file = self.path.join("memory.reclaim");
        // Before Linux 6.9 the file does not accept `swappiness`. A kernel that does accept it
        // returns `EAGAIN` if it reclaimed too little.
        let refused = fs::write(&file, format!("{excess} swappiness=0"))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::InvalidInput);
        if refused {
            let _ = fs::write(&file, excess.to_string());
        }
    }
}

/// File cache of a group without the pages of memory file systems, from `memory.stat`.
fn file_bytes(stat: &str, second: bool) -> u64 {
    let value = |name: &str| {
        stat.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let (files, shared) = if second { ("file", "shmem") } else { ("total_cache", "total_shmem") };
    value(files).saturating_sub(value(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_cache_is_read_in_v1_and_v2() {
        assert_eq!(file_bytes("cache 9\nshmem 1\ntotal_cache 50\ntotal_shmem 20\n", false), 30);
        assert_eq!(file_bytes("anon 9\nfile 50\nfile_mapped 7\nshmem 60\n", true), 0);
    }
}
