//! Restores the machine's state. A change is recorded in a journal before a measurement makes it.
//! It is undone when its guard is dropped, when the program panics (release builds do not unwind),
//! when it is interrupted and, if it was killed, by the next measurement that starts.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use hiroma_sys::hot::target::started_at;
use hiroma_sys::quiet::affinity;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use serde::{Deserialize, Serialize};

/// One change to undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Undo {
    /// Stop swapping to this file or device.
    SwapOff(PathBuf),
    /// Reset and remove this zram device.
    ZramRemove(u32),
    /// Remove this control group, once it is empty.
    CgroupRemove(PathBuf),
    /// Remove this file.
    FileRemove(PathBuf),
    /// Write this text, the former setting, to this file of the kernel.
    FileWrite(PathBuf, String),
    /// Remove this directory and everything in it.
    DirRemove(PathBuf),
    /// Unmount this mount point.
    Unmount(PathBuf),
    /// Let this thread run on these processors again. The start time is needed to identify the
    /// thread, because ids are reused.
    ThreadCpus { tid: u32, started: u64, cpus: Vec<usize> },
    /// Kill this process group. Not undone by a later program: by then the id may belong to other
    /// processes.
    GroupKill(i32),
}

static PENDING: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());

fn pending() -> MutexGuard<'static, Vec<(u64, Undo)>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes one change when it is dropped.
#[must_use]
pub struct Guard(u64);

impl Guard {
    /// Records a change to undo. Must be called *before* making the change.
    pub fn new(undo: Undo) -> Guard {
        let mut list = pending();
        let id = list.iter().map(|&(id, _)| id).max().unwrap_or(0) + 1;
        list.push((id, undo));
        write_journal(&list);
        Guard(id)
    }

    /// Forgets the change: it has been undone, or must not be.
    pub fn disarm(self) {
        forget(self.0);
        std::mem::forget(self);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let undo = pending().iter().find(|&&(id, _)| id == self.0).map(|(_, undo)| undo.clone());
        if let Some(undo) = undo {
            undo.act();
            forget(self.0);
        }
    }
}

fn forget(id: u64) {
    let mut list = pending();
    list.retain(|&(other, _)| other != id);
    write_journal(&list);
}

impl Undo {
    fn act(&self) {
        match self {
            Undo::SwapOff(path) => {
                let _ = Command::new("swapoff")
                    .env("PATH", super::peers::SYSTEM_PATH)
                    .arg(path)
                    .stderr(Stdio::null())
                    .status();
            }
            Undo::ZramRemove(id) => {
                let _ = fs::write(format!("/sys/block/zram{id}/reset"), "1");
                let _ = fs::write("/sys/class/zram-control/hot_remove", id.to_string());
            }
            // The processes of the group may take a moment to exit.
            Undo::CgroupRemove(path) => {
                let gone = |_| {
                    fs::remove_dir(path).is_ok() || !path.exists() || {
                        thread::sleep(Duration::from_millis(10));
                        false
                    }
                };
                let _ = (0..300).any(gone);
            }
            Undo::FileRemove(path) => drop(fs::remove_file(path)),
            Undo::FileWrite(path, text) => drop(fs::write(path, text)),
            Undo::DirRemove(path) => drop(fs::remove_dir_all(path)),
            // A mount that is still in use disappears with its last user.
            Undo::Unmount(path) => {
                if unmount(path, UnmountFlags::empty()).is_err() {
                    let _ = unmount(path, UnmountFlags::DETACH);
                }
            }
            Undo::ThreadCpus { tid, started, cpus } => {
                if started_at(*tid) == Some(*started) {
                    let _ = affinity::confine(*tid, cpus);
                }
            }
            Undo::GroupKill(group) => {
                if let Some(group) = Pid::from_raw(*group) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
            }
        }
    }
}

/// Undoes everything that is pending, last changes first.
pub fn undo_all() {
    loop {
        let Some((id, undo)) = pending().last().cloned() else { return };
        undo.act();
        forget(id);
    }
}

/// Installs a panic hook that undoes everything before the program ends.
pub fn undo_on_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        previous(info);
        undo_all();
    }));
}

/// A directory that only this user can write to, because the entries found there are carried out.
/// None: there is no journal.
fn journal_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/run/hiroma-bench"));
    }
    std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("hiroma-bench"))
}

/// Writes the pending changes, in the order in which another process must undo them.
fn write_journal(list: &[(u64, Undo)]) {
    let Some(dir) = journal_dir() else { return };
    let path = dir.join(format!("{}.undo", std::process::id()));
    let lasting = list.iter().filter(|(_, undo)| !matches!(undo, Undo::GroupKill(_)));
    let lines: String = lasting
        .rev()
        .filter_map(|(_, undo)| serde_json::to_string(undo).ok())
        .map(|line| line + "\n")
        .collect();
    if lines.is_empty() {
        let _ = fs::remove_file(path);
        let _ = fs::remove_dir(dir);
        return;
    }
    let _ = fs::create_dir_all(&dir);
    if let Ok(mut file) = OpenOptions::new().create(true).write(true).truncate(true).open(path) {
        let _ = file.write_all(lines.as_bytes());
    }
}

/// Undoes what killed measurements left behind. Returns the number of changes.
pub fn undo_leftovers() -> usize {
    journal_dir().map_or(0, |dir| undo_leftovers_in(&dir))
}

fn undo_leftovers_in(dir: &Path) -> usize {
    let journals = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut count = 0;
    for path in journals {
        let owner = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .and_then(|stem| stem.parse().ok())
            .and_then(Pid::from_raw);
        if owner.is_none_or(|owner| test_kill_process(owner).is_ok()) {
            continue;
        }
        for line in fs::read_to_string(&path).unwrap_or_default().lines() {
            if let Ok(undo) = serde_json::from_str::<Undo>(line) {
                undo.act();
                count += 1;
            }
        }
        let _ = fs::remove_file(path);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_undoes_on_drop_unless_disarmed() {
        let dir = tempfile::tempdir().unwrap();
        let (removed, kept) = (dir.path().join("removed"), dir.path().join("kept"));
        fs::write(&removed, "").unwrap();
        fs::write(&kept, "").unwrap();
        drop(Guard::new(Undo::FileRemove(removed.clone())));
        Guard::new(Undo::FileRemove(kept.clone())).disarm();
        assert!(!removed.exists() && kept.exists());
    }

    #[test]
    fn thread_affinity_is_restored_unless_id_was_reused() {
        let all = affinity::of(0).unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (tid, started) = (child.id(), started_at(child.id()).unwrap());
        for (started, expected) in [(started + 1, &all[..1]), (started, &all[..])] {
            affinity::confine(tid, &all[..1]).unwrap();
            drop(Guard::new(Undo::ThreadCpus { tid, started, cpus: all.clone() }));
            assert_eq!(affinity::of(tid).unwrap(), expected);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_leftovers_of_dead_measurements_are_undone() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, living) = (dir.path().join("of-the-dead"), dir.path().join("of-the-living"));
        fs::write(&dead, "").unwrap();
        fs::write(&living, "").unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let journal = |pid: u32, path: &Path| {
            let line = serde_json::to_string(&Undo::FileRemove(path.to_owned())).unwrap();
            fs::write(dir.path().join(format!("{pid}.undo")), line + "\n").unwrap();
        };
        journal(child.id(), &dead);
        journal(std::process::id(), &living);
        assert_eq!(undo_leftovers_in(dir.path()), 1);
        assert!(!dead.exists() && living.exists());
    }
}
