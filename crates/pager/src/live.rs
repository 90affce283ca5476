//! What belongs to one life of the pager: its descriptors, bells and statistics. A forked child starts another.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use hiroma_kernel::lock::Bell;
use hiroma_kernel::uffd::{Features, Uffd};
use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Config, PathChoice};
use crate::control::ControlPage;
use crate::error::PagerError;
use crate::fatal;
use crate::quiet::Quiet;
use crate::trace::{self, Ring};

/// Which kernel interface moves pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// `UFFDIO_MOVE`.
    Full,
    /// Write-protect, copy, drop.
    Fallback,
}

/// Descriptors, bells and statistics of one process.
pub struct Live {
    /// Watches the arena.
    pub uffd: Uffd,
    /// Watches the staging area, so that pages can be moved there. Full path only.
    pub staging: Option<Uffd>,
    pub path: Path,
    pub page: ControlPage,
    /// Where page-outs and page-ins are recorded, if they are.
    pub trace: Option<Ring>,
    /// Wakes the fault thread when there is room, or something it waits for has ended.
    pub fault_wake: OwnedFd,
    pub evict_bell: Bell,
    pub fetch_bell: Bell,
    /// Between the fault thread and its guard.
    pub quiet: Quiet,
    /// Faults wait for room or for something to end.
    pub faults_waiting: AtomicBool,
    /// Threads end when this is set.
    pub stop: AtomicBool,
}

impl Live {
    /// Opens what is needed; no thread runs yet.
    pub fn open(config: &Config) -> Result<Live, PagerError> {
        let offered = hiroma_kernel::uffd::probe()?;
        let path = match config.path {
            PathChoice::Full => Path::Full,
            PathChoice::Fallback => Path::Fallback,
            PathChoice::Auto if offered.has(Features::MOVE) => Path::Full,
            PathChoice::Auto => Path::Fallback,
        };
        let wanted = match path {
            Path::Full => {
                Features::MOVE.and(Features::EVENT_REMOVE).and(Features::EVENT_REMAP).and(Features::EVENT_UNMAP).and(Features::THREAD_ID)
            }
            Path::Fallback => Features::WP.and(Features::EVENT_REMAP).and(Features::EVENT_UNMAP).and(Features::THREAD_ID),
        };
        let uffd = Uffd::open(wanted)?;
        let staging = match path {
            Path::Full => Some(Uffd::open(Features::MOVE)?),
            Path::Fallback => None,
        };
        let fault_wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| PagerError::io("eventfd")(errno.into()))?;
        let page = match &config.control_dir {
            Some(dir) => ControlPage::create(dir).or_else(|_| ControlPage::private()),
            None => ControlPage::private(),
        }
        .map_err(PagerError::io("making the control page"))?;
        Ok(Live {
            uffd,
            staging,
            path,
            page,
            trace: config.control_dir.as_deref().filter(|_| config.trace).and_then(|dir| ring(dir, config)),
            fault_wake,
            evict_bell: Bell::default(),
            fetch_bell: Bell::default(),
            quiet: Quiet::default(),
            faults_waiting: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    /// The number of the descriptor that watches the arena.
    pub fn uffd_number(&self) -> RawFd {
        self.uffd.as_fd().as_raw_fd()
    }

    /// Wakes the fault thread.
    pub fn wake_fault_thread(&self) {
        let _ = rustix::io::write(self.fault_wake.as_fd(), &1u64.to_ne_bytes());
    }

    /// Whether the threads should end.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Live {
    /// The same, unless nobody waits there.
    pub fn wake_fault_thread_if_waiting(&self) {
        if self.faults_waiting.load(Ordering::Relaxed) {
            self.wake_fault_thread();
        }
    }
}

/// A process that cannot be recorded runs nevertheless.
fn ring(dir: &std::path::Path, config: &Config) -> Option<Ring> {
    let ring = Ring::create(dir, trace::page_bytes(config.block));
    ring.map_err(|error| {
        fatal::warn(&format!("process {} is not in the trace: making its ring in {}: {error}", std::process::id(), dir.display()));
    })
    .ok()
}
