//! A daemon in a thread, and scripted trackers.
#![allow(dead_code)] // Each test uses its part.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hiroma_hot::service::daemon::{Daemon, OVERDUE_NS, ServeError, ServiceOptions};
use hiroma_hot::service::protocol::Page;
use hiroma_hot::service::watch::{Ended, Open, Watch};
use hiroma_policy::huge::shares::Use;
use rustix::event::{EventfdFlags, eventfd};

pub const EXTENT: u64 = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited a minute for: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// What the tracker finds, by process, and what budgets it was given.
#[derive(Default)]
pub struct Script {
    pub pages: Mutex<BTreeMap<u32, Vec<Page>>>,
    pub uses: Mutex<BTreeMap<u32, Use>>,
    pub budgets: Mutex<BTreeMap<u32, u64>>,
    pub fails: Mutex<Option<String>>,
    pub watches: AtomicU64,
}

pub struct Scripted {
    script: Arc<Script>,
    pid: u32,
}

impl Watch for Scripted {
    fn backend(&self) -> String {
        "script".to_owned()
    }

    fn step(&mut self, now_ns: u64) -> Result<(u64, bool), Ended> {
        match self.script.fails.lock().unwrap().clone() {
            Some(reason) => Err(reason),
            None => Ok((now_ns + 1_000_000, true)),
        }
    }

    fn use_of_huge_pages(&self) -> Use {
        self.script.uses.lock().unwrap().get(&self.pid).copied().unwrap_or_default()
    }

    fn set_budget_ranges(&mut self, ranges: u64) {
        self.script.budgets.lock().unwrap().insert(self.pid, ranges);
    }

    fn set_cpu_ppm(&mut self, _: u64) {}

    fn active_pages(&self) -> Vec<Page> {
        self.script.pages.lock().unwrap().get(&self.pid).cloned().unwrap_or_default()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.script.watches.fetch_sub(1, Ordering::SeqCst);
    }
}

pub fn scripted(script: Arc<Script>) -> Open {
    Box::new(move |wish| {
        script.watches.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Scripted { script: Arc::clone(&script), pid: wish.pid }))
    })
}

/// A daemon in a thread.
pub struct Served {
    pub path: PathBuf,
    pub log: Arc<Mutex<Vec<String>>>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn start(
        path: &Path,
        open: impl FnOnce() -> Open + Send + 'static,
    ) -> Result<Served, ServeError> {
        Served::patient(path, OVERDUE_NS, open)
    }

    /// A daemon that reports a process as stuck after `overdue_ns`.
    pub fn patient(
        path: &Path,
        overdue_ns: u64,
        open: impl FnOnce() -> Open + Send + 'static,
    ) -> Result<Served, ServeError> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (stopped, lines) = (stop.try_clone().unwrap(), Arc::clone(&log));
        let (told, started) = std::sync::mpsc::channel();
        let socket = path.to_owned();
        let thread = thread::spawn(move || {
            let log = Box::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()));
            let options = ServiceOptions {
                selector: None,
                metrics: None,
                path: socket,
                budget_ranges: 100,
                cpu_ppm: 10_000,
                collapse_ppm: 50_000,
                overdue_ns,
                log,
            };
            match Daemon::start(options, open()) {
                Ok(mut daemon) => {
                    told.send(None).unwrap();
                    daemon.run(stopped.as_fd()).unwrap();
                }
                Err(error) => told.send(Some(error)).unwrap(),
            }
        });
        if let Some(error) = started.recv().unwrap() {
            thread.join().unwrap();
            return Err(error);
        }
        Ok(Served { path: path.to_owned(), log, stop, thread: Some(thread) })
    }

    pub fn said(&self, part: &str) -> bool {
        self.log.lock().unwrap().iter().any(|line| line.contains(part))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub fn pages(range: u64, count: u64) -> Vec<Page> {
    (0..count)
        .map(|number| Page { address: range * EXTENT + number * 4096, count: 9, reserved: 0 })
        .collect()
}
