//! The directory of a daemon: its lock, its settings, and what has to be restored.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use hiroma_sys::hot::target::started_at;
use hiroma_sys::quiet::affinity;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::QuietError;
use crate::settings::write_whole;

/// Held while a daemon runs. The file is never removed: without it two daemons could hold "the"
/// lock.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Where a thread was allowed to run before it was confined. The thread id and the start time
/// together identify one thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Pin {
    tid: u32,
    started: u64,
    name: String,
    cpus: Vec<usize>,
}

/// Threads that were confined to some processors. They are released on drop; after SIGKILL by
/// [`restore`].
#[derive(Debug)]
pub struct Pins {
    state: PathBuf,
    pins: Vec<Pin>,
}

fn lock_path(state: &Path) -> PathBuf {
    state.join("lock")
}

fn pins_path(state: &Path) -> PathBuf {
    state.join("restore.json")
}

impl Lock {
    /// Takes the lock of `state`, which is created if necessary.
    pub fn take(state: &Path) -> Result<Lock, QuietError> {
        let path = lock_path(state);
        let failed = |source: io::Error| QuietError::State { path: path.clone(), source };
        fs::create_dir_all(state).map_err(failed)?;
        let file =
            File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(QuietError::Taken(path)),
            Err(errno) => Err(failed(errno.into())),
            Ok(()) => Ok(Lock { _file: file }),
        }
    }

    /// Whether a daemon holds it.
    pub fn is_held(state: &Path) -> bool {
        let Ok(file) = File::options().write(true).open(lock_path(state)) else { return false };
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    }
}

impl Pins {
    /// No thread confined.
    pub fn new(state: &Path) -> Pins {
        Pins { state: state.to_owned(), pins: Vec::new() }
    }

    /// Confines a thread, after recording where it was allowed to run.
    ///
    /// # Errors
    /// Why it cannot be confined.
    pub fn confine(&mut self, tid: u32, name: &str, cpus: &[usize]) -> Result<(), String> {
        let before = affinity::of(tid).map_err(|error| format!("{name}: {error}"))?;
        let started = started_at(tid).ok_or_else(|| format!("{name} has ended"))?;
        self.pins.push(Pin { tid, started, name: name.to_owned(), cpus: before });
        let confined = write_pins(&self.state, &self.pins).map_err(|error| error.to_string());
        let confined = confined.and_then(|()| {
            affinity::confine(tid, cpus).map_err(|error| format!("{name}: {error}"))
        });
        if confined.is_err() {
            self.pins.pop();
        }
        confined
    }
}

impl Pins {
    /// Leaves threads confined until [`restore`].
    pub fn keep(mut self) {
        self.pins.clear();
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.pins.is_empty() {
            put_back(&self.pins);
            let _ = fs::remove_file(pins_path(&self.state));
        }
    }
}

fn write_pins(state: &Path, pins: &[Pin]) -> Result<(), QuietError> {
    write_whole(
        &pins_path(state),
        &serde_json::to_string(pins).expect("numbers and names become JSON"),
    )
}

/// Lets threads run where they were allowed to before; those that have ended are skipped. Returns
/// lines on what was done.
fn put_back(pins: &[Pin]) -> Vec<String> {
    let alive = pins.iter().filter(|pin| started_at(pin.tid) == Some(pin.started));
    let one = |pin: &Pin| match affinity::confine(pin.tid, &pin.cpus) {
        Ok(()) => {
            format!("{} may run on processors {} again", pin.name, affinity::show_list(&pin.cpus))
        }
        Err(error) => format!(
            "{} could not be let go: {error}: taskset -pc {} {}",
            pin.name,
            affinity::show_list(&pin.cpus),
            pin.tid
        ),
    };
    alive.map(one).collect()
}

/// Restores what a killed daemon left behind. The caller holds the lock.
pub fn restore(state: &Path, _lock: &Lock) -> Result<Vec<String>, QuietError> {
    let path = pins_path(state);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|source| QuietError::State { path: path.clone(), source })?,
    };
    let pins: Vec<Pin> = serde_json::from_str(&text)
        .map_err(|error| QuietError::Damaged { path: path.clone(), reason: error.to_string() })?;
    let lines = put_back(&pins);
    fs::remove_file(&path).map_err(|source| QuietError::State { path, source })?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A process of ours in place of a kernel thread.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Sleeper {
            Sleeper(Command::new("sleep").arg("600").spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn threads_are_released_on_exit_and_after_sigkill() {
        let dir = tempfile::tempdir().unwrap();
        let all = affinity::of(0).unwrap();
        let sleeper = Sleeper::new();
        for killed in [false, true] {
            let lock = Lock::take(dir.path()).unwrap();
            let mut pins = Pins::new(dir.path());
            pins.confine(sleeper.0.id(), "sleeper", &all[..1]).unwrap();
            assert_eq!(affinity::of(sleeper.0.id()).unwrap(), all[..1]);
            if killed {
                std::mem::forget(pins);
                assert_eq!(restore(dir.path(), &lock).unwrap().len(), 1);
            } else {
                drop(pins);
            }
            assert_eq!(affinity::of(sleeper.0.id()).unwrap(), all);
            assert_eq!(restore(dir.path(), &lock).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn reused_thread_id_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let all = affinity::of(0).unwrap();
        let sleeper = Sleeper::new();
        let pin = Pin {
            tid: sleeper.0.id(),
            started: 1,
            name: "kswapd0".to_owned(),
            cpus: all[..1].to_vec(),
        };
        write_pins(dir.path(), &[pin]).unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        assert!(restore(dir.path(), &lock).unwrap().is_empty());
        assert_eq!(affinity::of(sleeper.0.id()).unwrap(), all);
    }

    #[test]
    fn one_daemon_per_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!Lock::is_held(dir.path()));
        let lock = Lock::take(dir.path()).unwrap();
        assert!(Lock::is_held(dir.path()));
        assert!(matches!(Lock::take(dir.path()), Err(QuietError::Taken(_))));
        drop(lock);
        assert!(!Lock::is_held(dir.path()));
    }
}
