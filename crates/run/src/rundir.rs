//! The private directory of one `hiroma run`, which contains the control pages of its processes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hiroma_far::control::PAGER_EXTENSION;
use hiroma_sys::host::dirs;

use crate::processes;

/// A directory that only its user can enter. Removed at the end, unless a process of the run is
/// still alive.
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the directory of this process, and removes the directories of earlier runs that were
    /// killed.
    pub fn create() -> Result<RunDir> {
        let mut refused = None;
        for parent in parents(rustix::process::geteuid().as_raw()) {
            let path = parent.join(format!("run-{}", std::process::id()));
            let made = private_dir(&parent).and_then(|()| {
                clear_stale(&parent);
                let _ = fs::remove_dir_all(&path);
                private_dir(&path)
            });
            match made {
                Ok(()) => {
                    hiroma_far::elsewhere::describe(&path);
                    return Ok(RunDir { path });
                }
                // The first candidate is the preferred place, so its error is the one that the user
                // can fix.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.expect("there is always /tmp")).context("nor can /dev/shm or /var/tmp be used")
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !is_in_use(&self.path) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Directories that may contain the run directories of user `uid`. New ones are made in the first.
pub fn parents(uid: u32) -> Vec<PathBuf> {
    let own = uid == rustix::process::geteuid().as_raw();
    let runtime = dirs::runtime().filter(|_| own);
    let fallbacks =
        ["/tmp", "/dev/shm", "/var/tmp"].map(|dir| PathBuf::from(format!("{dir}/hiroma-{uid}")));
    runtime.map(|dir| dir.join("hiroma")).into_iter().chain(fallbacks).collect()
}

/// Makes `path`, or accepts it if it is a directory of this user that no other user can enter.
fn private_dir(path: &Path) -> Result<()> {
    hiroma_sys::private::private_dir(path)
        .with_context(|| format!("cannot use the directory {} for control pages", path.display()))
}

/// Ids of the processes that have a control page in `dir`, in ascending order.
pub fn page_pids(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".hiroma")?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

fn clear_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("run-")?.parse().ok());
        if pid.is_some_and(|pid: u32| !processes::is_alive(pid)) && !is_in_use(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a process of a run that has ended is still alive. The pages of the others go: there may
/// be thousands, and each run that starts would look for their processes anew while one lives, or
/// has got the number of one that lived.
fn is_in_use(dir: &Path) -> bool {
    let (alive, ended): (Vec<u32>, _) =
        page_pids(dir).into_iter().partition(|&pid| processes::is_alive(pid));
    for pid in ended {
        let _ = fs::remove_file(dir.join(format!("{pid}.hiroma")));
        let _ = fs::remove_file(dir.join(format!("{pid}.{PAGER_EXTENSION}")));
    }
    !alive.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(
            format!("{:#}", private_dir(&open).unwrap_err()).contains("not a private directory")
        );
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(private_dir(&link).is_err());
        let fresh = dir.path().join("fresh");
        private_dir(&fresh).unwrap();
        private_dir(&fresh).unwrap();
    }

    #[test]
    fn only_dead_runs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let dead = u32::MAX / 2;
        let make = |name: &str, page: u32| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(format!("{page}.hiroma")), "").unwrap();
        };
        make(&format!("run-{dead}"), dead);
        make(&format!("run-{}", dead - 1), std::process::id());
        make(&format!("run-{}", std::process::id()), dead);
        let used = dir.path().join(format!("run-{}", dead - 1));
        fs::write(used.join(format!("{dead}.hiroma")), "").unwrap();
        clear_stale(dir.path());
        assert!(!dir.path().join(format!("run-{dead}")).exists());
        assert_eq!(page_pids(&used), [std::process::id()]);
        assert!(dir.path().join(format!("run-{}", std::process::id())).exists());
    }
}
