//! Reads accessed bits for the pagers of a run, where page tables may be read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hiroma_far::accessed::{Bell, Board};
use hiroma_far::elsewhere;
use hiroma_hot::layout::Layout;
use hiroma_hot::tracker::{BpfTracker, IdleTracker, RangeView, Tracker};
use hiroma_hot::{HotError, bits};
use hiroma_sys::hot::maps::Vma;
use hiroma_units::EXTENT;

use crate::{processes, rundir};

/// Processes that have ended are forgotten after this time.
const TIDY_EVERY: Duration = Duration::from_millis(500);
/// Processes whose bits are read at a time; each needs a BPF program of its own.
const TRACKED_MAX: usize = 16;

/// The thread that reads.
pub struct Reader {
    bell: Arc<Bell>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    missing: Arc<OnceLock<String>>,
}

impl Reader {
    /// Offers to read accessed bits to the pagers that start in `dir` from now on. Nothing is read,
    /// and no right is needed, before one of them has more memory than its limit.
    pub fn start(dir: PathBuf) -> Option<Reader> {
        let bell = Arc::new(Bell::create(&dir).ok()?);
        let (stop, missing) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
        let reading = Reading {
            dir,
            tracked: BTreeMap::new(),
            missing: Arc::clone(&missing),
            tidied: Instant::now(),
        };
        let thread = {
            let (bell, stop) = (Arc::clone(&bell), Arc::clone(&stop));
            thread::Builder::new()
                .name("accessed".into())
                .spawn(move || reading.run(&bell, &stop))
                .ok()?
        };
        Some(Reader { bell, stop, thread, missing })
    }

    /// Ends the thread. Returns why accessed bits could not be read, if a pager wanted them.
    pub fn stop(self) -> Option<String> {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        // The join fails only after a panic, which the user has seen.
        let _ = self.thread.join();
        self.missing.get().cloned()
    }
}

struct Reading {
    dir: PathBuf,
    tracked: BTreeMap<u32, Tracked>,
    missing: Arc<OnceLock<String>>,
    tidied: Instant,
}

struct Tracked {
    board: Board,
    tracker: Box<dyn Tracker>,
    /// The bits have been cleared once. Until then they show what was ever used.
    cleared: bool,
}

impl Reading {
    fn run(mut self, bell: &Bell, stop: &AtomicBool) {
        loop {
            let rung = bell.rung();
            if stop.load(Ordering::Acquire) {
                return;
            }
            self.answer_all();
            bell.wait(rung, TIDY_EVERY);
        }
    }

    fn answer_all(&mut self) {
        let mut answered = false;
        for tracked in self.tracked.values_mut() {
            answered |= tracked.answer();
        }
        // A pager that rings and is not known has just started, or its process has executed
        // another program and has a new board.
        if !answered || self.tidied.elapsed() > TIDY_EVERY {
            self.tidied = Instant::now();
            self.tracked.retain(|&pid, _| processes::is_alive(pid));
            for pid in rundir::page_pids(&self.dir) {
                self.meet(pid);
            }
        }
    }

    fn meet(&mut self, pid: u32) {
        if self.tracked.get_mut(&pid).is_some_and(Tracked::answer) {
            return;
        }
        let Some(board) = asking(&self.dir, pid) else { return };
        self.tracked.remove(&pid);
        if self.tracked.len() >= TRACKED_MAX {
            return;
        }
        let Some(here) = elsewhere::here(pid) else { return };
        match open(here) {
            Ok(tracker) => {
                let tracked =
                    self.tracked.entry(pid).or_insert(Tracked { board, tracker, cleared: false });
                tracked.answer();
            }
            Err(error) => {
                if !matches!(error, HotError::Gone { .. }) {
                    let _ = self.missing.set(error.to_string());
                }
                board.set_unreadable();
            }
        }
    }
}

/// The board of `pid`, if it has a request.
fn asking(dir: &Path, pid: u32) -> Option<Board> {
    let board = Board::open(dir, pid).ok()?;
    board.asked()?;
    Some(board)
}

/// Whether accessed bits can be read here.
pub fn may_read() -> Result<(), HotError> {
    open(std::process::id()).map(drop)
}

fn open(pid: u32) -> Result<Box<dyn Tracker>, HotError> {
    match BpfTracker::open(pid) {
        Ok(tracker) => Ok(Box::new(tracker)),
        Err(error) => match IdleTracker::open(pid) {
            Ok(tracker) => Ok(Box::new(tracker)),
            Err(_) => Err(error),
        },
    }
}

impl Tracked {
    /// Answers a request, if there is one.
    fn answer(&mut self) -> bool {
        let Some(ranges) = self.board.asked() else { return false };
        match read(self.tracker.as_mut(), &ranges) {
            Ok(views) => {
                let known = std::mem::replace(&mut self.cleared, true);
                let touched = |at: usize| views.get(at).map_or(bits::NONE, |view| view.touched);
                let bits = |at: usize| if known { touched(at) } else { bits::NONE };
                self.board.answer(ranges.len(), bits);
            }
            // The process ends, or has lost its memory to another program.
            Err(_) => self.board.set_unreadable(),
        }
        true
    }
}

/// The accessed bits of `ranges` (ascending), which are cleared.
fn read(tracker: &mut dyn Tracker, ranges: &[u64]) -> Result<Vec<RangeView>, HotError> {
    let (Some(&first), Some(&last)) = (ranges.first(), ranges.last()) else {
        return Ok(Vec::new());
    };
    // The pager names ranges of its arena, all of which is private anonymous memory.
    let layout = Layout::of(&[Vma {
        start: first * EXTENT as u64,
        end: (last + 1) * EXTENT as u64,
        writable: true,
        shared: false,
        anonymous: true,
        name: String::new(),
    }]);
    let mut views = Vec::with_capacity(ranges.len());
    tracker.scan(&layout, ranges, &mut views)?;
    tracker.clear(&layout, ranges)?;
    Ok(views)
}
