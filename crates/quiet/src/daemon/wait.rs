//! Waits for the next observation, and for settings: inotify(7) reports changes in their directory.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::read;

/// Detects when a file is written.
#[derive(Debug)]
pub(super) struct Changes {
    path: PathBuf,
    /// None if no inotify instance is available: then the modification time is checked.
    events: Option<OwnedFd>,
    modified: Option<SystemTime>,
}

fn events(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&events, dir, WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE)?;
    Ok(events)
}

impl Changes {
    /// Changes of `path`, whose directory has to exist.
    pub(super) fn of(path: PathBuf) -> Changes {
        let events = path.parent().and_then(|dir| events(dir).ok());
        let modified = modified(&path);
        Changes { path, events, modified }
    }

    /// Whether there were any changes since the last call.
    pub(super) fn any(&mut self) -> bool {
        let Some(events) = &self.events else {
            let now = modified(&self.path);
            return now != std::mem::replace(&mut self.modified, now);
        };
        // Other files in the directory change as rarely as this one.
        let (mut any, mut buffer) = (false, [0u8; 4096]);
        while read(events, &mut buffer).is_ok_and(|got| got > 0) {
            any = true;
        }
        any
    }

    /// Waits until there is a change, a signal arrives, or `ns` have passed.
    pub(super) fn wait(&self, ns: u64) {
        let Some(events) = &self.events else {
            return thread::sleep(Duration::from_nanos(ns));
        };
        let limit =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        // If interrupted, the caller checks for the cause.
        let _ = poll(&mut [PollFd::new(events, PollFlags::IN)], Some(&limit));
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_ends_the_wait_and_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.json");
        fs::write(&path, "{}").unwrap();
        let mut changes = Changes::of(path.clone());
        assert!(!changes.any());
        fs::write(&path, "{ }").unwrap();
        changes.wait(60_000_000_000);
        assert!(changes.any());
        assert!(!changes.any());
    }

    #[test]
    fn modification_time_is_used_without_inotify() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.json");
        let mut changes = Changes { path: path.clone(), events: None, modified: None };
        assert!(!changes.any());
        fs::write(&path, "{}").unwrap();
        assert!(changes.any());
        assert!(!changes.any());
    }
}
