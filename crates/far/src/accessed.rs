//! Accessed bits of the program's pages, which the process that runs it reads.
//!
//! A pager cannot see ordinary accesses. `hiroma run` can, where it may read page tables: it makes
//! a *bell* in the control directory, and then each pager makes a *board* there. While victims are
//! needed, the pager writes ranges of its memory on the board and rings; the other side reads and
//! clears the accessed bits of these ranges, and writes them below. Nothing waits for the answer.
//! It is advice for the replacement policy, so late, missing or wrong bits cost faults and nothing
//! else.
//!
//! Layout of a board: word 0 counts requests, word 1 answers, word 2 is the number of ranges, word
//! 3 is set if the bits cannot be read, from word 8 on the ranges (address / 2 MiB), and after
//! these the bits of each, one for a page.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hiroma_policy::PageBits;
use hiroma_policy::working_set::WorkingSet;
use hiroma_sys::shared::SharedWords;
use hiroma_units::{BlockId, EXTENT, ExtentNo, PAGE};

use crate::control::Counter;
use crate::core::Core;
use crate::extent::flag;

/// Ranges of one request: 1 GiB.
pub const RANGES_MAX: usize = 512;
const ASKED: usize = 0;
const ANSWERED: usize = 1;
const COUNT: usize = 2;
const UNREADABLE: usize = 3;
const RANGES: usize = 8;
const BITS: usize = RANGES + RANGES_MAX;
const BITS_WORDS: usize = EXTENT / PAGE / 64;
const WORDS: usize = BITS + RANGES_MAX * BITS_WORDS;
/// Name of the bell in a control directory, and extension of the boards there.
pub const BELL_FILE: &str = "accessed.bell";
pub const BOARD_EXTENSION: &str = "accessed";
/// All bits are read about this many times while as much is evicted as fits into local memory.
/// `hiroma bench policy`: 4 is worse, 16 hardly better.
const READS_PER_TURNOVER: usize = 8;
/// Huge pages that are split for each hold of the lock: one takes about 0.1 ms.
const SPLITS_MAX: usize = 1;

/// The bell of one control directory.
pub struct Bell(SharedWords);

impl Bell {
    /// Makes the bell. Pagers that start from now on make boards.
    pub fn create(dir: &Path) -> io::Result<Bell> {
        Ok(Bell(create(&dir.join(BELL_FILE), 1)?))
    }

    fn open(dir: &Path) -> io::Result<Bell> {
        let file = OpenOptions::new().read(true).write(true).open(dir.join(BELL_FILE))?;
        if file.metadata()?.len() < 8 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Bell(SharedWords::map(&file, 1)?))
    }

    /// How often it was rung.
    pub fn rung(&self) -> u32 {
        self.0.rung(0)
    }

    /// Rings.
    pub fn ring(&self) {
        self.0.ring(0);
    }

    /// Sleeps until it has been rung since it was `rung`, at most `timeout`.
    pub fn wait(&self, rung: u32, timeout: Duration) {
        self.0.wait(0, rung, timeout);
    }
}

fn create(path: &Path, words: usize) -> io::Result<SharedWords> {
    let _ = std::fs::remove_file(path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    SharedWords::create(&file, words)
}

/// The board of one process, with its bell.
pub struct Board {
    words: SharedWords,
    bell: Bell,
}

impl Board {
    fn path(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("{pid}.{BOARD_EXTENSION}"))
    }

    /// Makes the board of process `pid`. An error if there is no bell.
    pub fn create(dir: &Path, pid: u32) -> io::Result<Board> {
        let bell = Bell::open(dir)?;
        Ok(Board { words: create(&Board::path(dir, pid), WORDS)?, bell })
    }

    /// Opens the board of process `pid`.
    pub fn open(dir: &Path, pid: u32) -> io::Result<Board> {
        let bell = Bell::open(dir)?;
        let file = OpenOptions::new().read(true).write(true).open(Board::path(dir, pid))?;
        if file.metadata()?.len() != (WORDS * 8) as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a board"));
        }
        Ok(Board { words: SharedWords::map(&file, WORDS)?, bell })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[index]
    }

    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Whether a request has not been answered yet, or never will be.
    fn is_busy(&self) -> bool {
        self.load(ASKED) != self.load(ANSWERED) || self.is_unreadable()
    }

    fn is_unreadable(&self) -> bool {
        self.load(UNREADABLE) != 0
    }

    /// Requests the bits of these ranges, at most [`RANGES_MAX`].
    fn ask(&self, ranges: impl Iterator<Item = u64>) {
        let mut count = 0;
        for range in ranges.take(RANGES_MAX) {
            self.word(RANGES + count).store(range, Ordering::Relaxed);
            count += 1;
        }
        self.word(COUNT).store(count as u64, Ordering::Relaxed);
        self.word(ASKED).fetch_add(1, Ordering::Release);
        self.bell.ring();
    }

    /// The ranges of a request that has not been answered.
    pub fn asked(&self) -> Option<Vec<u64>> {
        if self.load(ASKED) == self.load(ANSWERED) || self.is_unreadable() {
            return None;
        }
        let count = (self.load(COUNT) as usize).min(RANGES_MAX);
        Some((0..count).map(|at| self.load(RANGES + at)).collect())
    }

    /// Answers the request: `bits` returns the bits of the range with this index.
    pub fn answer(&self, count: usize, bits: impl Fn(usize) -> PageBits) {
        for at in 0..count.min(RANGES_MAX) {
            for (word, bits) in bits(at).into_iter().enumerate() {
                self.word(BITS + at * BITS_WORDS + word).store(bits, Ordering::Relaxed);
            }
        }
        self.word(ANSWERED).store(self.load(ASKED), Ordering::Release);
    }

    /// The bits cannot be read: no request will be answered.
    pub fn set_unreadable(&self) {
        self.word(UNREADABLE).store(1, Ordering::Release);
    }

    fn bits(&self, at: usize) -> PageBits {
        std::array::from_fn(|word| self.load(BITS + at * BITS_WORDS + word))
    }
}

