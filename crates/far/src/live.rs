//! Everything that belongs to one life of the pager: its descriptors, bells and statistics. A
//! forked child starts another life.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_sys::lock::Bell;
use hiroma_sys::uffd::{self, Features, Uffd};
use hiroma_sys::vm::{Advise, Reservation};
use hiroma_sys::{fds, helper, keeper::Keeper, network};
use rustix::event::{EventfdFlags, eventfd};

use crate::accessed::Board;
use crate::config::{Config, PathChoice};
use crate::control::ControlPage;
use crate::elsewhere;
use crate::error::PagerError;
use crate::fatal;
use crate::inherit::{Address, Listener};
use crate::memory::{Kernel, Memory};
use crate::trace::{self, Ring};
use crate::watchdog::Oldests;
use crate::yielding::Yielding;

/// Which kernel interface moves pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// `UFFDIO_MOVE`.
    Full,
    /// Write-protect, copy, drop.
    Fallback,
}

impl Path {
    /// The advice for the arena. The fallback path moves single pages only.
    pub(crate) fn advice(self) -> Advise {
        match self {
            Path::Full => Advise::Huge,
            Path::Fallback => Advise::NoHuge,
        }
    }
}

/// Descriptors, bells and statistics of one process.
pub struct Live {
    /// Watches the arena.
    pub uffd: Arc<Uffd>,
    /// Watches the staging area, so that pages can be moved there. Full path only.
    pub staging: Option<Arc<Uffd>>,
    /// The interface that moves pages.
    pub memory: Box<dyn Memory>,
    pub path: Path,
    pub page: Arc<ControlPage>,
    /// Where accessed bits are requested, if they can be read.
    pub board: Option<Board>,
    /// Where forked children request descriptors.
    pub address: Option<Address>,
    /// A word that identifies the program's memory; zero in the copy of a child that has asked.
    pub mark: AtomicU64,
    pub arena_bytes: usize,
    /// Makes faults wait, instead of being answered with zeros, if the helper dies before the
    /// program.
    _keeper: Option<Keeper>,
    /// The oldest waiting fault of each fault thread.
    pub oldest: Oldests,
    /// The ring that records page-outs and page-ins, if enabled.
    pub trace: Option<Ring>,
    /// Wakes the first fault thread when there is room, when an operation that faults wait for has
    /// ended, or when another fault thread has handed it a fault.
    pub fault_wake: OwnedFd,
    pub evict_bell: Bell,
    pub fetch_bell: Bell,
    /// Shared by the fault threads and their guard.
    pub yielding: Yielding,
    /// Faults wait for room or for another operation to end.
    pub faults_waiting: AtomicBool,
    /// Fault threads other than the first have put faults off.
    pub has_handed_over: AtomicBool,
    /// By how much the limit may be exceeded while nothing leaves ([`crate::watchdog`]).
    pub lent_bytes: AtomicUsize,
    /// Set to stop the threads.
    pub stop: AtomicBool,
}

/// Warns once, for this process and its forked children, that its statistics cannot be seen.
fn tell_unseen(dir: &std::path::Path, error: &std::io::Error) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        fatal::warn(&format!(
            "process {} keeps its limit, but its figures are in no statistics: {} cannot be reached from here ({error})",
            helper::pid_in_proc(),
            dir.display()
        ));
    }
}