/// Which accessed bits are to be read, and when.
#[derive(Default)]
pub struct Accessed {
    /// Extents with resident blocks, and some that had any.
    extents: BTreeSet<u32>,
    /// The extents of the last request, until its answer was taken.
    asked: Vec<u32>,
    /// The next request begins here.
    next: u32,
    staged_pages: usize,
    /// What the bits say about less local memory.
    pub working_set: WorkingSet,
}

impl Accessed {
    /// Pages were staged.
    pub fn staged(&mut self, pages: usize) {
        self.staged_pages += pages;
    }

    /// Chooses the next extents in turn, in ascending order; forgets those without resident
    /// blocks.
    fn choose(&mut self, has_resident: impl Fn(u32) -> bool) {
        let Accessed { extents, asked, next, working_set, .. } = self;
        extents.retain(|&extent| has_resident(extent));
        working_set.retain(|extent| extents.contains(&extent.0));
        asked.extend(extents.range(*next..).take(RANGES_MAX));
        let more = RANGES_MAX - asked.len();
        asked.extend(extents.range(..*next).take(more));
        *next = asked.last().map_or(0, |&extent| extent + 1);
        asked.sort_unstable();
    }
}

impl Core {
    /// A block became resident: its extent is one whose bits are read.
    pub fn list_for_accessed(&mut self, block: BlockId) {
        let before = usize::from(self.extent(block).resident_sectors).saturating_sub(block.pages());
        if self.live.board.is_some() && before == 0 {
            self.accessed.extents.insert(block.extent_no().0);
        }
    }

    /// Takes an answer, and requests more bits if enough was evicted since the last request.
    pub fn exchange_accessed(&mut self) {
        if self.live.board.is_none() {
            return;
        }
        self.split_blurred();
        let extents = self.accessed.extents.len().max(1);
        let turnover_pages = self.room() / PAGE / READS_PER_TURNOVER;
        let is_due =
            self.accessed.staged_pages >= turnover_pages * extents.min(RANGES_MAX) / extents;
        // Most calls end here: this is on the path of each small fault.
        if self.accessed.asked.is_empty() && !is_due {
            return;
        }
        let live = self.live.clone();
        let Some(board) = &live.board else { return };
        if board.is_busy() {
            if board.is_unreadable() && !self.accessed.asked.is_empty() {
                self.accessed.asked.clear();
                self.clusters.give_up();
            }
            return;
        }
        let mut asked = std::mem::take(&mut self.accessed.asked);
        if !asked.is_empty() {
            live.page.add(Counter::AccessedReads, 1);
            for (at, &extent) in asked.iter().enumerate() {
                self.take_accessed(ExtentNo(extent), &board.bits(at));
            }
            asked.clear();
            self.accessed.working_set.end_read();
        }
        self.accessed.asked = asked;
        if is_due {
            let (table, base) = (&self.extents, (self.arena.base() / EXTENT) as u64);
            self.accessed.staged_pages = 0;
            self.accessed.choose(|extent| table[extent as usize].has_resident());
            for &extent in &self.accessed.asked {
                self.clusters.asked(ExtentNo(extent));
            }
            if !self.accessed.asked.is_empty() {
                board.ask(self.accessed.asked.iter().map(|&extent| base + u64::from(extent)));
            }
        }
    }

    /// Takes the accessed bits of an extent since the last call.
    pub fn take_accessed(&mut self, extent: ExtentNo, bits: &PageBits) {
        self.replacement.accessed(extent, bits);
        let state = &self.extents[extent.0 as usize];
        let resident = state.resident_pages(self.sector_order);
        self.accessed.working_set.read(extent, bits, &resident);
        // A huge page has one bit for all.
        if !state.has(flag::RESIDENT) && self.clusters.read(extent, bits, &resident) {
            self.break_clusters(extent.0 as usize);
        }
    }

    /// Splits huge pages that stay only because one bit stands for all of their pages.
    pub fn split_blurred(&mut self) {
        for _ in 0..SPLITS_MAX {
            let Some(ExtentNo(extent)) = self.replacement.blurred() else { return };
            if self.extents[extent as usize].has(flag::RESIDENT) {
                self.live.memory.split(self.arena.base() + extent as usize * EXTENT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_answered_once_with_bits_per_range() {
        let dir = std::env::temp_dir().join(format!("hiroma-board-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(Board::create(&dir, 7).is_err(), "there is no bell");
        let bell = Bell::create(&dir).unwrap();
        let (pager, runner) = (Board::create(&dir, 7).unwrap(), Board::open(&dir, 7).unwrap());
        assert_eq!((runner.asked(), bell.rung()), (None, 0));
        pager.ask([5, 9].into_iter());
        assert_eq!((runner.asked(), bell.rung()), (Some(vec![5, 9]), 1));
        bell.wait(0, Duration::from_secs(60));
        assert!(pager.is_busy());
        runner.answer(2, |at| PageBits::from([at as u64 + 1; BITS_WORDS]));
        assert!(!pager.is_busy() && runner.asked().is_none());
        assert_eq!((pager.bits(0), pager.bits(1)), ([1; BITS_WORDS], [2; BITS_WORDS]));
        runner.set_unreadable();
        pager.ask([1].into_iter());
        assert!(pager.is_busy() && runner.asked().is_none());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