impl Live {
    /// Opens all descriptors; starts no thread. Also returns the listener for forked children that
    /// request descriptors.
    pub fn open(
        config: &Config,
        arena: &Arc<Reservation>,
    ) -> Result<(Live, Option<Listener>), PagerError> {
        let offered = hiroma_sys::uffd::probe()?;
        let path = match config.path {
            PathChoice::Full => Path::Full,
            PathChoice::Fallback => Path::Fallback,
            PathChoice::Auto if offered.has(Features::MOVE) => Path::Full,
            PathChoice::Auto => Path::Fallback,
        };
        let wanted = match path {
            Path::Full => Features::MOVE
                .and(Features::WP)
                .and(Features::EVENT_REMOVE)
                .and(Features::EVENT_REMAP)
                .and(Features::EVENT_UNMAP)
                .and(Features::THREAD_ID),
            Path::Fallback => Features::WP
                .and(Features::EVENT_REMAP)
                .and(Features::EVENT_UNMAP)
                .and(Features::THREAD_ID),
        };
        let uffd = Arc::new(Uffd::open(wanted)?);
        let staging = match path {
            Path::Full => Some(Arc::new(Uffd::open(Features::MOVE)?)),
            Path::Fallback => None,
        };
        let fault_wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| PagerError::io("eventfd")(errno.into()))?;
        let page = match &config.control_dir {
            Some(dir) => ControlPage::create(dir, config.runner.is_some()).or_else(|error| {
                tell_unseen(dir, &error);
                ControlPage::private()
            }),
            None => ControlPage::private(),
        }
        .map_err(PagerError::io("making the control page"))?;
        config.waking.into_iter().for_each(|costs| page.set_costs(costs));
        let page = Arc::new(page);
        fatal::speak_through(page.clone());
        if helper::is_here() {
            page.set_pager(elsewhere::in_run(helper::pid_in_proc()));
            if let Some(dir) = &config.control_dir {
                ControlPage::name_pager(dir, helper::pid_in_proc());
            }
            if fds::are_few() {
                uffd::drop_device();
            } else {
                // For children that have lost the right to open one.
                if let (None, Some(device)) = (uffd::device(), uffd::open_device()) {
                    uffd::keep_device(device);
                }
                network::keep_ours();
            }
        }
        let program = crate::host::program_in_proc();
        let socket = config
            .control_dir
            .as_ref()
            .map(|dir| ControlPage::path(dir, program).with_extension("socket"));
        let listener = Listener::open(socket.filter(|_| !fds::are_few())).ok();
        let live = Live {
            address: listener.as_ref().map(|listener| listener.address.clone()),
            mark: AtomicU64::new(crate::life::random_mark()),
            arena_bytes: arena.len(),
            _keeper: keep_open(&uffd, staging.as_deref()),
            memory: Box::new(Kernel {
                uffd: uffd.clone(),
                staging: staging.clone(),
                arena: arena.clone(),
                pagemap: (path == Path::Full && !fds::are_few())
                    .then(Pagemap::own)
                    .and_then(Result::ok),
            }),
            uffd,
            staging,
            path,
            page,
            board: config.control_dir.as_ref().and_then(|dir| Board::create(dir, program).ok()),
            trace: ring(config),
            fault_wake,
            oldest: Oldests::default(),
            evict_bell: Bell::default(),
            fetch_bell: Bell::default(),
            yielding: Yielding::default(),
            faults_waiting: AtomicBool::new(false),
            has_handed_over: AtomicBool::new(false),
            lent_bytes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        };
        Ok((live, listener))
    }

    /// One that watches nothing, with the test's own kernel.
    #[cfg(any(test, feature = "model"))]
    pub fn for_model(
        config: &Config,
        arena: &Arc<Reservation>,
        path: Path,
        memory: Box<dyn Memory>,
    ) -> Result<Live, PagerError> {
        let config = Config { control_dir: None, ..config.clone() };
        let (live, _) = Live::open(&config, arena)?;
        Ok(Live { memory, path, ..live })
    }

    /// The number of the descriptor that watches the arena.
    pub fn uffd_number(&self) -> RawFd {
        self.uffd.as_fd().as_raw_fd()
    }

    /// Wakes the first fault thread.
    pub fn wake_fault_thread(&self) {
        let _ = rustix::io::write(self.fault_wake.as_fd(), &1u64.to_ne_bytes());
    }

    /// Whether the threads should end.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Live {
    /// Wakes the first fault thread if faults wait there.
    pub fn wake_fault_thread_if_waiting(&self) {
        if self.faults_waiting.load(Ordering::Relaxed) {
            self.wake_fault_thread();
        }
    }
}

/// If the helper alone is killed, the kernel closes its descriptors. This adds a reference to them
/// from the program's memory itself.
fn keep_open(uffd: &Uffd, staging: Option<&Uffd>) -> Option<Keeper> {
    let numbers: Vec<RawFd> =
        [Some(uffd), staging].into_iter().flatten().map(|uffd| uffd.as_fd().as_raw_fd()).collect();
    if helper::is_here() { Keeper::of(&numbers).ok() } else { None }
}

/// Where the process is recorded, if it is to be. One that cannot be runs nevertheless.
fn ring(config: &Config) -> Option<Ring> {
    let dir = config.control_dir.as_deref().filter(|_| config.trace)?;
    let ring = Ring::create(dir, trace::page_bytes(config.block));
    ring.map_err(|error| {
        fatal::warn(&format!(
            "process {} is not in the trace: making its ring in {}: {error}",
            crate::host::program_in_proc(),
            dir.display()
        ));
    })
    .ok()
}
